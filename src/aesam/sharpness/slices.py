"""The loss along a line and over a plane through the weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from aesam.parts import checks
from aesam.sharpness import directions, plots, random_vectors
from aesam.sharpness.inputs import Batches, Loss, Mode
from aesam.sharpness.objective import measuring
from aesam.sharpness.progress import Telling

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What one step along a direction is, for the axes of figures.
FILTER, GIVEN = "filter norms", "lengths of the direction"


@dataclass(frozen=True)
class Slice1D:
    """``L(w + a·d)`` at each position a.

    Args:
        positions: the values of a.
        losses: one for each.
        unit: how long d is, in words.
    """

    positions: tuple[float, ...]
    losses: tuple[float, ...]
    unit: str

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """The loss as a line."""
        return plots.line(self.positions, self.losses, self.unit, axes)


@dataclass(frozen=True)
class Slice2D:
    """``L(w + a·d + b·e)`` at each pair of positions a and b.

    Args:
        xs: the values of a.
        ys: the values of b.
        losses: a row for each b, with one for each a.
        unit: how long d and e are, in words.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    unit: str

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Contours of the loss."""
        return plots.contours(self.xs, self.ys, self.losses, self.unit, axes)


def slice_1d(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    *,
    direction: Sequence[Tensor] | None = None,
    span: float = 1.0,
    points: int = 21,
    seed: int = 0,
    mode: Mode = "eval",
    progress: Telling = False,
) -> Slice1D:
    """The loss at ``points`` places from ``w − span·d`` to ``w + span·d``.

    Without a direction d is random and filter-normalised. An odd number of points has ``w`` itself
    among them.

    Args:
        model: what is measured.
        loss: of ``(outputs, targets)``, the mean over samples.
        batches: of ``(inputs, targets)``, all samples in batches of any size.
        direction: a tensor for each trainable parameter, taken as it is; None, the default, draws.
        span: how far to go each way, above 0; 1 by default.
        points: places on the line, at least 2; 21 by default.
        seed: of the random direction, a whole number from 0, the default.
        mode: ``"eval"`` (the default) or ``"train"``: which the model is in.
        progress: True for a bar, a function of ``(done, total)``, or False, the default.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> batches = [(torch.ones(1, 1), torch.zeros(1, 1))]
    >>> along = [torch.ones(1, 1)]
    >>> slice_1d(model, nn.functional.mse_loss, batches, direction=along, points=3).losses
    (0.0, 1.0, 4.0)
    """
    places, generator = _places(span, points), random_vectors.generator_of(seed)
    with measuring(
        "1-D slice", model, loss, batches, mode=mode, progress=progress, passes=points
    ) as objective:
        d = objective.flat(_direction(model, direction, generator))
        losses = tuple(objective.value(d * place) for place in places)
    return Slice1D(places, losses, FILTER if direction is None else GIVEN)


def slice_2d(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    *,
    span: float = 1.0,
    points: int = 21,
    directions: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    seed: int = 0,
    mode: Mode = "eval",
    progress: Telling = False,
) -> Slice2D:
    """The loss on a square of ``points × points`` places, ``span`` each way along two directions.

    Without directions both are random and filter-normalised; in many dimensions these are all but
    orthogonal.

    Args:
        model: what is measured.
        loss: of ``(outputs, targets)``, the mean over samples.
        batches: of ``(inputs, targets)``, all samples in batches of any size.
        span: how far to go each way along both, above 0; 1 by default.
        points: places along each side of the square, at least 2; 21 by default.
        directions: two, each a tensor for each trainable parameter, taken as it is; None, the
            default, draws both.
        seed: of the random directions, a whole number from 0, the default.
        mode: ``"eval"`` (the default) or ``"train"``: which the model is in.
        progress: True for a bar, a function of ``(done, total)``, or False, the default.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> batches = [(torch.eye(2), torch.zeros(2, 1))]
    >>> x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> plane = slice_2d(model, nn.functional.mse_loss, batches, directions=([x], [y]), points=3)
    >>> plane.losses
    ((2.5, 2.0, 2.5), (0.5, 0.0, 0.5), (2.5, 2.0, 2.5))
    """
    places, generator = _places(span, points), random_vectors.generator_of(seed)
    given = (None, None) if directions is None else directions
    if len(given) != 2:
        raise ValueError(f"directions must be two, got {len(given)}")
    with measuring(
        "2-D slice", model, loss, batches, mode=mode, progress=progress, passes=points**2
    ) as objective:
        d, e = (objective.flat(_direction(model, way, generator)) for way in given)
        losses = tuple(tuple(objective.value(d * a + e * b) for a in places) for b in places)
    return Slice2D(places, places, losses, FILTER if directions is None else GIVEN)


def _direction(
    model: nn.Module, given: Sequence[Tensor] | None, generator: torch.Generator
) -> Sequence[Tensor]:
    if given is None:
        return directions.drawn(model, generator)
    directions.checked(model, given)
    return given


def _places(span: float, points: int) -> tuple[float, ...]:
    """Evenly spaced, the same on both sides of 0, and 0 itself exactly."""
    span, points = checks.positive("span", span), checks.whole("points", points, least=2)
    return tuple(span * (2 * i - points + 1) / (points - 1) for i in range(points))
