"""The Hessian of the loss over all samples: its largest eigenvalues and its trace."""

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import Module

from aesam.parts import checks
from aesam.sharpness import lanczos, plots, random_vectors
from aesam.sharpness.inputs import Batches, Loss, Mode
from aesam.sharpness.objective import measuring
from aesam.sharpness.progress import Telling

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class HessianEigenvalues:
    """Eigenvalues, largest first; each is off by at most its residual.

    Args:
        values: the eigenvalues.
        residuals: of each.
        steps: how many products with the Hessian were taken.
        converged: whether all residuals are within the tolerance.
    """

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    steps: int
    converged: bool

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """A stem for each eigenvalue, with its residual as a bar."""
        return plots.eigenvalues(self.values, self.residuals, axes)


@dataclass(frozen=True)
class HessianTrace:
    """Independent estimates of the trace.

    Args:
        estimates: one for each random vector.
    """

    estimates: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The estimate of the trace."""
        return statistics.fmean(self.estimates)

    @property
    def standard_error(self) -> float:
        """Of the mean."""
        return statistics.stdev(self.estimates) / math.sqrt(len(self.estimates))

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """The mean of the first estimates against their number, with its standard error."""
        return plots.trace(self.estimates, axes)


def hessian_eigenvalues(
    model: Module,
    loss: Loss,
    batches: Batches,
    *,
    k: int = 1,
    tolerance: float = 1e-4,
    steps: int = 100,
    seed: int = 0,
    mode: Mode = "eval",
    progress: Telling = False,
) -> HessianEigenvalues:
    """The ``k`` largest eigenvalues, by Lanczos' method with full reorthogonalisation.

    It takes at most ``steps`` products with the Hessian, each a double backward over all batches,
    and stops earlier once the residuals are below ``tolerance`` times the largest eigenvalue's
    size. It keeps a vector of all weights for each step. An eigenvalue shared by several
    eigenvectors is sure to count as often only where the model has no more than ``steps`` weights
    or the method exhausts its subspace.

    Args:
        model: what is measured.
        loss: of ``(outputs, targets)``, the mean over samples; twice differentiable.
        batches: of ``(inputs, targets)``, all samples in batches of any size.
        k: how many eigenvalues, at least 1, the default.
        tolerance: of the residuals, relative to the largest eigenvalue, above 0; 1e-4 by default.
        steps: most products with the Hessian, at least ``k``; 100 by default.
        seed: of the vector to start from, a whole number from 0, the default.
        mode: ``"eval"`` (the default) or ``"train"``: which the model is in.
        progress: True for a bar, a function of ``(done, total)``, or False, the default.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> batches = [(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))]
    >>> found = hessian_eigenvalues(model, torch.nn.functional.mse_loss, batches, k=2)
    >>> [round(value, 4) for value in found.values], found.converged
    ([4.0, 1.0], True)
    """
    k, steps = checks.whole("k", k, least=1), checks.whole("steps", steps, least=1)
    tolerance = checks.positive("tolerance", tolerance)
    generator = random_vectors.generator_of(seed)
    with measuring(
        "Hessian eigenvalues", model, loss, batches, mode=mode, progress=progress, passes=steps
    ) as objective:
        _check_k(k, steps, objective.size)
        found = lanczos.largest(
            objective.hessian_product,
            lambda: random_vectors.normal(objective.zeros(), generator),
            dimension=objective.size,
            k=k,
            steps=steps,
            tolerance=tolerance,
        )
    return HessianEigenvalues(
        tuple(found.values), tuple(found.residuals), found.steps, found.converged
    )


def hessian_trace(
    model: Module,
    loss: Loss,
    batches: Batches,
    *,
    samples: int = 100,
    seed: int = 0,
    mode: Mode = "eval",
    progress: Telling = False,
) -> HessianTrace:
    """The trace, by Hutchinson's method: the mean of ``zᵀHz`` over vectors z of random signs.

    Args:
        model: what is measured.
        loss: of ``(outputs, targets)``, the mean over samples; twice differentiable.
        batches: of ``(inputs, targets)``, all samples in batches of any size.
        samples: vectors, at least 2; 100 by default.
        seed: of the signs, a whole number from 0, the default.
        mode: ``"eval"`` (the default) or ``"train"``: which the model is in.
        progress: True for a bar, a function of ``(done, total)``, or False, the default.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> batches = [(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))]
    >>> found = hessian_trace(model, torch.nn.functional.mse_loss, batches, samples=4)
    >>> found.mean, found.standard_error  # exact, since this Hessian is diagonal
    (5.0, 0.0)
    """
    samples = checks.whole("samples", samples, least=2)
    generator = random_vectors.generator_of(seed)
    with measuring(
        "Hessian trace", model, loss, batches, mode=mode, progress=progress, passes=samples
    ) as objective:
        estimates: list[float] = []
        for _ in range(samples):
            vector = random_vectors.signs(objective.zeros(), generator)
            estimates.append(float(torch.dot(vector, objective.hessian_product(vector))))
    return HessianTrace(tuple(estimates))


def _check_k(k: int, steps: int, size: int) -> None:
    if k > size:
        raise ValueError(f"k must be at most the {size} trainable weights of the model, got {k}")
    if k > steps:
        raise ValueError(f"steps must be at least k = {k}, got {steps}")
