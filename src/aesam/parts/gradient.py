"""What every axis looks at: the gradient of the mini-batch, measured once."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from aesam._core import checks, tensors


@dataclass(frozen=True)
class Gradient:
    """The gradient ``g`` over all parameters that have one.

    ``values`` are the tensors in ``p.grad`` and carry the factor ``scale`` of a loss scaler;
    ``norm`` is ``‖g‖`` of the true gradient, over all of them. ``radii`` is ``ρ`` of each tensor's
    group, negative where the group maximises. ``norms`` has the norm of each tensor where an
    ascent asks for it.
    """

    params: list[Tensor]
    values: list[Tensor]
    radii: list[float]
    norm: float
    scale: float = 1.0
    norms: Sequence[float] = ()

    @property
    def squared_norm(self) -> float:
        """``‖g‖²``."""
        return self.norm * self.norm

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.squared_norm)

    def part(self, chosen: Sequence[int]) -> "Gradient":
        """The gradient over the tensors with these indices only; needs ``norms``."""
        norms = [self.norms[i] for i in chosen]
        return Gradient(
            params=[self.params[i] for i in chosen],
            values=[self.values[i] for i in chosen],
            radii=[self.radii[i] for i in chosen],
            norm=math.hypot(*norms),
            scale=self.scale,
            norms=norms,
        )

    def with_values(self, values: list[Tensor]) -> "Gradient":
        return replace(self, values=values)


def read(
    groups: Iterable[dict[str, Any]], rho: float, scale: float = 1.0, each: bool = False
) -> Gradient:
    """Measure the gradient in ``p.grad``: one transfer to the host, whatever the model's size.

    ``each`` also measures every tensor on its own, in the same transfer.
    """
    params, radii = with_gradient(groups, rho)
    values = gradients_of(params)
    norms = [n / scale for n in tensors.norms(values)] if each else []
    norm = math.hypot(*norms) if each else tensors.norm_on_host(values) / scale
    return Gradient(params, values, radii, norm, scale, norms)


def with_gradient(groups: Iterable[dict[str, Any]], rho: float) -> tuple[list[Tensor], list[float]]:
    """The parameters that have a gradient, each once, and the radius of each."""
    params: list[Tensor] = []
    radii: list[float] = []
    for group in groups:
        present = [p for p in group["params"] if p.grad is not None]
        params += present
        radii += [radius(group, rho)] * len(present)
    if len(set(map(id, params))) < len(params):
        once = {id(p): i for i, p in reversed(list(enumerate(params)))}
        kept = sorted(once.values())
        return [params[i] for i in kept], [radii[i] for i in kept]
    return params, radii


def gradients_of(params: Iterable[Tensor]) -> list[Tensor]:
    return [p.grad for p in params if p.grad is not None]


def radius(group: dict[str, Any], rho: float) -> float:
    """The group's ``ρ``: its own if it has one, signed so that it always makes the loss worse."""
    own = checks.at_least_zero("rho of a parameter group", group.get("rho", rho))
    return -own if group.get("maximize", False) else own
