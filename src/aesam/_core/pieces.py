"""Several operations in a row on lists of tensors, a piece that fits a core's cache at a time.

On a CPU a step's bookkeeping waits for memory: four operations on a piece read it once, four
operations on a whole model read it four times. Elsewhere all tensors are one piece, since there
each operation has a cost of its own.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from aesam._core import tensors

Lists = tuple[list[Tensor], ...]

_IS_CPU, _IS_SPARSE, _DTYPE = attrgetter("is_cpu"), attrgetter("is_sparse"), attrgetter("dtype")
_PIECE = 1 << 17  # numbers of each list; a few times as many nearly fit a core's cache


def pieces(*lists: Sequence[Tensor]) -> Iterator[Lists]:
    """The same numbers in pieces, as views: what is written to them is written to the tensors.

    Of DTensors those are of this process's shards; complex numbers are pairs of real ones.
    """
    plain = [tensors.real(tensors.local(each)) for each in lists]
    if not plain[0]:
        return
    if not all(all(map(_IS_CPU, each)) and not any(map(_IS_SPARSE, each)) for each in plain):
        yield tuple(plain)
        return
    sizes, start = list(map(Tensor.numel, plain[0])), 0
    for stop in _stops(sizes):
        row = tuple(each[start] for each in plain)
        if sizes[start] > _PIECE and all(t.is_contiguous() for t in row):
            split: list[Sequence[Tensor]] = [torch.split(t.view(-1), _PIECE) for t in row]
            for parts in zip(*split, strict=True):
                yield tuple([part] for part in parts)
        else:
            yield tuple(each[start:stop] for each in plain)
        start = stop


def _stops(sizes: list[int]) -> Iterator[int]:
    """Where pieces end: as many neighbours as fit in one, or a single tensor that does not."""
    size_so_far = 0
    for i, size in enumerate(sizes):
        if i and size_so_far + size > _PIECE:
            yield i
            size_so_far = 0
        size_so_far += size
    yield len(sizes)


def blend(
    targets: Sequence[Tensor],
    olds: Sequence[Tensor],
    news: Sequence[Tensor],
    keep: float,
    share: float,
) -> None:
    """``targets ← keep · olds + share · news``."""
    for target, old, new in pieces(targets, olds, news):
        if keep == 0.0:
            torch._foreach_copy_(target, new)
            tensors.scale(target, share)
        elif keep + share == 1.0:
            torch._foreach_copy_(target, old)
            torch._foreach_lerp_(target, new, share)
        else:
            torch._foreach_copy_(target, old)
            torch._foreach_mul_(target, keep)
            torch._foreach_add_(target, new, alpha=share)


def interpolate(targets: Sequence[Tensor], others: Sequence[Tensor], share: float) -> None:
    """``targets ← (1 − share) · targets + share · others``."""
    written, read = (tensors.real(tensors.local(each)) for each in (targets, others))
    alike = list(map(_DTYPE, written)) == list(map(_DTYPE, read))
    dense = not any(map(_IS_SPARSE, (*written, *read)))
    if written and alike and dense and abs(share) <= tensors.SAFE:
        torch._foreach_lerp_(written, read, share)  # reads and writes each number once
    else:
        mix(targets, others, 1.0 - share, share)


def mix(
    targets: Sequence[Tensor], others: Sequence[Tensor], own: float | Tensor, factor: float
) -> None:
    """``targets ← own · targets + factor · others``; ``own`` may be on the device."""
    if not abs(factor) <= tensors.SAFE:  # more than a dtype may hold
        tensors.scale(targets, own)
        tensors.add(targets, others, factor)
        return
    for target, other in pieces(targets, others):
        if target[0].is_cpu and not target[0].is_sparse:
            torch._foreach_mul_(target, own)
        else:
            tensors.scale(target, own)
        torch._foreach_add_(target, other, alpha=factor)


def set_apart(rests: Sequence[Tensor], targets: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """``rests ← targets − others`` and ``targets ← others``.

    A number that was infinite or NaN is NaN afterwards, so that whoever looks at it knows.
    """
    for rest, target, other in pieces(rests, targets, others):
        torch._foreach_copy_(rest, target)
        torch._foreach_sub_(rest, other)
        torch._foreach_sub_(target, target)  # faster than times 0, of many small ones
        torch._foreach_add_(target, other)


def dot(
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    factor: float | Tensor,
    shards_of: Sequence[Tensor],
    workspace: tensors.Workspace,
) -> Tensor:
    """``factor · left`` times ``right``, over all tensors, left on the device."""
    kinds = {(t.dtype, t.device.type, t.layout) for t in (*left, *right)}
    usual = {(torch.float32, "cpu", torch.strided), (torch.float64, "cpu", torch.strided)}
    if len(kinds) != 1 or not kinds <= usual or not tensors.are_plain(shards_of):
        scratch = workspace.take(shards_of, left)
        found = tensors.dot(left, right, factor, scratch, shards_of)
        workspace.give(shards_of, scratch)
        return found
    # A factor of usual size cannot bring a product back into range that was outside of it.
    late = not isinstance(factor, Tensor) and 1e-8 < factor < 1e8
    early = None if late else factor
    products = [torch.dot(_line(a, early), _line(b)) for a, b in pieces(left, right)]
    return torch.stack(products).sum() * (factor if late else 1.0)


def _line(piece: list[Tensor], factor: float | Tensor | None = None) -> Tensor:
    line = piece[0].reshape(-1) if len(piece) == 1 else _flatten_dense_tensors(piece)
    return line if factor is None else line * factor


def scale_by_weights(
    values: Sequence[Tensor], params: Sequence[Tensor], offset: float, wide: bool = False
) -> Tensor:
    """``values ← T² values`` with ``T = |params| + offset``; gives ``‖T values‖``.

    A ``wide`` sum holds the squares of all numbers.
    """

    def factors(w: list[Tensor]) -> list[Tensor]:
        t = list(torch._foreach_abs(w))
        torch._foreach_add_(t, offset)
        return t

    return _scale_twice(values, params, params, factors, wide)


def scale_by_fisher(
    values: Sequence[Tensor], params: Sequence[Tensor], root: float, wide: bool = False
) -> Tensor:
    """``values ← T² values`` with ``T² = 1 / (1 + (root · values)²)``; gives ``‖T values‖``.

    A ``wide`` sum holds the squares of all numbers.
    """

    def factors(v: list[Tensor]) -> list[Tensor]:
        t = list(torch._foreach_mul(v, v if root == 1.0 else root))
        if root != 1.0:
            torch._foreach_mul_(t, t)
        torch._foreach_add_(t, 1.0)
        torch._foreach_rsqrt_(t)
        return t

    return _scale_twice(values, params, values, factors, wide)


def _scale_twice(
    values: Sequence[Tensor],
    params: Sequence[Tensor],
    sources: Sequence[Tensor],
    factors: Callable[[list[Tensor]], list[Tensor]],
    wide: bool,
) -> Tensor:
    """``values ← T² values``, ``T`` made of the sources; gives ``‖T values‖``, on the device."""
    if not params:
        return torch.zeros(())
    if not (tensors.are_plain(params) and len({(p.dtype, p.device) for p in params}) == 1):
        v, source = (tensors.real(tensors.local(each)) for each in (values, sources))
        t = factors(source)
        torch._foreach_mul_(v, t)
        length = tensors.norm(v, params, wide)
        torch._foreach_mul_(v, t)
        return length
    found: list[Tensor] = []
    for v, source in pieces(values, sources):
        t = factors(source)
        torch._foreach_mul_(v, t)
        found += torch._foreach_norm(v, 2, tensors.dtype_of_norms(v[0], wide))
        torch._foreach_mul_(v, t)
    return torch.linalg.vector_norm(torch.stack(found))
