"""What a run records of its gradients on the way, for figures over epochs."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from aesam import sharpness
from aesam.lab import data
from aesam.lab.config import Run
from aesam.lab.data import AnySplit, Batches, DataSet
from aesam.lab.lab_methods import epochs_of

STAGES = (0.3, 0.6, 0.9)  # of training, at which single norms are kept
BATCHES = {"gradients": 20, "norms": 400}  # at least so many for means, exactly for norms
_OTHER_ORDER = 1_000_003  # the seed's distance from training: its batches are not looked at again


class Drawn:
    """So many batches without augmentation, of one shuffled pass after another."""

    def __init__(self, epochs: Batches, count: int) -> None:
        self._epochs, self._count = epochs, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(-(-self._count // len(self._epochs))):
            left = self._count - number * len(self._epochs)
            for i, batch in enumerate(self._epochs.epoch(number)):
                if i == left:
                    return
                yield batch


class Meter:
    """Measures the model of a run after an epoch; nothing of the training changes by it.

    The batches have the training's size and, as in training, their own BatchNorm statistics.
    """

    def __init__(self, run: Run, train: AnySplit, data_set: DataSet, device: Any) -> None:
        self._kind, self._total = run.training.measure, epochs_of(run)
        self._batches = data.Batches(
            train,
            data_set,
            run.training.batch_size,
            (run.seed + _OTHER_ORDER) % 2**32,
            augment=False,
            device=device,
            channels_last=run.training.channels_last,
        )

    def after(self, epoch: int, net: nn.Module) -> dict[str, Any]:
        """What goes into the line of this epoch, counted from 1."""
        if self._kind == "gradients":
            return self._means(net)
        if self._kind == "norms" and epoch in {max(1, round(s * self._total)) for s in STAGES}:
            return {"norms": list(self._norms(net))}
        return {}

    def _means(self, net: nn.Module) -> dict[str, float]:
        count = max(BATCHES["gradients"], len(self._batches))
        drawn = Drawn(self._batches, count)
        found = sharpness.gradient_variance(net, cross_entropy, drawn, mode="train")
        return {
            "mean_squared_norm": found.norms.mean,
            "full_squared_norm": found.full_squared_norm,
            "gradient_variance": found.variance,
        }

    def _norms(self, net: nn.Module) -> tuple[float, ...]:
        drawn = Drawn(self._batches, BATCHES["norms"])
        found = sharpness.squared_gradient_norms(net, cross_entropy, drawn, mode="train")
        return found.squared_norms
