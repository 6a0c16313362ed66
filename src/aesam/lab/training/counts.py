"""How far a run has come: everything of it that is neither model nor optimizer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

import torch
from torch import Tensor

from aesam.lab import second_gradients
from aesam.lab.files import is_number

#: Steps of an epoch whose decision is kept, evenly spaced.
TRACE_POINTS = 50


def _empty_trace() -> dict[str, list[Any]]:
    return {name: [] for name in ("step", "squared_norm", "mean", "threshold", "used_sam")}


@dataclass
class Counts:
    """Counts of the whole run, and sums of the epoch under way."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    sam_steps: int = 0
    seconds: float = 0.0
    metrics: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    epoch_sam: int = 0
    trace: dict[str, list[Any]] = field(default_factory=_empty_trace)
    second_seconds: float = 0.0
    seen: dict[str, list[float]] = field(default_factory=second_gradients.nothing_seen)

    @property
    def percent_sam(self) -> float:
        return 100.0 * self.sam_steps / self.step if self.step else 0.0

    @property
    def gradients(self) -> int:
        return self.step + self.sam_steps

    def count(self, record: Any, steps_per_epoch: int) -> None:
        """One more step; ``record`` is the optimizer's, None where the update was skipped."""
        used = bool(record is not None and record.used_sam)
        every = max(1, -(-steps_per_epoch // TRACE_POINTS))
        if record is not None and self.batch % every == 0:
            self.trace["step"].append(self.step)
            for name in ("squared_norm", "mean", "threshold", "used_sam"):
                self.trace[name].append(getattr(record, name))
        if record is not None and used:
            second_gradients.note(self.seen, record)
            self.second_seconds += record.seconds or 0.0
        self.step += 1
        self.batch += 1
        self.sam_steps += used
        self.epoch_sam += used

    def close_epoch(self, lr: float, measured: dict[str, Any]) -> dict[str, Any]:
        """The line of metrics for the epoch that ends, and a fresh start for the next."""
        line: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "lr": lr,
            **measured,
            "percent_sam": self.percent_sam,
            "percent_sam_epoch": 100.0 * self.epoch_sam / self.batch,
            "gradients": self.gradients,
            "seconds": self.seconds,
            **second_gradients.of_epoch(self.seen),
            **self._time(),
            "trace": self.trace,
        }
        self.metrics.append(line)
        self.epoch += 1
        self.batch = self.epoch_sam = 0
        self.trace, self.seen = _empty_trace(), second_gradients.nothing_seen()
        return line

    def _time(self) -> dict[str, float]:
        """The share of second passes in the time so far, which both took on the host."""
        if not (self.second_seconds and self.seconds):
            return {}
        return {"percent_time": min(100.0, 100.0 * self.second_seconds / self.seconds)}

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any], steps_per_epoch: int) -> "Counts":
        """What :meth:`as_dict` gave, if it can be of a run with so many steps in an epoch."""
        names = {each.name for each in fields(cls)}
        if not names - _LATER <= saved.keys() <= names:
            raise TypeError(f"progress: must have {', '.join(each.name for each in fields(cls))}")
        counts = cls(**saved)
        for name in _COUNTED:
            if not _is_count(getattr(counts, name)):
                raise TypeError(
                    f"progress: {name} must be a count, got {getattr(counts, name)!r:.80}"
                )
        if counts.step != counts.epoch * steps_per_epoch + counts.batch:
            raise ValueError(f"progress: step {counts.step} is not of epoch {counts.epoch}")
        if not counts.epoch_sam <= counts.batch <= steps_per_epoch:
            raise ValueError(f"progress: an epoch has no batch {counts.batch}")
        times = (counts.seconds, counts.second_seconds)
        if not counts.epoch_sam <= counts.sam_steps <= counts.step or not all(
            map(_is_seconds, times)
        ):
            raise ValueError("progress: counts that no run can have")
        _check_trace(counts.trace)
        second_gradients.check_seen(counts.seen)
        _check_lines(counts.metrics, counts.epoch, steps_per_epoch)
        return counts


_LATER = {"second_seconds", "seen"}  # checkpoints of before lack them
_COUNTED = ("epoch", "batch", "step", "sam_steps", "epoch_sam")
_LINE = ("lr", "train_loss", "train_accuracy", "percent_sam", "percent_sam_epoch", "gradients",
         "seconds")  # fmt: skip


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_seconds(value: object) -> bool:
    return isinstance(value, float) and 0.0 <= value < float("inf")


def _check_trace(trace: object) -> None:
    """As many of each series, all of them plain numbers, switches or nothing."""
    if not isinstance(trace, dict) or trace.keys() != _empty_trace().keys():  # pyright: ignore
        raise TypeError("progress: a trace lacks a series")
    series = list(cast("dict[str, Any]", trace).values())
    if not all(isinstance(each, list) for each in series) or len({len(s) for s in series}) > 1:
        raise TypeError("progress: a trace has series of unequal length")
    if not all(v is None or isinstance(v, bool | int | float) for each in series for v in each):
        raise TypeError("progress: a trace holds what is no number")


def _check_lines(lines: object, epochs: int, steps_per_epoch: int) -> None:
    if not isinstance(lines, list) or len(cast("list[Any]", lines)) != epochs:
        raise TypeError(f"progress: there must be a line of metrics for each of {epochs} epochs")
    for number, line in enumerate(cast("list[Any]", lines), 1):
        if not isinstance(line, dict):
            raise TypeError(f"progress: the metrics of epoch {number} are no numbers by name")
        own = cast("dict[str, Any]", line)
        if (own.get("epoch"), own.get("step")) != (number, number * steps_per_epoch):
            raise ValueError(f"progress: the metrics of epoch {number} are of another")
        wrong = [name for name in {*_LINE, *own} if not _can_be(name, own.get(name))]
        if wrong:
            raise ValueError(f"progress: the metrics of epoch {number} cannot have this {wrong[0]}")
        _check_trace(own.get("trace"))


def _can_be(name: str, value: Any) -> bool:
    """Whether a line of metrics may have this value; losses may be lost."""
    of_second_gradients = second_gradients.can_be(name, value)
    if of_second_gradients is not None:
        return of_second_gradients
    if name == "trace":
        return isinstance(value, dict)
    if name == "norms":
        return isinstance(value, list) and all(map(is_number, cast("list[Any]", value)))
    if name.startswith("percent_") or name.endswith("_accuracy"):
        return is_number(value) and 0.0 <= value <= 100.0
    return is_number(value) and not value < 0.0


class Sums:
    """Loss and correct answers of this process in the epoch under way, left on the device."""

    def __init__(self, device: torch.device, start: Sequence[float] = (0.0, 0.0, 0.0, 0.0)) -> None:
        if not (len(start) == 4 and all(map(is_number, start))) or not 0 <= start[1] <= start[2]:
            raise TypeError("sums: must be loss, correct ones of all, and batches")
        self._loss, self._correct = torch.tensor(start[:2], dtype=torch.float64, device=device)
        self._seen, self._batches = start[2:]

    def add(self, loss: Tensor, correct: Tensor, count: int) -> None:
        self._loss += loss
        self._correct += correct
        self._seen += count
        self._batches += 1

    @property
    def batches(self) -> float:
        return self._batches

    def as_list(self) -> list[float]:
        return [self._loss.item(), self._correct.item(), self._seen, self._batches]

    def over_all(self, accelerator: Any) -> tuple[float, float]:
        """Mean loss of the batches and accuracy in percent, over all processes."""
        own = torch.tensor(self.as_list(), dtype=torch.float64, device=accelerator.device)
        every: list[float] = accelerator.reduce(own, reduction="sum").tolist()
        loss, correct, seen, batches = every
        return loss / batches, 100.0 * correct / seen
