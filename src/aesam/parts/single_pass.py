"""Ascents without a second gradient: the first one is taken elsewhere than at ``w``.

They go with :class:`aesam.parts.policies.Never`. Given the model, a bare ``step()`` works in any
loop: the model's own training forward moves the weights, the end of its backward brings them back.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aesam._core import tensors
from aesam.parts import checks
from aesam.parts.ascents import Ascent
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
class AlongMomentum(BeforePass):
    """MSAM's (Becker et al. 2024): the gradient at ``w + s ρ v/‖v‖``, ``v`` the base's momentum.

    Before there is any momentum the gradient is taken at ``w``.

    Args:
        uphill: ``s = 1`` (True), or ``s = −1`` as its authors print it (False, the default).
        key: under which name the base's state has it; empty, the default, for ``momentum_buffer``
            or ``exp_avg``, whichever is there.

    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> base = torch.optim.SGD([{"params": [w], "rho": 0.5}], lr=0.1, momentum=0.9)
    >>> base.state[w]["momentum_buffer"] = torch.tensor([3.0, 4.0])
    >>> AlongMomentum().before_pass(base, Memory(), None).factors(normalize=True)
    [-0.1]
    """

    uphill: bool = False
    key: str = ""

    def __post_init__(self) -> None:
        self._keep(uphill=checks.flag("uphill", self.uphill))
        if not isinstance(self.key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"key must be a name of the base's state, got {self.key!r}")

    def check_model(self, model: nn.Module | None, base: torch.optim.Optimizer) -> None:
        if any(group.get("momentum", 1.0) == 0.0 for group in base.param_groups) and not self.key:
            raise ValueError(
                f"{type(base).__name__} has no momentum to go along: give it one, momentum=0.9 for "
                "instance, in every parameter group"
            )

    def before_pass(
        self, base: torch.optim.Optimizer, memory: Memory, generator: Draws
    ) -> Direction | None:
        sign = 1.0 if self.uphill else -1.0
        found = [
            (p, v, sign * abs(radius(group, base.defaults.get("rho", 0.05))))
            for group in base.param_groups
            for p in group["params"]
            if (state := base.state.get(p)) and (v := self._momentum_in(state)) is not None
        ]
        return _toward(found, tensors.norm_on_host([v for _, v, _ in found])) if found else None

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
class AlongLastGradient(BeforePass):
    """Stale ascent: ``ε = ρ g_{t−1}/‖g_{t−1}‖``, along the gradient of the step before.

    The first step takes its gradient at ``w``.

    >>> w = torch.nn.Parameter(torch.zeros(1))
    >>> base = torch.optim.SGD([w], lr=0.1)
    >>> stale = AlongLastGradient()
    >>> kept = stale.observe(Gradient([w], [torch.ones(1)], [0.05], norm=1.0), Memory())
    >>> stale.before_pass(base, kept, None).factors(normalize=True)
    [0.05]
    """

    remembers = ("norm",)

    def observe(self, gradient: Gradient, memory: Memory) -> Memory:
        copies = [g.detach().clone() for g in tensors.local(gradient.values)]
        tensors.scale(copies, 1.0 / gradient.scale)
        return Memory({"norm": gradient.norm}, dict(zip(gradient.params, copies, strict=True)))

    def check_memory(self, memory: Memory) -> None:
        checks.at_least_zero("norm", memory.number("norm"))

    def before_pass(
        self, base: torch.optim.Optimizer, memory: Memory, generator: Draws
    ) -> Direction | None:
        rho = base.defaults.get("rho", 0.05)
        found = [
            (p, g, radius(group, rho))
            for group in base.param_groups
            for p in group["params"]
            if (g := memory.tensors.get(p)) is not None
        ]
        return _toward(found, memory.number("norm")) if found else None


def _toward(found: list[tuple[Tensor, Tensor, float]], length: float) -> Direction:
    """From parameters, vectors and radii, one of each together."""
    params, vectors, radii = (
        [p for p, _, _ in found],
        [v for _, v, _ in found],
        [r for *_, r in found],
    )
    return Direction(params, vectors, radii, length)
