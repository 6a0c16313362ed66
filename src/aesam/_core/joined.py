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

_IS_CPU, _IS_SPARSE, _DTYPE = attrgetter("is_cpu"), attrgetter("is_sparse"), attrgetter("dtype")

_SMALL = 1024  # numbers in a tensor; above it, copying costs more than one more operation
_MANY = 128  # tensors; so many small ones fit a core's cache together


class _Plan(NamedTuple):
    """Which tensors of a list are joined, in batches, and where; and which are not."""

    dtype: torch.dtype
    sizes: list[int]
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
        dtype, sizes = tensors[0].dtype, list(map(Tensor.numel, tensors))
        for plan in self._plans:
            if plan.sizes == sizes and plan.dtype is dtype:
                return plan
        small = [i for i, size in enumerate(sizes) if size <= _SMALL]
        together = small if len(small) >= _MANY else []
        others = sorted(set(range(len(sizes))).difference(together))
        batches = [together[i : i + _MANY] for i in range(0, len(together), _MANY)]
        placed = [(rows, *self._place(tensors, rows)) for rows in batches]
        self._plans = [_Plan(dtype, sizes, placed, others), *self._plans[:3]]
        return self._plans[0]

    def _place(self, tensors: Sequence[Tensor], rows: list[int]) -> tuple[list[Tensor], Tensor]:
        dtype, sizes = tensors[rows[0]].dtype, [tensors[i].numel() for i in rows]
        if dtype not in self._memory:
            self._memory[dtype] = torch.empty(_SMALL * _MANY, dtype=dtype, device="cpu")
        line = self._memory[dtype][: sum(sizes)]
        lines: Sequence[Tensor] = torch.split(line, sizes)
        return [v.view(tensors[i].shape) for v, i in zip(lines, rows, strict=True)], line


_JOINT = _Joint()


def joined(tensors: Sequence[Tensor]) -> tuple[Iterator[Tensor], list[Tensor]]:
    """Lines of many small tensors' numbers, each there until the next, and all other tensors.

    The order of numbers within a tensor is not kept.
    """
    alike = len(tensors) >= _MANY and all(map(_IS_CPU, tensors))
    if not alike or len(set(map(_DTYPE, tensors))) > 1 or any(map(_IS_SPARSE, tensors)):
        return iter(()), list(tensors)
    plan = _JOINT.plan(tensors)
    return _lines(plan, tensors), [tensors[i] for i in plan.others]


def _lines(plan: _Plan, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    for rows, views, line in plan.batches:
        batch = [tensors[i] for i in rows]
        try:
            torch._foreach_copy_(views, batch)
        except RuntimeError:  # as many numbers, in another shape
            yield torch.cat([t.reshape(-1) for t in batch])
        else:
            yield line
