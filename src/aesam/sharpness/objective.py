"""The mean loss over all samples as a function of the weights, and a model left as it was."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from aesam._core import tensors
from aesam._core.guards import Buffers, RandomState
from aesam.sharpness import inputs
from aesam.sharpness.inputs import Batches, Loss
from aesam.sharpness.progress import Telling, counted


@contextmanager
def measuring(
    what: str,
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    *,
    mode: str,
    progress: Telling,
    passes: int,
) -> Generator["Objective"]:
    """The loss, ready to be measured; ``passes`` is how often the batches are gone through.

    Afterwards, also after an error, the model and the random state are what they were.

    Args:
        model: the model to measure, where it stands.
        loss: ``loss(outputs, targets)``, the mean over samples.
        batches: gives ``(inputs, targets)`` and can be gone through again: a list, a DataLoader.
        mode: ``"eval"`` or ``"train"``, what BatchNorm and dropout do.
        progress: True shows a bar; a function is told ``(done, total)`` in batches.
        what: what the bar says.
        passes: how often the batches are gone through.
    """
    inputs.check(model, loss, batches, mode)
    # A compiled model has no second derivatives: measure what was compiled, which has its weights.
    plain = cast(nn.Module, getattr(model, "_orig_mod", model))
    flags = [(module, module.training) for module in model.modules()]
    with counted(progress, what, passes * inputs.length(batches)) as tick:
        objective = Objective(plain, loss, batches, tick)
        try:
            plain.train(mode == "train")
            with torch.inference_mode(False), torch.enable_grad():
                yield objective
        finally:
            objective.restore()
            plain.train(flags[0][1])
            for module, training in flags:
                module.training = training


class Objective:
    """``L(w + offset)``, its gradient and its Hessian, in vectors of all trainable parameters.

    Vectors are at least float32 and lie on the first parameter's device. Each pass over the batches
    starts from the same random state and each batch from the same buffers, so that dropout and
    BatchNorm cannot make two passes differ.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, batches: Batches, tick: Callable[[], None]
    ) -> None:
        named = inputs.trainable(model)
        self.names, self.params = [n for n, _ in named], [p for _, p in named]
        self.size = sum(p.numel() for p in self.params)
        self.device = self.params[0].device
        self.dtype = torch.float32
        for p in self.params:
            self.dtype = torch.promote_types(self.dtype, p.dtype)
        self._model, self._loss, self._batches, self._tick = model, loss, batches, tick
        self._buffers = Buffers(model.modules())
        self._random = RandomState({p.device for p in model.parameters()})
        self._start: list[Tensor] | None = None

    def value(self, offset: Tensor | None = None) -> float:
        """``L(w + offset)``."""
        self._move(offset)
        total, seen = 0.0, 0
        with torch.no_grad():
            for value, count in self._losses():
                total += count * value.item()
                seen += count
        return total / seen

    def value_and_gradient(self, offset: Tensor | None = None) -> tuple[float, Tensor]:
        """``L(w + offset)`` and its gradient there."""
        self._move(offset)
        total, seen, gradient = 0.0, 0, self.zeros()
        for value, part, count in self.batch_gradients():
            total += count * value
            seen += count
            gradient.add_(part, alpha=count)
        return total / seen, gradient.div_(seen)

    def batch_gradients(self) -> Iterator[tuple[float, Tensor, int]]:
        """Loss, gradient and number of samples of each batch, at the weights as they are."""
        for value, count in self._losses():
            inputs.check_depends(value)
            parts = torch.autograd.grad(value, self.params, materialize_grads=True)
            yield value.item(), self.flat(parts), count

    def hessian_product(self, vector: Tensor) -> Tensor:
        """The Hessian at ``w`` times a vector, by double backward."""
        pieces, total, seen = self.split(vector), self.zeros(), 0
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivatives
            for value, count in self._losses():
                total.add_(self._batch_product(value, pieces), alpha=count)
                seen += count
        if not bool(torch.isfinite(total).all()):
            raise FloatingPointError(
                "the Hessian is not finite at these weights: check the loss and the inputs for NaN"
            )
        return total.div_(seen)

    def _batch_product(self, value: Tensor, pieces: list[Tensor]) -> Tensor:
        inputs.check_depends(value)
        parts = torch.autograd.grad(value, self.params, create_graph=True, materialize_grads=True)
        slope = torch.stack(
            [(g * v).sum().to(self.device) for g, v in zip(parts, pieces, strict=True)]
        ).sum()
        if not slope.requires_grad:  # the loss is linear in the weights
            return self.zeros()
        return self.flat(torch.autograd.grad(slope, self.params, materialize_grads=True))

    def zeros(self) -> Tensor:
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def flat(self, parts: Iterable[Tensor]) -> Tensor:
        """One vector of a tensor for each parameter."""
        dense = [t.to_dense() if t.is_sparse else t for t in parts]
        return torch.cat(
            [t.detach().reshape(-1).to(device=self.device, dtype=self.dtype) for t in dense]
        )

    def split(self, vector: Tensor) -> list[Tensor]:
        """A tensor for each parameter, of one vector."""
        return [
            v.view(p.shape).to(device=p.device, dtype=p.dtype)
            for v, p in zip(self.pieces(vector), self.params, strict=True)
        ]

    def pieces(self, vector: Tensor) -> list[Tensor]:
        """The part of a vector that belongs to each parameter, still flat."""
        return list(torch.split(vector, [p.numel() for p in self.params]))

    def restore(self) -> None:
        self._move(None)
        self._buffers.restore()
        self._random.restore()

    def _move(self, offset: Tensor | None) -> None:
        """Put the weights at ``w + offset``, in place; without an offset at ``w``, to the bit."""
        if offset is None and self._start is None:
            return
        with torch.no_grad():
            if self._start is None:
                self._start = [p.detach().clone() for p in self.params]
            goal = self._start
            if offset is not None:
                goal = self.split(self.flat(self._start) + offset)
            tensors.assign(self.params, goal)

    def _losses(self) -> Iterator[tuple[Tensor, int]]:
        """The loss of each batch, in the caller's grad mode, and its number of samples."""
        self._random.restore()
        seen = 0
        for batch in self._batches:
            given, targets = inputs.pair(batch)
            seen += len(targets)
            outputs = self._model(inputs.moved(given, self.device))
            value = self._loss(outputs, inputs.moved(targets, self.device))
            inputs.check_scalar(value)
            yield value, len(targets)
            self._buffers.restore()
            self._tick()
        if seen == 0:
            raise ValueError("batches must hold at least one sample, got none")
