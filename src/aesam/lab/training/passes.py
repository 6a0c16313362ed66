"""One optimizer step of training: the passes over the micro-batches of a batch."""

# pyright: reportMissingTypeStubs=false
# accelerate carries no types.

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from torch.nn.functional import cross_entropy

from aesam.lab.companions.companion import Companion
from aesam.lab.config import Training
from aesam.lab.data.sets import inputs_as
from aesam.lab.training.engine import Engine

MicroBatch = tuple[Tensor, Tensor]
_OWN_BACKWARD = (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


class Passes:
    """Takes steps; sums of loss and correct answers stay on the device."""

    def __init__(
        self, engine: Engine, training: Training, companion: Companion | None = None
    ) -> None:
        self._engine = engine
        self._training = training
        self._companion = companion or Companion()
        self._rows: Sequence[Tensor] = ()  # of each micro-batch, where the companion adds a term
        self._selects_rows = engine.opt.parts.samples.selects_rows
        self._samples = engine.opt.parts.samples
        self._on_xla = engine.accelerator.device.type == "xla"
        self._plain_backward = engine.accelerator.distributed_type not in _OWN_BACKWARD

    def step(
        self, inputs: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """One optimizer step on this process's rows: mean loss at ``w``, and correct answers.

        A row has one label, or one at each of its places: then its loss is their mean. ``rows`` are
        the samples' places in the training set, for companions that add a term to the loss.
        """
        if rows is not None and self._companion.adds_term:
            self._rows = rows.chunk(self._training.accumulate)
        engine, opt = self._engine, self._engine.opt
        parts = self._micro_batches(inputs_as(inputs, engine.dtype), labels)
        opt.zero_grad()
        seen = None
        if self._samples.looks_first:
            parts, seen = self._look(*parts[0])
        if self._samples.splits > 1:  # each at a place of its own
            loss, correct, losses = self._first(parts, opt.first_pass)
        else:
            with opt.first_pass():
                loss, correct, losses = self._first(parts)
        scaler = engine.accelerator.scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        if opt.needs_second_pass(grad_scale=scale, losses=losses, loss=loss):
            with opt.perturbed() as at:
                self._second(parts, at)
        if self._training.clip is not None:
            engine.accelerator.clip_grad_norm_(engine.net.parameters(), self._training.clip)
        self._apply()
        engine.scheduler.step()
        return (loss, correct) if seen is None else seen

    def _apply(self) -> None:
        """Accelerate's step looks for packages on every call: only a scaler or XLA needs it."""
        engine = self._engine
        if engine.accelerator.scaler is None and not self._on_xla:
            engine.opt.step()
        else:
            engine.prepared.step()

    def _micro_batches(self, inputs: Tensor, labels: Tensor) -> list[MicroBatch]:
        count, splits = self._training.accumulate, self._samples.splits
        if splits > 1:
            return [(inputs[i::splits], labels[i::splits]) for i in range(splits)]
        if count == 1:
            return [(inputs, labels)]
        return list(zip(inputs.chunk(count), labels.chunk(count), strict=True))

    @torch.no_grad()
    def _look(self, x: Tensor, y: Tensor) -> tuple[list[MicroBatch], tuple[Tensor, Tensor]]:
        """The rows that the method chooses by their losses; loss and correct answers of all."""
        logits = self._engine.model(x)
        losses = self._each(logits, y)
        rows = self._samples.rows_at_first(losses)
        return [(x[rows], y[rows])], (losses.mean(), (logits.argmax(1) == y).sum())

    def _first(
        self,
        parts: list[MicroBatch],
        place: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        loss = correct = losses = None
        for i, (x, y) in enumerate(parts):
            rows = self._samples.first_rows or slice(None)
            with place(), self._synchronised(i, parts):
                logits = self._engine.model(x[rows])
                part, losses = self._loss(logits, y[rows])
                if self._rows:
                    part = part + self._companion.term(logits, self._rows[i])
                self._backward(part / len(parts) if len(parts) > 1 else part)
            right = (logits.detach().argmax(1) == y[rows]).sum()
            if len(logits) < len(y):
                right = right * (len(y) / len(logits))  # as if the others were right as often
            loss = part.detach() if loss is None else loss + part.detach()
            correct = right if correct is None else correct + right
        if loss is None or correct is None:
            raise ValueError("a batch without samples")
        return loss / len(parts) if len(parts) > 1 else loss, correct, losses

    def _second(self, parts: list[MicroBatch], at: Any) -> None:
        loss: Tensor | None = None
        for i, (x, y) in enumerate(parts):
            rows: Any = slice(None)
            if self._selects_rows:
                rows = at.rows(lambda x=x, y=y: self._each(self._engine.model(x), y))
            with self._synchronised(i, parts):
                part, _ = self._loss(self._engine.model(x[rows]), y[rows])
                self._backward(part / len(parts) if len(parts) > 1 else part)
            loss = part.detach() if loss is None else loss + part.detach()
        if loss is not None:
            at.loss = loss / len(parts) if len(parts) > 1 else loss

    def _backward(self, loss: Tensor) -> None:
        """Accelerate's divides by 1, which costs an operation in both directions."""
        accelerator = self._engine.accelerator
        if self._plain_backward and accelerator.scaler is None:
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
        else:
            accelerator.backward(loss)

    def _loss(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        if self._selects_rows:
            losses = self._each(logits, labels)
            return losses.mean(), losses
        smoothing = self._training.label_smoothing
        return cross_entropy(logits, labels, label_smoothing=smoothing), None

    def _each(self, logits: Tensor, labels: Tensor) -> Tensor:
        smoothing = self._training.label_smoothing
        losses = cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return losses if losses.dim() == 1 else losses.flatten(1).mean(1)

    def _synchronised(self, i: int, parts: list[MicroBatch]) -> Any:
        """Gradients travel between processes with the last micro-batch of a pass only."""
        if i == len(parts) - 1:
            return nullcontext()
        return self._engine.accelerator.no_sync(self._engine.model)


@torch.no_grad()
def evaluate(engine: Engine, chunks: Any) -> tuple[float, float]:
    """Mean loss and accuracy in percent; each label counts once, over all processes."""
    engine.model.eval()
    total = torch.zeros(3, dtype=torch.float64, device=engine.accelerator.device)
    for inputs, labels in chunks:
        logits = engine.model(inputs_as(inputs, engine.dtype))
        loss = cross_entropy(logits, labels, reduction="sum")
        right = (logits.argmax(1) == labels).sum()
        total[0] += loss
        total[1] += right
        total[2] += labels.numel()
    engine.model.train()
    loss, right, count = engine.accelerator.reduce(total, reduction="sum").tolist()
    return loss / count, 100.0 * right / count
