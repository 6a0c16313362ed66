"""SAF: outputs are held near those that the same samples had some epochs ago."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aesam.lab.companions.companion import Companion, Stage, checked_count, checked_keys
from aesam.parts import checks
from aesam.parts.trajectory import trajectory_loss


class EarlierOutputs(Companion):
    """SAF: outputs are held near those of the same samples some epochs ago.

    ``λ τ² KL(p_past ‖ p_now)``, the mean over the rows of a batch, is added to the loss, with ``p =
    softmax(logits / τ)`` and no gradient to the past. A sample that was left over in that epoch has
    no past and adds nothing. The outputs of all training samples in this epoch and in the E before
    it are kept, in the checkpoint too.

    Args:
        weight: λ, at least 0.
        temperature: τ, above 0.
        epochs_back: E, at least 1.
        wait_epochs: epochs before the term is added, at least 0.

    >>> usual = {"weight": 0.3, "temperature": 5.0, "epochs_back": 3, "wait_epochs": 5}
    >>> EarlierOutputs(**usual).adds_term
    True
    """

    adds_term = True

    def __init__(
        self, *, weight: float, temperature: float, epochs_back: int, wait_epochs: int
    ) -> None:
        self._weight = checks.at_least_zero("weight", weight)
        self._temperature = checks.positive("temperature", temperature)
        self._back = checks.whole("epochs_back", epochs_back, 1)
        self._wait = checks.whole("wait_epochs", wait_epochs, 0)
        self._epoch = 0
        self._kept: Tensor | None = None  # by epoch (one after the other in turn) and sample

    def begin(self, stage: Stage) -> None:
        self._stage = stage

    def after_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if self._kept is not None:
            self._kept[self._slot(epoch)] = torch.nan  # that of the oldest is this epoch's now

    def _slot(self, epoch: int) -> int:
        return epoch % (self._back + 1)

    def term(self, logits: Tensor, rows: Tensor) -> Tensor:
        kept, rows = self._kept_like(logits), rows.to(logits.device)
        past = kept[self._slot(self._epoch - self._back)].index_select(0, rows)
        gather = self._stage.gather
        kept[self._slot(self._epoch)].index_copy_(0, gather(rows), gather(logits.detach()))
        if self._epoch < self._wait:
            return logits.new_zeros(())
        known = past.isfinite().flatten(1).all(1)
        known = known.view(-1, *[1] * (past.dim() - 1))
        return self._difference(logits, torch.where(known, past, logits.detach()))

    def _kept_like(self, logits: Tensor) -> Tensor:
        if self._kept is None:
            shape = (self._back + 1, self._stage.samples, *logits.shape[1:])
            self._kept = logits.new_full(shape, torch.nan)
        self._kept = self._kept.to(logits.device)
        return self._kept

    def _difference(self, now: Tensor, past: Tensor) -> Tensor:
        """The mean over rows, and over the places of a row that has several."""
        here, there = (t.movedim(1, -1).flatten(0, -2) for t in (now, past))
        return self._weight * trajectory_loss(here, there, self._temperature)

    def left_undone(self) -> str:
        first = max(self._wait, self._back)
        if self._epoch > first:
            return ""
        return f"no outputs were compared, since that begins after epoch {first}: trained as ERM"

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "kept": self._kept}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        found = checked_keys("companion", saved, ("epoch", "kept"))
        most = self._stage.total_steps // self._stage.steps_per_epoch
        epoch, kept = checked_count("companion: epoch", found["epoch"], most), found["kept"]
        if kept is not None:
            due = (self._back + 1, self._stage.samples)
            is_tensor = isinstance(kept, Tensor) and kept.is_floating_point()
            if not is_tensor or kept.dim() < 3 or kept.shape[:2] != due:
                raise TypeError(f"companion: kept must be outputs of {due[1]} samples")
        self._epoch, self._kept = epoch, kept
