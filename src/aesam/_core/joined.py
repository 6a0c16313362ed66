"""Many small tensors joined to a few long ones, for one operation instead of one for each.

On a CPU that is faster than a foreach operation if the memory to join them in is there already:
fresh memory costs more than all that is done in it.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

import threading
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

KIND = attrgetter("shape", "dtype", "device", "layout")

_SMALL = 1024  # numbers in a tensor; above it, copying costs more than one more operation
_MANY = 128  # tensors; so many small ones fit a core's cache together


class _Plan(NamedTuple):
    """Which tensors of a list are joined, in batches, and where; and which are not."""

    kinds: list[object]
    batches: list[tuple[list[int], list[Tensor], Tensor]]  # rows, a view for each, and all views
    others: list[int]


class _Joint(threading.local):
    """The memory, half a megabyte for each dtype, and plans for lists seen before.

    Of each thread: what is joined stays only until the next is.
    """

    def __init__(self) -> None:
        self._memory: dict[torch.dtype, Tensor] = {}
        self._plans: list[_Plan] = []

    def plan(self, tensors: Sequence[Tensor]) -> _Plan:
        kinds: list[object] = list(map(KIND, tensors))
        for plan in self._plans:
            if plan.kinds == kinds:
                return plan
        self._plans = [self._new_plan(tensors, kinds), *self._plans[:3]]
        return self._plans[0]

    def _new_plan(self, tensors: Sequence[Tensor], kinds: list[object]) -> _Plan:
        small = [
            i
            for i, t in enumerate(tensors)
            if t.numel() <= _SMALL and t.is_cpu and t.layout is torch.strided
        ]
        if len(small) < _MANY or len({tensors[i].dtype for i in small}) > 1:
            return _Plan(kinds, [], list(range(len(tensors))))
        batches = [small[i : i + _MANY] for i in range(0, len(small), _MANY)]
        others = sorted(set(range(len(tensors))).difference(small))
        return _Plan(kinds, [(rows, *self._place(tensors, rows)) for rows in batches], others)

    def _place(self, tensors: Sequence[Tensor], rows: list[int]) -> tuple[list[Tensor], Tensor]:
        dtype, sizes = tensors[rows[0]].dtype, [tensors[i].numel() for i in rows]
        if dtype not in self._memory:
            self._memory[dtype] = torch.empty(_SMALL * _MANY, dtype=dtype, device="cpu")
        line = self._memory[dtype][: sum(sizes)]
        lines: Sequence[Tensor] = torch.split(line, sizes)
        return [v.view(tensors[i].shape) for v, i in zip(lines, rows, strict=True)], line


_JOINT = _Joint()


def joined(tensors: Sequence[Tensor]) -> tuple[Iterator[Tensor], list[Tensor]]:
    """Lines of many small tensors' numbers, each there until the next, and all other tensors."""
    if len(tensors) < _MANY:
        return iter(()), list(tensors)
    plan = _JOINT.plan(tensors)
    return _lines(plan, tensors), [tensors[i] for i in plan.others]


def _lines(plan: _Plan, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    for rows, views, line in plan.batches:
        torch._foreach_copy_(views, [tensors[i] for i in rows])
        yield line
