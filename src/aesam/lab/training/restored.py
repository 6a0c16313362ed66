"""A finished run brought back to be measured: its model, its samples and its loss."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from aesam.lab import data, draws, models, validation
from aesam.lab.config import Run
from aesam.lab.data import DataSet
from aesam.lab.data.run_samples import RunSamples, samples_of
from aesam.lab.data.sets import inputs_as
from aesam.lab.errors import UsageError
from aesam.lab.folders import RunFolder
from aesam.lab.training import run_checkpoint
from aesam.lab.training.fitting import check_model


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """What training left behind: the settings, the trained model and what it was trained on."""

    run: Run
    model: nn.Module
    samples: RunSamples

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss that was trained on."""
        return partial(cross_entropy, label_smoothing=self.run.training.label_smoothing)

    def training_batches(self, count: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
        """Up to ``count`` training samples, drawn by ``seed``, in batches of the run's size.

        They have the run's label noise and no augmentation, and lie where the model is.
        """
        split, weight = self.samples.train, next(self.model.parameters())
        order = torch.randperm(len(split), generator=draws.generator("measured", seed))
        chunks = data.evaluation_chunks(
            split.select(order[:count]),
            self.samples.data_set,
            self.run.training.batch_size,
            weight.device,
            workers=self.run.training.workers,
        )
        return [(inputs_as(x, weight.dtype), labels) for x, labels in chunks]


def load_run(
    path: Path, *, root: Path | None = None, device: torch.device | str = "cpu"
) -> TrainedRun:
    """The run that was finished in the folder ``path``.

    ``root`` is where its data set lies now, if not where it lay in training.
    """
    folder = RunFolder(path)
    run, state = _read(folder)
    if root is not None:
        run = replace(run, data=replace(run.data, root=str(root)))
    samples = samples_of(run)
    model = _build(run, samples.data_set)
    try:
        check_model(state, model)
        model.load_state_dict(state)
    except (RuntimeError, TypeError, ValueError) as error:
        raise _damaged(folder, "its weights are not of this model") from error
    return TrainedRun(run, model.to(device), samples)


def _read(folder: RunFolder) -> tuple[Run, dict[str, Any]]:
    if not folder.config.is_file():
        raise UsageError(f"{folder.path} holds no run: there is no {folder.config.name} in it")
    if not folder.summary.is_file():
        raise UsageError(
            f"the run in {folder.path} is not finished: go on with it first (--resume)"
        )
    if not folder.checkpoint.is_file():
        raise UsageError(
            f"{folder.path} has no {folder.checkpoint.name}, so the run's weights are not there: "
            "train it again"
        )
    saved = run_checkpoint.load(folder.checkpoint)
    run = run_checkpoint.saved_run(folder.checkpoint, saved)
    validation.check(run)
    if not folder.is_finished(run):
        raise UsageError(f"{folder.checkpoint} and {folder.config} are of different runs")
    return run, run_checkpoint.trained_weights(saved)


def _damaged(folder: RunFolder, why: str) -> UsageError:
    return UsageError(f"the checkpoint {folder.checkpoint} is damaged ({why}): train the run again")


def _build(run: Run, data_set: DataSet) -> nn.Module:
    """The model as it was built for training; its random weights are overwritten."""
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        model = models.build_for(run.model, data_set)
    return model.double() if run.training.precision == "float64" else model
