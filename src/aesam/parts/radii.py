"""Ascents along the gradient whose radius changes from step to step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aesam.parts import checks
from aesam.parts.ascents import AlongGradient
from aesam.parts.part import Direction, Draws, Gradient, Memory, on_device, rate


@dataclass(frozen=True)
class FollowingRate(AlongGradient):
    """GSAM's: ``ρ`` follows the group's learning rate, linearly from ``ρ_min`` to the group's own.

    ``ρ_t = ρ_min + (ρ − ρ_min) (lr_t − lr_min) / (lr_max − lr_min)``, within both ends. The highest
    rate is the group's ``max_lr`` or ``initial_lr``, which schedulers of torch note there, else the
    present one: without a scheduler ``ρ`` is constant. A rate on a device is fetched from it.

    Args:
        rho_min: radius where the learning rate is lowest, from 0, the default, to the group's
            ``rho``.
        lr_min: learning rate from which on the radius is ``rho_min``, 0 or more; 0 by default.
        lr_max: learning rate from which on the radius is the group's ``rho``, above ``lr_min``;
            None, the default, for what the scheduler noted.

    >>> group = {"lr": 0.05, "initial_lr": 0.1}
    >>> g = Gradient([torch.zeros(1)], [torch.ones(1)], [0.4], 1.0, groups=[group])
    >>> FollowingRate(rho_min=0.2).direction(g, Memory(), None).radii
    [0.30000000000000004]
    """

    rho_min: float = 0.0
    lr_min: float = 0.0
    lr_max: float | None = None

    def __post_init__(self) -> None:
        self._keep(
            rho_min=checks.at_least_zero("rho_min", self.rho_min),
            lr_min=checks.at_least_zero("lr_min", self.lr_min),
        )
        if self.lr_max is not None:
            highest = checks.positive("lr_max", self.lr_max)
            if highest <= self.lr_min:
                raise ValueError(f"lr_max must be above lr_min = {self.lr_min!r}, got {highest!r}")
            self._keep(lr_max=highest)

    @on_device
    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        shares = {id(group): self._share(group) for group in gradient.groups}
        radii = [
            self._radius(own, shares[id(group)])
            for own, group in zip(gradient.radii, gradient.groups, strict=True)
        ]
        return super().direction(gradient.changed(radii=radii), memory, generator)

    def _share(self, group: Mapping[str, Any]) -> float:
        """How far the group's rate is from the lowest to the highest, from 0 to 1."""
        now = rate(group)
        noted = self.lr_max or group.get("max_lr", group.get("initial_lr", now))
        span = float(noted) - self.lr_min
        return min(max((now - self.lr_min) / span, 0.0), 1.0) if span > 0.0 else 1.0

    def _radius(self, own: float, share: float) -> float:
        most = abs(own)
        if most < self.rho_min:
            raise ValueError(
                f"rho of a parameter group is {most:g}, below rho_min = {self.rho_min:g}: the "
                "radius goes from rho_min to the group's rho, so give it one that is larger"
            )
        return math.copysign(self.rho_min + (most - self.rho_min) * share, own)


@dataclass(frozen=True)
class WithinRise(AlongGradient):
    """LE-SAM's: a radius at which the loss rises by ``σ``, to first order: ``min(σ/‖g‖, ρ)``.

    Where the gradient is small the group's ``ρ`` bounds it.

    Args:
        rise: ``σ``, by how much the loss may rise, 0 or more; 0.05 by default.

    >>> g = Gradient([torch.zeros(2)], [torch.tensor([3.0, 4.0])], [0.5], norm=5.0)
    >>> WithinRise(rise=0.2).direction(g, Memory(), None).radii
    [0.04]
    """

    rise: float = 0.05

    def __post_init__(self) -> None:
        self._keep(rise=checks.at_least_zero("rise", self.rise))

    @on_device
    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        bounded = {own: self._bounded(own, gradient) for own in set(gradient.radii)}
        found = super().direction(gradient, memory, generator)
        return replace(found, radii=[bounded[own] for own in gradient.radii])

    def _bounded(self, own: float, gradient: Gradient) -> float | Tensor:
        length = gradient.length
        if isinstance(length, Tensor):
            most = torch.where(length > 0.0, self.rise * gradient.scale / length, math.inf)
            return most.clamp(max=abs(own)) * math.copysign(1.0, own)
        most = self.rise / gradient.norm if gradient.norm > 0.0 else math.inf
        return math.copysign(min(most, abs(own)), own)
