"""What a step without a second gradient does."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from aesam._core import checks, tensors
from aesam.parts.gradient import Gradient
from aesam.parts.part import Axis, Memory


@dataclass(frozen=True)
class Lesson:
    """What a step with a second gradient taught, before its ``numbers`` reached the host."""

    params: list[Tensor]
    tensors: list[Tensor]
    numbers: Tensor


class Between(Axis):
    """Base of all cheap steps: override :meth:`adjust`, and the others if it learns."""

    #: Whether a copy of the first gradient must be kept through the second pass.
    needs_first_gradient = False

    def adjust(self, gradient: Gradient, memory: Memory) -> None:
        """Turn ``gradient.values`` (the tensors in ``p.grad``) into ``d``, in place."""

    def learn(
        self, first: Gradient, params: list[Tensor], second: list[Tensor], room: tensors.Room
    ) -> Lesson | None:
        """Compare the two gradients; the lesson's tensors are taken from ``room``."""
        return None

    def remember(self, lesson: Lesson, numbers: list[float], memory: Memory) -> Memory:
        """The memory after this step, once ``lesson.numbers`` are on the host."""
        return memory


@dataclass(frozen=True)
class Plain(Between):
    """The gradient as it is: ``d = g`` (Algorithm 1, line 10).

    >>> g = torch.ones(2)
    >>> Plain().adjust(Gradient([torch.zeros(2)], [g], radii=[0.05], norm=2**0.5), Memory())
    >>> g
    tensor([1., 1.])
    """


@dataclass(frozen=True)
class Reuse(Between):
    """LookSAM's: the part of the last ``g_s`` that is orthogonal to its ``g`` is used again.

    A step with a second gradient keeps ``g_v = g_s − (g·g_s / ‖g‖²) g`` (Algorithm 1, line 8); one
    without moves along ``d = g + α (‖g‖ / ‖g_v‖) g_v`` (line 11). All products are global. Before
    there is a ``g_v``, or when nothing but rounding is left of it, ``d = g``.

    >>> w, g, g_v = torch.zeros(2), torch.tensor([3.0, 0.0]), torch.tensor([0.0, 5.0])
    >>> kept = Memory({"norm": 5.0}, {w: g_v})
    >>> Reuse(alpha=0.5).adjust(Gradient([w], [g], radii=[0.05], norm=3.0), kept)
    >>> g
    tensor([3.0000, 1.5000])
    """

    alpha: float = 0.5
    needs_first_gradient = True
    remembers = ("norm",)

    def __post_init__(self) -> None:
        self._keep(alpha=checks.finite("alpha", self.alpha))

    def adjust(self, gradient: Gradient, memory: Memory) -> None:
        if not memory.tensors:
            return
        rows = [i for i, p in enumerate(gradient.params) if p in memory.tensors]
        factor = self.alpha * gradient.norm * gradient.scale / memory.values["norm"]
        kept = [memory.tensors[gradient.params[i]] for i in rows]
        tensors.add([gradient.values[i] for i in rows], kept, factor)

    def learn(
        self, first: Gradient, params: list[Tensor], second: list[Tensor], room: tensors.Room
    ) -> Lesson | None:
        if first.squared_norm == 0.0:
            return None
        owners, g, g_s = _aligned(first, params, second)
        g_v = room.take(owners, g)
        length = first.norm * first.scale
        unit = min(1.0 / length, 1e38)  # g·unit has length 1: no square leaves the dtype's range
        along = tensors.dot(g, g_s, unit, room=g_v, shards_of=owners)
        tensors.assign(g_v, g)
        tensors.scale(g_v, along / -(unit * length * length))
        tensors.add(g_v, g_s)
        tensors.scale(g_v, 1.0 / first.scale)
        negligible = tensors.norm(g_s, owners) * (4.0 * tensors.largest_eps(g_s) / first.scale)
        numbers = torch.stack([tensors.norm(g_v, owners), negligible])
        return Lesson(owners, g_v, numbers)

    def remember(self, lesson: Lesson, numbers: list[float], memory: Memory) -> Memory:
        norm, negligible = numbers
        if not negligible < norm < math.inf:
            return Memory()
        return Memory({"norm": norm}, dict(zip(lesson.params, lesson.tensors, strict=True)))


def _aligned(
    first: Gradient, params: list[Tensor], second: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The parameters, and both gradients over them; a tensor that one of them lacks is zero."""
    if list(map(id, first.params)) == list(map(id, params)):
        return params, first.values, second
    g = dict(zip(first.params, first.values, strict=True))
    g_s = dict(zip(params, tensors.local(second), strict=True))
    owners = list(g | g_s)
    zero = {p: torch.zeros_like((g | g_s)[p]) for p in owners if not (p in g and p in g_s)}
    return owners, [(zero | g)[p] for p in owners], [(zero | g_s)[p] for p in owners]
