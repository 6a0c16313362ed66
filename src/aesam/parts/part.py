"""What the five choices of a step (policy, ascent, samples, between, combine) have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Direction:
    """A displacement of some parameters: ``ε = radius · gain · vector / length``, tensor by tensor.

    ``length`` is measured like ``vectors``, loss scale included, so normalising cancels it; without
    normalisation ``scale`` stands in its place.
    """

    params: list[Tensor]
    vectors: list[Tensor]
    radii: list[float]
    length: float
    scale: float = 1.0
    gain: float = 1.0

    def factors(self, normalize: bool) -> list[float]:
        divisor = self.length if normalize else self.scale
        if divisor == 0.0:
            return [0.0] * len(self.radii)
        return [radius * self.gain / divisor for radius in self.radii]


@dataclass(frozen=True)
class Memory:
    """What an axis keeps from step to step: numbers, and at most one tensor per parameter."""

    values: Mapping[str, float] = field(default_factory=dict[str, float])
    tensors: Mapping[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])


class Axis:
    """Base of all parts. A part is immutable: what changes in training is handed in and out.

    A part with an attribute ``seed`` is given a random generator of its own, which is saved with
    the optimizer and never touches the model's random stream.
    """

    #: Names of the numbers in this part's :class:`Memory`, for checking a checkpoint.
    remembers: tuple[str, ...] = ()

    def before_pass(self, base: torch.optim.Optimizer) -> Direction | None:
        """Where to take the first gradient instead of at ``w``; the weights return after it."""
        return None

    def after_base_step(self, base: torch.optim.Optimizer, carried: Any) -> None:
        """Change the weights after the base optimizer did.

        ``carried`` is what a combination's ``combine`` returned, None for the other axes.
        """

    def _keep(self, **checked: bool | int | float | str) -> None:
        """Put checked settings in place of the given ones: plain numbers that any file can hold."""
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def settings(self) -> dict[str, bool | int | float | str]:
        """The constructor's plain values, kept in checkpoints to notice a changed setting."""
        return {k: v for k, v in vars(self).items() if isinstance(v, bool | int | float | str)}
