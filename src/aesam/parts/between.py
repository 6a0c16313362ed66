"""What a step without a second gradient does."""

import math
from dataclasses import dataclass

import torch

from aesam._core import tensors
from aesam._core.tensors import Workspace
from aesam.parts import checks
from aesam.parts.part import (
    Draws,
    Gradient,
    Memory,
    MemoryPart,
    Tensors,
    on_device,
    to_unit_length,
)


class Between(MemoryPart):
    """Base of all cheap steps: override :meth:`adjust`, and :meth:`learn` if it remembers.

    >>> class Halved(Between):
    ...     def adjust(self, gradient, memory, generator):
    ...         for g in gradient.values:
    ...             g.mul_(0.5)
    >>> g = torch.ones(2)
    >>> Halved().adjust(Gradient([torch.zeros(2)], [g], radii=[0.05], norm=2**0.5), Memory(), None)
    >>> g
    tensor([0.5000, 0.5000])
    """

    def adjust(self, gradient: Gradient, memory: Memory, generator: Draws) -> None:
        """Turn ``gradient.values`` (the tensors in ``p.grad``) into ``d``, in place.

        Where ``d`` has infinities, raise a FloatingPointError: the update is then skipped.
        """


@dataclass(frozen=True)
class Plain(Between):
    """The gradient as it is: ``d = g`` (Algorithm 1, line 10).

    >>> g = torch.ones(2)
    >>> Plain().adjust(Gradient([torch.zeros(2)], [g], radii=[0.05], norm=2**0.5), Memory(), None)
    >>> g
    tensor([1., 1.])
    """


@dataclass(frozen=True)
class Reuse(Between):
    """LookSAM's: what of the last ``g_s`` is orthogonal to its ``g`` is used again.

    A step with a second gradient keeps ``g_v = g_s − (g·g_s / ‖g‖²) g`` (Algorithm 1, line 8); one
    without moves along ``d = g + α (‖g‖ / ‖g_v‖) g_v`` (line 11). All products are global. Before
    there is a ``g_v``, or when nothing but rounding is left of it, ``d = g``.

    Args:
        alpha: weight ``α`` of the reused direction, any finite number, 0.5 by default; 0 is the
            plain step.

    >>> w, g, g_v = torch.zeros(2), torch.tensor([3.0, 0.0]), torch.tensor([0.0, 5.0])
    >>> kept = Memory({"norm": 5.0}, {w: g_v})
    >>> Reuse(alpha=0.5).adjust(Gradient([w], [g], radii=[0.05], norm=3.0), kept, None)
    >>> g
    tensor([3.0000, 1.5000])
    """

    alpha: float = 0.5
    needs_first_gradient = True
    remembers = ("norm",)

    def __post_init__(self) -> None:
        self._keep(alpha=checks.finite("alpha", self.alpha))

    @on_device
    def learn(
        self,
        first: Gradient,
        params: Tensors,
        second: Tensors,
        memory: Memory,
        workspace: Workspace,
    ) -> Memory:
        """``g_v``, unscaled, and its norm: 0 where it is negligible beside ``g_s``."""
        owners, g, g_s = _aligned(first, params, second)
        g_v = workspace.take(owners, g)
        length = first.length
        unit = to_unit_length(length)
        along = tensors.dot(g, g_s, unit, scratch=g_v, shards_of=owners)
        tensors.assign(g_v, g)
        tensors.scale(g_v, along / -(unit * length * length))
        tensors.add(g_v, g_s)
        tensors.scale(g_v, 1.0 / first.scale)
        negligible = tensors.norm(g_s, owners) * (4.0 * tensors.largest_eps(g_s) / first.scale)
        norm = tensors.norm(g_v, owners)
        usable = (norm > negligible) & norm.isfinite()
        kept = torch.where(usable, norm, torch.zeros_like(norm))
        return Memory({"norm": kept}, dict(zip(owners, g_v, strict=True)))

    def settle(self, memory: Memory, first: Gradient, before: Memory) -> Memory:
        """Nothing where nothing can be reused: ``g_v`` may hold infinities then.

        A ``g`` of zero says nothing of directions: what was known stays.
        """
        if first.squared_norm == 0.0:
            return before
        return memory if memory.number("norm") > 0.0 else Memory()

    def check_memory(self, memory: Memory) -> None:
        checks.at_least_zero("norm", memory.number("norm"))

    def adjust(self, gradient: Gradient, memory: Memory, generator: Draws) -> None:
        norm = memory.number("norm")
        if norm == 0.0:
            return
        rows = [i for i, p in enumerate(gradient.params) if p in memory.tensors]
        kept = [memory.tensors[gradient.params[i]] for i in rows]
        length = gradient.norm * gradient.scale
        written = [gradient.values[i] for i in rows]
        factor = self.alpha * length / norm
        tensors.add(written, kept, factor)
        longest = (1.0 + abs(self.alpha)) * length  # that d can be
        too_long = longest > tensors.SAFE and longest > tensors.largest_number(written)
        if too_long or not math.isfinite(factor):
            raise FloatingPointError(f"d of length {longest:g} does not fit the gradient's dtype")


def _aligned(first: Gradient, params: Tensors, second: Tensors) -> tuple[Tensors, Tensors, Tensors]:
    """The parameters, and both gradients over them; a tensor that one of them lacks is zero."""
    if list(map(id, first.params)) == list(map(id, params)):
        return params, first.values, second
    g = dict(zip(first.params, first.values, strict=True))
    g_s = dict(zip(params, tensors.local(second), strict=True))
    owners = list(g | g_s)
    zero = {p: torch.zeros_like((g | g_s)[p]) for p in owners if not (p in g and p in g_s)}
    return owners, [(zero | g)[p] for p in owners], [(zero | g_s)[p] for p in owners]
