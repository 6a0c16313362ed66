"""SWAD: the mean of all weights between a start and an end that a validation loss chooses."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor
from torch.optim import swa_utils

from aesam.lab.companions.averages import Average
from aesam.lab.companions.companion import Companion, Stage, checked_keys
from aesam.parts import checks


def _mean() -> Average:
    return Average(swa_utils.get_swa_multi_avg_fn())


class DenseAverage(Companion):
    """SWAD: the mean of the weights from where a validation loss is lowest to where it has risen.

    The loss is taken after each epoch on training samples that are kept for it. The start is the
    first epoch s whose loss is the least of N_s epochs from it on. The threshold is r times the
    mean loss of these. The end is the epoch before the first N_e in a row whose losses are all
    above the threshold, or else the last one. The mean is of the weights after every step of the
    epochs from the start to the end, both included.

    Args:
        optimum_patience: N_s, at least 1.
        overfit_patience: N_e, at least 1.
        tolerance: r, at least 1.
        own_holdout: the share of the training samples that is kept, between 0 and 1.

    >>> usual = {"optimum_patience": 3, "overfit_patience": 6, "tolerance": 1.3}
    >>> DenseAverage(**usual, own_holdout=0.1).weights() is None  # until there is a start
    True
    """

    evaluates = "the mean of the weights between its start and its end"

    def __init__(
        self,
        *,
        optimum_patience: int,
        overfit_patience: int,
        tolerance: float,
        own_holdout: float,
    ) -> None:
        self._optimum = checks.whole("optimum_patience", optimum_patience, 1)
        self._overfit = checks.whole("overfit_patience", overfit_patience, 1)
        self._tolerance = checks.finite("tolerance", tolerance)
        if self._tolerance < 1.0:
            raise ValueError(f"tolerance must be at least 1, got {tolerance!r}")
        checks.decay("own_holdout", own_holdout)
        self._epoch = _mean()  # of the steps since the last epoch
        self._before: list[tuple[float, Average]] = []  # losses and means, until there is a start
        self._threshold: float | None = None
        self._chosen = _mean()  # of the epochs that surely belong to it
        self._above: list[Average] = []  # of each one since, with a loss above the threshold
        self._ended = False

    def begin(self, stage: Stage) -> None:
        self._stage, self._params = stage, list(stage.net.parameters())

    def after_step(self, step: int) -> None:  # noqa: ARG002
        if not self._ended:
            self._epoch.add(self._params)

    def after_epoch(self, epoch: int) -> None:  # noqa: ARG002
        if self._ended:
            return
        loss, mean = self._stage.own_loss(), self._epoch
        self._epoch = _mean()
        if self._threshold is not None:
            self._take(loss, mean, self._threshold)
            self._end_if_overfit()
            return
        self._before = [*self._before, (loss, mean)][-self._optimum :]
        losses = [each for each, _ in self._before]
        if len(losses) == self._optimum and losses[0] <= min(losses):
            self._threshold = self._tolerance * sum(losses) / len(losses)
            for each in self._before:
                self._take(*each, self._threshold)
            self._before = []

    def _take(self, loss: float, mean: Average, threshold: float) -> None:
        """One more epoch from the start on, surely one of the chosen if it is not above."""
        self._above.append(mean)
        if loss <= threshold:
            self._choose(self._above)
            self._above = []

    def _choose(self, means: Sequence[Average]) -> None:
        for mean in means:
            self._chosen.merge(mean)

    def _end_if_overfit(self) -> None:
        if len(self._above) >= self._overfit:
            self._choose(self._above[: -self._overfit])
            self._above, self._ended = [], True

    def weights(self) -> Sequence[Tensor] | None:
        if self._threshold is None:
            return None
        all_of_them = _mean()
        for mean in (self._chosen, *self._above):  # those above count where training ends now
            all_of_them.merge(mean)
        return all_of_them.tensors or None

    def left_undone(self) -> str:
        if self._threshold is not None:
            return ""
        return "there was no start to average from, and the last weights were evaluated"

    _KEYS = ("epoch", "before", "threshold", "chosen", "above", "ended")

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch.state_dict(),
            "before": [[loss, mean.state_dict()] for loss, mean in self._before],
            "threshold": self._threshold,
            "chosen": self._chosen.state_dict(),
            "above": [mean.state_dict() for mean in self._above],
            "ended": self._ended,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        found = checked_keys("companion", saved, self._KEYS)
        before, above = (_listed(name, found[name]) for name in ("before", "above"))
        if len(before) > self._optimum or not all(map(_is_pair, before)):
            raise TypeError("companion: before must be losses and means")
        if not isinstance(found["threshold"], float | None) or not isinstance(found["ended"], bool):
            raise TypeError("companion: threshold must be a number or nothing, ended yes or no")
        self._before = [(loss, self._loaded(mean)) for loss, mean in before]
        self._above = [self._loaded(mean) for mean in above]
        self._epoch, self._chosen = self._loaded(found["epoch"]), self._loaded(found["chosen"])
        self._threshold, self._ended = found["threshold"], found["ended"]

    def _loaded(self, saved: object) -> Average:
        mean = _mean()
        mean.load_state_dict(saved, self._params, self._stage.total_steps)
        return mean


def _listed(name: str, saved: object) -> list[Any]:
    if not isinstance(saved, list):
        raise TypeError(f"companion: {name} must be a list")
    return cast("list[Any]", saved)


def _is_pair(pair: object) -> bool:
    several = cast("list[Any]", pair) if isinstance(pair, list) else []
    return len(several) == 2 and isinstance(several[0], float)
