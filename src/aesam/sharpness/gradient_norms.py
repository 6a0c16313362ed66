"""Norms of stochastic gradients, their variance, and the gradient over all samples."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn import Module

from aesam._core import tensors
from aesam.sharpness import plots
from aesam.sharpness.inputs import Batches, Loss, Mode
from aesam.sharpness.objective import measuring
from aesam.sharpness.progress import Telling

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class GradientNorms:
    """``‖∇L(B; w)‖²`` of each batch B.

    Args:
        squared_norms: one for each batch.
        counts: how many samples each has.
    """

    squared_norms: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def mean(self) -> float:
        """The mean over batches, each counted by its samples."""
        pairs = zip(self.squared_norms, self.counts, strict=True)
        return sum(count * norm for norm, count in pairs) / sum(self.counts)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """A histogram, with the mean."""
        return plots.gradient_norms(self.squared_norms, {"mean": self.mean}, axes)


@dataclass(frozen=True)
class GradientVariance:
    """``Var = E‖∇L(B; w)‖² − ‖∇L(D; w)‖²`` (the paper's Eq. 3) and its two parts.

    Args:
        norms: of the batches' gradients, whose mean is the first part.
        full_squared_norm: ``‖∇L(D; w)‖²`` over all samples, the second.
    """

    norms: GradientNorms
    full_squared_norm: float

    @property
    def variance(self) -> float:
        """Never below 0, which only rounding could bring it to."""
        return max(0.0, self.norms.mean - self.full_squared_norm)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """A histogram of the batches' squared norms; the variance is the gap of the two lines."""
        lines = {"mean": self.norms.mean, "all samples": self.full_squared_norm}
        return plots.gradient_norms(self.norms.squared_norms, lines, axes)


@dataclass(frozen=True)
class FullGradient:
    """``‖∇L(D; w)‖`` over all samples, and the part of each parameter.

    Args:
        norm: of the whole gradient.
        names: of the trainable parameters.
        norms: the norm of each one's part.
    """

    norm: float
    names: tuple[str, ...]
    norms: tuple[float, ...]

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """A bar for each parameter."""
        return plots.full_gradient(self.names, self.norms, self.norm, axes)


def squared_gradient_norms(
    model: Module, loss: Loss, batches: Batches, *, mode: Mode = "eval", progress: Telling = False
) -> GradientNorms:
    """The squared norm of the stochastic gradient of each batch.

    Args:
        model: what is measured.
        loss: of ``(outputs, targets)``, the mean over samples.
        batches: of ``(inputs, targets)``; each gives one norm.
        mode: ``"eval"`` (the default) or ``"train"``: which the model is in.
        progress: True for a bar, a function of ``(done, total)``, or False, the default.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> batches = [(torch.ones(3, 1), torch.zeros(3, 1)), (torch.ones(1, 1), torch.ones(1, 1))]
    >>> found = squared_gradient_norms(model, torch.nn.functional.mse_loss, batches)
    >>> found.squared_norms, found.mean
    ((4.0, 0.0), 3.0)
    """
    with measuring(
        "gradient norms", model, loss, batches, mode=mode, progress=progress, passes=1
    ) as objective:
        found = [(tensors.norm_on_host([g]) ** 2, n) for _, g, n in objective.batch_gradients()]
    return GradientNorms(tuple(x for x, _ in found), tuple(n for _, n in found))


def gradient_variance(
    model: Module, loss: Loss, batches: Batches, *, mode: Mode = "eval", progress: Telling = False
) -> GradientVariance:
    """The variance of stochastic gradients around the gradient over all samples (Eq. 3).

    0 where all batches agree; the larger, the less one batch says about the others.

    Args:
        model: what is measured.
        loss: of ``(outputs, targets)``, the mean over samples.
        batches: of ``(inputs, targets)``; the variance is between them, so their size matters.
        mode: ``"eval"`` or ``"train"``, in which each batch has its own BatchNorm statistics and
            dropout; ``"eval"`` by default.
        progress: True for a bar, a function of ``(done, total)``, or False, the default.

    >>> import torch
    >>> batches = [(torch.ones(3, 1), torch.zeros(3, 1)), (torch.ones(1, 1), torch.ones(1, 1))]
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> gradient_variance(model, torch.nn.functional.mse_loss, batches).variance
    0.75
    """
    with measuring(
        "gradient variance", model, loss, batches, mode=mode, progress=progress, passes=1
    ) as objective:
        total, squares, counts = objective.zeros(), list[float](), list[int]()
        for _, gradient, count in objective.batch_gradients():
            total.add_(gradient, alpha=count)
            squares.append(tensors.norm_on_host([gradient]) ** 2)
            counts.append(count)
        full = tensors.norm_on_host([total.div_(sum(counts))]) ** 2
    return GradientVariance(GradientNorms(tuple(squares), tuple(counts)), full)


def full_gradient_norm(
    model: Module, loss: Loss, batches: Batches, *, mode: Mode = "eval", progress: Telling = False
) -> FullGradient:
    """The norm of the gradient over all samples.

    Args:
        model: what is measured.
        loss: of ``(outputs, targets)``, averaged over samples.
        batches: of ``(inputs, targets)``, all samples in batches of any size.
        mode: ``"eval"`` (the default) or ``"train"``: which the model is in.
        progress: True for a bar, a function of ``(done, total)``, or False, the default.

    >>> import torch
    >>> model, mse = torch.nn.Linear(2, 1, bias=False), torch.nn.functional.mse_loss
    >>> batches = [(torch.eye(2), torch.tensor([[3.0], [4.0]]))]
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> full_gradient_norm(model, mse, batches).norm
    5.0
    """
    with measuring(
        "full gradient", model, loss, batches, mode=mode, progress=progress, passes=1
    ) as objective:
        _, gradient = objective.value_and_gradient()
        parts = tensors.norms(objective.pieces(gradient))
    return FullGradient(tensors.norm_on_host([gradient]), tuple(objective.names), tuple(parts))
