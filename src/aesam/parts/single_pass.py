"""Ascents without a second gradient: the first one is taken elsewhere than at ``w``.

They go with :class:`aesam.parts.policies.Never`. Given the model, a bare ``step()`` works in any
loop: the model's own training forward moves the weights, the end of its backward brings them back.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aesam._core import tensors
from aesam.parts import checks
from aesam.parts.ascents import AlongGradient, Ascent
from aesam.parts.part import Direction, Draws, Gradient, Memory, radius

#: Where optimizers keep their momentum: those of SGD, RMSprop and Muon; those of Adam's family.
KEYS = ("momentum_buffer", "exp_avg")


class BeforePass(Ascent):
    """Base of these: override ``before_pass``.

    >>> BeforePass.has_second_gradient
    False
    """

    has_second_gradient = False


@dataclass(frozen=True)
class _InGradientsPlace(BeforePass):
    """Along something else than the gradient, by the rule of any ascent along the gradient."""

    like: Ascent = field(default_factory=AlongGradient, kw_only=True)

    def __post_init__(self) -> None:
        like = self.like
        if not isinstance(like, Ascent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"like must be an ascent, WithWeights() for instance, got {like!r}")
        remembers = type(like).observe is not Ascent.observe or like.looks_at_observed
        if remembers or like.seeds() or not like.has_second_gradient:
            raise ValueError(
                f"like must be an ascent along the gradient of one step, without a memory or draws "
                f"of its own, got {like!r}: AlongGradient(), WithWeights() or NormLayers()"
            )

    @property
    def class_name(self) -> str:
        """Its name, with that of what it is like unless that is the gradient itself."""
        own = type(self).__name__
        return own if self.like == AlongGradient() else f"{own}({self.like.class_name})"

    def settings(self) -> dict[str, bool | int | float | str | None]:
        """Its own settings, and those of what it is like."""
        inner = {f"like.{name}": value for name, value in self.like.settings().items()}
        return super().settings() | inner

    @property
    def needs_places(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether what it is like looks at where parameters stand in the model."""
        return self.like.needs_places

    def check_model(self, model: nn.Module | None, base: torch.optim.Optimizer) -> None:
        self.like.check_model(model, base)

    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        return self.like.direction(gradient, memory, generator)

    def _toward(self, found: list["_Found"], norm: float | None = None) -> Gradient | None:
        """What was found, in the gradient's place; its norm where that is known."""
        if not found:
            return None
        params, values = [each.param for each in found], [each.vector for each in found]
        values = tensors.sharded_like(values, params) if tensors.are_plain(values) else values
        if self.like.overwrites:
            values = [vector.clone() for vector in values]
        norms = tensors.norms(values) if self.like.needs_norm_of_each else []
        if norm is None:
            norm = math.hypot(*norms) if norms else tensors.norm_on_host(values)
        radii, groups = [each.radius for each in found], [each.group for each in found]
        return Gradient(params, values, radii, norm, norms=norms, groups=groups)


class _Found(NamedTuple):
    """A parameter, which way it goes and how far, and its group."""

    param: Tensor
    vector: Tensor
    radius: float
    group: dict[str, Any]


@dataclass(frozen=True)
class AlongMomentum(_InGradientsPlace):
    """MSAM's (Becker et al. 2024): the gradient at ``w + s ρ v/‖v‖``, ``v`` the base's momentum.

    Before there is any momentum the gradient is taken at ``w``.

    Args:
        uphill: ``s = 1`` (True), or ``s = −1`` as its authors print it (False, the default).
        key: under which name the base's state has it; empty, the default, for ``momentum_buffer``
            or ``exp_avg``, whichever is there.
        like: an ascent along one step's gradient, by whose rule ``v`` is gone along:
            :class:`~aesam.parts.ascents.AlongGradient`, the default, or elementwise
            :class:`~aesam.parts.scaled_ascents.WithWeights`, ``w + s ρ T²v/‖Tv‖``; or along the
            parameters of normalisation layers only,
            :class:`~aesam.parts.chosen_ascents.NormLayers`.

    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> base = torch.optim.SGD([{"params": [w], "rho": 0.5}], lr=0.1, momentum=0.9)
    >>> base.state[w]["momentum_buffer"] = torch.tensor([3.0, 4.0])
    >>> ascent = AlongMomentum()
    >>> v = ascent.before_pass(base, Memory(), None)
    >>> ascent.direction(v, Memory(), None).factors(normalize=True)
    [-0.1]
    """

    uphill: bool = False
    key: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keep(uphill=checks.flag("uphill", self.uphill))
        if not isinstance(self.key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"key must be a name of the base's state, got {self.key!r}")

    def check_model(self, model: nn.Module | None, base: torch.optim.Optimizer) -> None:
        if any(group.get("momentum", 1.0) == 0.0 for group in base.param_groups) and not self.key:
            raise ValueError(
                f"{type(base).__name__} has no momentum to go along: give it one, momentum=0.9 for "
                "instance, in every parameter group"
            )
        super().check_model(model, base)

    def before_pass(
        self, base: torch.optim.Optimizer, memory: Memory, generator: Draws
    ) -> Gradient | None:
        sign = 1.0 if self.uphill else -1.0
        found = [
            _Found(p, v, sign * abs(radius(group, base.defaults.get("rho", 0.05))), group)
            for group in base.param_groups
            for p in group["params"]
            if (state := base.state.get(p)) and (v := self._momentum_in(state)) is not None
        ]
        return self._toward(found)

    def _momentum_in(self, state: dict[str, Any]) -> Any:
        keys = (self.key,) if self.key else KEYS
        present = [key for key in keys if key in state]
        if not present:
            raise ValueError(
                f"the base's state has no {' or '.join(keys)} but {', '.join(map(str, state))}: "
                "name the one that is its momentum with key="
            )
        return state[present[0]]


@dataclass(frozen=True)
class AlongLastGradient(_InGradientsPlace):
    """Stale ascent: ``ε = ρ g_{t−1}/‖g_{t−1}‖``, along the gradient of the step before.

    The first step takes its gradient at ``w``.

    Args:
        like: an ascent along one step's gradient, by whose rule the last one is gone along, as in
            :class:`AlongMomentum`; :class:`~aesam.parts.ascents.AlongGradient` by default.

    >>> w = torch.nn.Parameter(torch.zeros(1))
    >>> base = torch.optim.SGD([w], lr=0.1)
    >>> stale = AlongLastGradient()
    >>> kept = stale.observe(Gradient([w], [torch.ones(1)], [0.05], norm=1.0), Memory())
    >>> stale.direction(stale.before_pass(base, kept, None), kept, None).factors(normalize=True)
    [0.05]
    """

    remembers = ("norm",)

    def observe(self, gradient: Gradient, memory: Memory) -> Memory:
        copies = gradient.workspace.take(gradient.params, gradient.values)
        tensors.assign(copies, gradient.values)
        tensors.scale(copies, 1.0 / gradient.scale)
        return Memory({"norm": gradient.norm}, dict(zip(gradient.params, copies, strict=True)))

    def check_memory(self, memory: Memory) -> None:
        checks.at_least_zero("norm", memory.number("norm"))

    def before_pass(
        self, base: torch.optim.Optimizer, memory: Memory, generator: Draws
    ) -> Gradient | None:
        rho = base.defaults.get("rho", 0.05)
        found = [
            _Found(p, g, radius(group, rho), group)
            for group in base.param_groups
            for p in group["params"]
            if (g := memory.tensors.get(p)) is not None
        ]
        return self._toward(found, memory.number("norm"))
