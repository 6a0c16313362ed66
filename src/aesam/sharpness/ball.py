"""How much the loss rises in a ball around the weights: on average, and at worst."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module

from aesam._core import tensors
from aesam.parts import checks
from aesam.sharpness import plots, random_vectors
from aesam.sharpness.inputs import Batches, Loss, Mode
from aesam.sharpness.objective import Objective, measuring
from aesam.sharpness.progress import Telling

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Sharpness:
    """By how much the loss rises above ``loss`` within each radius.

    Args:
        kind: ``"average"`` or ``"worst-case"``.
        loss: ``L(w)``.
        radii: of the balls, from small to large.
        values: the rise within each.
        standard_errors: of the values; None where nothing was drawn.
    """

    kind: str
    loss: float
    radii: tuple[float, ...]
    values: tuple[float, ...]
    standard_errors: tuple[float, ...] | None

    @property
    def value(self) -> float:
        """At the largest radius."""
        return self.values[-1]

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Sharpness against radius, with standard errors where there are any."""
        return plots.sharpness(self.kind, self.radii, self.values, self.standard_errors, axes)


def average_sharpness(
    model: Module,
    loss: Loss,
    batches: Batches,
    *,
    rho: float | Sequence[float] = 0.05,
    samples: int = 20,
    seed: int = 0,
    mode: Mode = "eval",
    progress: Telling = False,
) -> Sharpness:
    """``E L(w + δ) − L(w)`` for δ uniform in the l2 ball of radius ``rho``, or of several radii.

    Each of the ``samples`` is the mean of the loss at ``w + δ`` and ``w − δ``, which takes the
    slope out of the noise. On a quadratic loss of n weights it is ``ρ² tr(H) / (2 (n + 2))``.

    Args:
        model: what is measured.
        loss: of ``(outputs, targets)``, the mean over samples.
        batches: of ``(inputs, targets)``, all samples in batches of any size.
        rho: radius of the ball, above 0, or several from small to large; 0.05 by default.
        samples: pairs of random points, at least 2; 20 by default.
        seed: of the points, a whole number from 0, the default.
        mode: ``"eval"`` (the default) or ``"train"``: which the model is in.
        progress: True for a bar, a function of ``(done, total)``, or False, the default.

    >>> model, mse = torch.nn.Linear(1, 1, bias=False).double(), torch.nn.functional.mse_loss
    >>> batches = [(torch.ones(1, 1).double(), torch.zeros(1, 1).double())]
    >>> found = average_sharpness(model, mse, batches, rho=0.3, samples=400)
    >>> abs(found.value - 0.3**2 / 3) < 3 * found.standard_errors[-1]
    True
    """
    radii, samples = _radii(rho), checks.whole("samples", samples, least=2)
    generator, passes = random_vectors.generator_of(seed), 1 + 2 * samples * len(radii)
    with measuring(
        "average sharpness", model, loss, batches, mode=mode, progress=progress, passes=passes
    ) as objective:
        base = objective.value()
        rises: list[list[float]] = []
        for _ in range(samples):
            point = random_vectors.in_unit_ball(objective.zeros(), generator)
            rises.append([_mean_of_both(objective, point * radius) - base for radius in radii])
    columns = list(zip(*rises, strict=True))
    errors = [_spread(column) / math.sqrt(samples) for column in columns]
    means = tuple(map(statistics.fmean, columns))
    return Sharpness("average", base, radii, means, tuple(errors))


def _spread(values: Sequence[float]) -> float:
    """Their standard deviation; not a number where one is infinite."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def _mean_of_both(objective: Objective, offset: Tensor) -> float:
    return (objective.value(offset) + objective.value(-offset)) / 2.0


def worst_case_sharpness(
    model: Module,
    loss: Loss,
    batches: Batches,
    *,
    steps: int = 20,
    rho: float | Sequence[float] = 0.05,
    seed: int = 0,
    mode: Mode = "eval",
    progress: Telling = False,
) -> Sharpness:
    """``max L(w + δ) − L(w)`` over the l2 ball of radius ``rho``, or of several radii.

    Projected gradient ascent, so what is found is a lower bound: never below 0, and never falling
    with the radius, since each starts at the best of the one before. The step grows where the loss
    rises by half of what the slope promises and shrinks where it does not; either way it takes one
    gradient over all batches.

    Args:
        model: what is measured.
        loss: of ``(outputs, targets)``, the mean over samples.
        batches: of ``(inputs, targets)``, all samples in batches of any size.
        steps: of the ascent within each radius, at least 1; 20 by default.
        rho: radius of the ball, above 0, or several from small to large; 0.05 by default.
        seed: of a random start where the gradient is zero, a whole number from 0, the default.
        mode: ``"eval"`` (the default) or ``"train"``: which the model is in.
        progress: True for a bar, a function of ``(done, total)``, or False, the default.

    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> batches = [(torch.ones(1, 1), torch.zeros(1, 1))]
    >>> found = worst_case_sharpness(model, torch.nn.functional.mse_loss, batches, rho=(0.5, 1.0))
    >>> found.values  # 1.5² − 1 and 2² − 1
    (1.25, 3.0)
    """
    radii, steps = _radii(rho), checks.whole("steps", steps, least=1)
    generator, passes = random_vectors.generator_of(seed), 2 + steps * len(radii)
    with measuring(
        "worst-case sharpness", model, loss, batches, mode=mode, progress=progress, passes=passes
    ) as objective:
        point = _at(objective, objective.zeros())
        base, found = point.value, list[float]()
        if tensors.norm_on_host([point.gradient]) == 0.0:  # no way is up: start anywhere
            point = _at(
                objective, random_vectors.in_unit_ball(objective.zeros(), generator) * radii[0]
            )
        for radius in radii:
            point = _climb(objective, point, radius, steps)
            found.append(max(0.0, point.value - base))
    return Sharpness("worst-case", base, radii, tuple(found), None)


@dataclass(frozen=True)
class _Point:
    offset: Tensor
    value: float
    gradient: Tensor


def _at(objective: Objective, offset: Tensor) -> _Point:
    return _Point(offset, *objective.value_and_gradient(offset))


def _climb(objective: Objective, start: _Point, radius: float, steps: int) -> _Point:
    """The highest point of the ball that projected gradient ascent meets from ``start`` on."""
    here, best, step = start, start, radius
    for _ in range(steps):
        norm = tensors.norm_on_host([here.gradient])
        if norm == 0.0:  # the top
            break
        offset = _projected(here.offset + here.gradient * (step / norm), radius)
        there = _at(objective, offset)
        best = max(best, there, key=lambda point: point.value)
        promised = float(torch.dot(here.gradient, there.offset - here.offset))
        if there.value - here.value >= promised / 2.0:
            here, step = there, 2.0 * step
        else:
            step /= 4.0
    return best


def _projected(offset: Tensor, radius: float) -> Tensor:
    norm = tensors.norm_on_host([offset])
    return offset * (radius / norm) if norm > radius else offset


def _radii(rho: object) -> tuple[float, ...]:
    """One radius or several, from small to large."""
    if not isinstance(rho, Sequence) or isinstance(rho, str):
        return (checks.positive("rho", rho),)
    radii = tuple(checks.positive("rho", radius) for radius in rho)  # pyright: ignore
    if not radii or list(radii) != sorted(set(radii)):
        raise ValueError(f"rho must be a radius or several, from small to large, got {rho!r}")
    return radii
