"""How far a run has come: everything of it that is neither model nor optimizer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

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
            "trace": self.trace,
        }
        self.metrics.append(line)
        self.epoch += 1
        self.batch = self.epoch_sam = 0
        self.trace = _empty_trace()
        return line

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Sums:
    """Loss and correct answers of this process in the epoch under way, left on the device."""

    def __init__(self, device: torch.device, start: Sequence[float] = (0.0, 0.0, 0.0, 0.0)) -> None:
        self._loss, self._correct = torch.tensor(start[:2], dtype=torch.float64, device=device)
        self._seen, self._batches = start[2:]

    def add(self, loss: Tensor, correct: Tensor, count: int) -> None:
        self._loss += loss
        self._correct += correct
        self._seen += count
        self._batches += 1

    def as_list(self) -> list[float]:
        return [self._loss.item(), self._correct.item(), self._seen, self._batches]

    def over_all(self, accelerator: Any) -> tuple[float, float]:
        """Mean loss of the batches and accuracy in percent, over all processes."""
        own = torch.tensor(self.as_list(), dtype=torch.float64, device=accelerator.device)
        every: list[float] = accelerator.reduce(own, reduction="sum").tolist()
        loss, correct, seen, batches = every
        return loss / batches, 100.0 * correct / seen
