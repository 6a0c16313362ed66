"""Arithmetic on lists of tensors: the only place that loops over parameters.

Every function takes lists in the same order, works through foreach operations and accepts what a
parameter list may hold: several dtypes and devices, sparse gradients, complex numbers and DTensors
(the shards of FSDP2). Elementwise work happens on each rank's own shard, in place, so storage never
moves; norms and inner products are global, over all shards. None of them tracks gradients: call
them under ``torch.no_grad()``.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
# torch's foreach functions are what its own optimizers are made of, but carry an underscore.

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import Parameter

from aesam._core.joined import joined

_PLAIN = frozenset({Tensor, Parameter})
HALF = frozenset({torch.float16, torch.bfloat16})
_WHOLE = frozenset({torch.float32, torch.float64})
_DTYPE_AND_DEVICE = attrgetter("dtype", "device")
_KIND = attrgetter("shape", "dtype", "device", "layout")
_VERSION = attrgetter("_version")
#: A power of two that factors are divided by: one over the norm of denormal numbers is too large.
_HEADROOM = {torch.float32: 2.0**40, torch.bfloat16: 2.0**40}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number
SAFE = 6e4  # every floating dtype holds it
_BATCH = 1 << 20
_KEPT = 4  # buffers of one parameter: its weights, two gradients and a memory


def are_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether none of them is a DTensor or another subclass."""
    return _PLAIN.issuperset(map(type, tensors))


def local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What this process holds of each tensor: the tensor itself, or its shard of a DTensor."""
    if are_plain(tensors):
        return list(tensors)
    return [cast(Any, t).to_local() if hasattr(t, "to_local") else t for t in tensors]


def version(tensor: Tensor | None) -> int:
    """Counts up whenever a tensor is written to in place; -1 for none. A DTensor's does not."""
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """The version of each."""
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:  # tensors of inference mode have none
        return list(map(version, tensors))


def sharded_like(shards: Sequence[Tensor], owners: Sequence[Tensor]) -> list[Tensor]:
    """The whole tensors that this process holds these shards of, distributed as their owners."""
    if are_plain(owners):
        return list(shards)
    from torch.distributed.tensor import DTensor

    return [
        DTensor.from_local(
            t, o.device_mesh, o.placements, run_check=False, shape=o.shape, stride=o.stride()
        )
        if isinstance(o, DTensor)
        else t
        for t, o in zip(shards, owners, strict=True)
    ]


def sharded_alike(left: Tensor, right: Tensor) -> bool:
    """Whether shards of equal shape are the same part of both; one of them may be no DTensor."""
    kinds = [_sharding(left), _sharding(right)]
    return None in kinds or kinds[0] == kinds[1]


def assign(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """``targets ← sources``, to the bit."""
    if targets:
        torch._foreach_copy_(local(targets), local(sources))


def add(targets: Sequence[Tensor], sources: Sequence[Tensor], factor: float = 1.0) -> None:
    """``targets ← targets + factor · sources``, also where the dtype cannot hold the factor."""
    if not targets:
        return
    written, read = local(targets), local(sources)
    if abs(factor) > SAFE:
        limit = largest_number(written)
        while limit < abs(factor) < math.inf:  # an infinite one stays so
            read, factor = list(torch._foreach_mul(read, limit)), factor / limit
    torch._foreach_add_(written, read, alpha=factor)


def add_each(
    targets: Sequence[Tensor], sources: Sequence[Tensor], factors: Sequence[float]
) -> None:
    """``targets[i] ← targets[i] + factors[i] · sources[i]``, one operation per distinct factor."""
    if len(set(factors)) <= 1:
        if factors:
            add(targets, sources, factors[0])
        return
    chosen: dict[float, list[int]] = {}
    for i, factor in enumerate(factors):
        chosen.setdefault(factor, []).append(i)
    for factor, rows in chosen.items():
        add([targets[i] for i in rows], [sources[i] for i in rows], factor)


def scale(targets: Sequence[Tensor], factor: float | Tensor) -> None:
    """``targets ← factor · targets``; a factor on the device is never fetched to the host."""
    plain = local(targets)
    if not isinstance(factor, Tensor):
        if plain and factor != 1.0:
            torch._foreach_mul_(plain, factor)
        return
    for rows in _alike(plain, _DTYPE_AND_DEVICE):
        torch._foreach_mul_([plain[i] for i in rows], _factor_of(plain[rows[0]], factor))


def _factor_of(target: Tensor, factor: Tensor) -> Tensor:
    """A factor as foreach operations want it: of another dtype they take tensor by tensor on a GPU.

    That of 16-bit numbers keeps its bits where it has more: rounded, it would be another factor.
    """
    dtype = target.dtype if target.dtype in _WHOLE else factor.dtype
    return factor.to(device=target.device, dtype=dtype)


def scale_each(targets: Sequence[Tensor], factors: Sequence[float]) -> None:
    """``targets[i] ← factors[i] · targets[i]``, one operation per distinct factor."""
    chosen: dict[float, list[Tensor]] = {}
    for target, factor in zip(targets, factors, strict=True):
        chosen.setdefault(factor, []).append(target)
    for factor, alike in chosen.items():
        scale(alike, factor)


def keep_where(good: Tensor, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """``targets ← sources`` unless a flag is true, which is never fetched to the host."""
    for target, source in zip(local(targets), local(sources), strict=True):
        torch.where(good.to(target.device), target, source.detach(), out=target)


def process_count(group: Any = None) -> int:
    """How many processes train together; 1 where there is no process group."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return distributed.get_world_size(group)


def average_over_processes(targets: Sequence[Tensor], group: Any = None) -> None:
    """``targets ←`` their mean over all processes, where there is a process group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        average(targets, group)


class _Buffers(list[Tensor]):
    """Buffers that are lent together; what each is like is known until one is exchanged."""

    def __init__(self, buffers: Sequence[Tensor], kinds: list[object] | None = None) -> None:
        super().__init__(buffers)
        self._kinds = list(map(_KIND, self)) if kinds is None else kinds
        self._ids = list(map(id, self))

    def are_like(self, kinds: list[object]) -> bool:
        return self._kinds == kinds and self._ids == list(map(id, self))


class Workspace:
    """Buffers kept between steps, since a fresh one costs several times the work done in it.

    Whoever takes buffers owns them until they are given back; their content is arbitrary. Those of
    the same parameters stay together, so that nobody looks at each of them on every step; where
    others are asked for, they are kept one by one.
    """

    def __init__(self) -> None:
        self._owners: tuple[int, ...] = ()  # of those that are together
        self._together: list[_Buffers] = []
        self._single: dict[int, list[Tensor]] = {}
        self._most = 0

    @property
    def kept(self) -> list[Tensor]:
        """All that are lent to nobody."""
        single = [b for held in self._single.values() for b in held]
        return single + [b for held in self._together for b in held]

    def take(self, owners: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """A buffer shaped like each tensor of ``like``, kept under the parameter it belongs to."""
        keys, wanted = tuple(map(id, owners)), local(like)
        kinds: list[object] = list(map(_KIND, wanted))
        for i in reversed(range(len(self._together) if keys == self._owners else 0)):
            if self._together[i].are_like(kinds):
                return self._together.pop(i)
        self._part()
        self._most = max(self._most, len(keys))
        if len(self._single) > 2 * self._most:
            self._single.clear()  # kept for parameters that were replaced
        return _Buffers([self._one(*each) for each in zip(keys, kinds, wanted, strict=True)], kinds)

    def give(self, owners: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        """Take buffers back; more than a step ever needs of one parameter are let go."""
        keys = tuple(map(id, owners))
        if keys != self._owners:
            self._part()
            self._owners = keys
        if len(self._together) < _KEPT:
            whole = isinstance(buffers, _Buffers)
            self._together.append(buffers if whole else _Buffers(local(buffers)))

    def _one(self, owner: int, kind: object, like: Tensor) -> Tensor:
        held = self._single.get(owner)
        if held and _KIND(held[-1]) == kind:
            return held.pop()
        return torch.empty_like(like, requires_grad=False)

    def _part(self) -> None:
        """Keep one by one what was together."""
        parted, self._together = self._together, []
        for buffers in parted:
            for owner, buffer in zip(self._owners, buffers, strict=True):
                held = self._single.setdefault(owner, [])
                if len(held) < _KEPT:
                    held.append(buffer)


def to_host(vector: Tensor) -> list[float]:
    """The numbers of a vector: the one place where the host waits for the device."""
    return vector.tolist()


def as_number(number: float | Tensor) -> float:
    """A number that may be on a device, on the host."""
    return to_host(number.reshape(1))[0] if isinstance(number, Tensor) else number


def norms(tensors: Sequence[Tensor], shards_of: Sequence[Tensor] | None = None) -> list[float]:
    """The Euclidean norm of each tensor, fetched to the host in one transfer."""
    if not tensors:
        return []
    found = to_host(_power_norms(tensors, 2, shards_of=shards_of))
    if _is_trusted(math.hypot(*found)):
        return found
    return to_host(_power_norms(tensors, 2, wide=True, shards_of=shards_of))


def lengths(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each tensor over all of its shards, left on the device of the first."""
    return _power_norms(tensors, 2)


def norm(
    tensors: Sequence[Tensor], shards_of: Sequence[Tensor] | None = None, wide: bool = False
) -> Tensor:
    """The Euclidean norm of all tensors together, left on the device of the first.

    ``shards_of`` are the tensors whose shards these are, where they are buffers of one rank. A
    ``wide`` sum holds the squares of all numbers: for those that nobody looks at again.
    """
    if not tensors:
        return torch.zeros(())
    if wide or not are_plain(shards_of or tensors):
        return torch.linalg.vector_norm(_power_norms(tensors, 2, wide, shards_of))
    lines, others = joined(tensors)
    found = [_norms_alike([line], 2, wide=False) for line in lines]
    if others:
        found.append(_power_norms(others, 2))
    home = tensors[0].device
    vector = torch.cat([n.to(home) for n in found]) if len(found) > 1 else found[0]
    return torch.linalg.vector_norm(vector)


def norm_on_host(tensors: Sequence[Tensor], shards_of: Sequence[Tensor] | None = None) -> float:
    """The Euclidean norm of all tensors together, as a number; infinite or NaN if one is."""
    (found,) = to_host(norm(tensors, shards_of).reshape(1))
    return found if _is_trusted(found) else math.hypot(*norms(tensors, shards_of))


class Measured:
    """The norm of tensors, together and of each where asked for, and numbers ``beside`` it.

    They stay on the device until the host first needs one, and one transfer then brings all.

    Args:
        tensors: what to measure.
        each: whether each tensor is measured on its own too.
        scale: what norms are divided by.
        late: whether the host may ask for them after the tensors are gone. Nobody can look again
            then, so more bits are used at once.
        beside: numbers of the same transfer, by name; None where there is none.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        each: bool = False,
        scale: float = 1.0,
        late: bool = False,
        **beside: Tensor | None,
    ) -> None:
        self._scale, self._each = scale, each
        self._tensors: Sequence[Tensor] | None = tensors  # to look at again
        self.is_late = late
        found = _power_norms(tensors, 2, late) if tensors and (each or late) else norm(tensors)
        own = (found if each else torch.linalg.vector_norm(found)).reshape(-1)
        asked = {name: number for name, number in beside.items() if number is not None}
        self._names, self._count = list(asked), own.numel()
        beside_it = [n.detach().reshape(1).to(own) for n in asked.values()]  # pyright: ignore
        self.vector = torch.cat([own, *beside_it])
        self._own: list[float] = []
        self._numbers: dict[str, float] | None = None
        self._total = 0.0

    @property
    def is_known(self) -> bool:
        """Whether the host has the numbers."""
        return self._numbers is not None

    @property
    def total(self) -> Tensor:
        """The norm of all tensors, not divided by the scale; still on the device."""
        return torch.linalg.vector_norm(self.vector[: self._count])

    @property
    def norm(self) -> float:
        """The norm of all tensors."""
        self.fetch()
        return self._total / self._scale

    @property
    def norms(self) -> list[float]:
        """The norm of each, where asked for."""
        self.fetch()
        return [n / self._scale for n in self._own] if self._each else []

    def number(self, name: str) -> float | None:
        """The number beside it of this name; None where there is none."""
        self.fetch()
        return (self._numbers or {}).get(name)

    def fetch(self) -> None:
        """Bring the numbers to the host, unless they are there."""
        if not self.is_known:
            self.take(to_host(self.vector))

    def take(self, found: Sequence[float]) -> None:
        """The numbers of :attr:`vector`, which came with others."""
        own = list(found[: self._count])
        total = math.hypot(*own)
        if not _is_trusted(total) and self._tensors is not None:
            own = norms(self._tensors)
            total = math.hypot(*own)
        self._own, self._total = own, total
        self._numbers = dict(zip(self._names, found[self._count :], strict=True))

    def let_go(self) -> None:
        """The tensors are about to be overwritten: nobody looks at them again."""
        self._tensors = None


def is_here(tensor: Tensor) -> bool:
    """Whether the host reads the tensor's numbers without waiting for a device."""
    return tensor.is_cpu


def has_wide_numbers(tensor: Tensor) -> bool:
    """Whether the tensor's device can sum squares that float32 cannot hold."""
    return _widest(tensor.device) is torch.float64


def zero_up_to(least: float | Tensor, number: float | Tensor) -> float | Tensor:
    """The number, or 0 where it is at most ``least``; on the device where both are."""
    if isinstance(number, Tensor):
        return torch.where(number <= least, 0.0, number)
    return 0.0 if number <= least else number


def add_on_device(
    targets: Sequence[Tensor],
    sources: Sequence[Tensor],
    factors: Sequence[float | Tensor],
    factor: Tensor,
    moves: Tensor,
    overwrite: bool,
) -> None:
    """``targets[i] ← targets[i] + factors[i] · factor · sources[i]``, or stay where they are.

    They stay unless ``moves``, whatever the sources hold: zero times infinity would be no number.
    Numbers on the device are never fetched from it. ``overwrite`` the sources and no
    memory is needed; else a million numbers at a time, or the largest source.
    """
    written, read = real(local(targets)), real(local(sources))
    rows_of: dict[object, list[int]] = {}
    for i, t in enumerate(read):
        one = factors[i]
        kind = id(one) if isinstance(one, Tensor) else one
        rows_of.setdefault((kind, t.dtype, t.device), []).append(i)
    for rows in rows_of.values():
        first = read[rows[0]]
        bits = _BITS[first.element_size()]
        headroom = _HEADROOM.get(first.dtype, 1.0)
        own = _factor_of(first, factor * (factors[rows[0]] / headroom))
        moved = moves.to(device=first.device, dtype=bits)
        whole = [range(len(rows))]
        for batch in whole if overwrite else _batches([read[i].numel() for i in rows]):
            chosen = [rows[i] for i in batch]
            made = [read[i] for i in chosen]
            if overwrite:
                torch._foreach_mul_(made, own)
            else:
                made = list(torch._foreach_mul(made, own))
            torch._foreach_mul_([t.view(bits) for t in made], moved)
            torch._foreach_add_([written[i] for i in chosen], made, alpha=headroom)


def _is_trusted(found: float) -> bool:
    """Squares of finite numbers can leave float32's range: look again before judging those."""
    return found > 0.0 and math.isfinite(found)


def dot(
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    factor: float | Tensor,
    scratch: Sequence[Tensor],
    shards_of: Sequence[Tensor],
) -> Tensor:
    """``factor · left`` times ``right``, over all tensors, left on the device.

    ``scratch`` is overwritten.
    """
    a, b, products = real(local(left)), real(local(right)), real(scratch)
    dense = [i for i, pair in enumerate(zip(a, b, strict=True)) if _strided(*pair)]
    total = torch.zeros((), device=a[0].device)
    for i in set(range(len(a))).difference(dense):
        total = total + (a[i] * factor * b[i]).coalesce().values().sum()
    for half in (False, True):
        rows = [i for i in dense if (a[i].dtype in HALF) == half]
        for batch in _batches([a[i].numel() for i in rows]) if half else [range(len(rows))]:
            chosen = [rows[i] for i in batch]
            lefts, rights, written = ([ts[i] for i in chosen] for ts in (a, b, products))
            if half:  # products of 16-bit numbers need more than 16 bits
                written = [torch.empty_like(t, dtype=torch.float32) for t in written]
            owners = [shards_of[i] for i in chosen]
            total = total + _dense_dot(factor, lefts, rights, written, owners)
    return total


def _batches(sizes: list[int]) -> list[range]:
    """Neighbouring tensors together, up to a million numbers, to bound what they need."""
    ends, size_so_far = [0], 0
    for i, size in enumerate(sizes):
        if size_so_far + size > _BATCH and i > ends[-1]:
            ends.append(i)
            size_so_far = 0
        size_so_far += size
    return [range(i, j) for i, j in zip(ends, [*ends[1:], len(sizes)], strict=True)]


def _dense_dot(
    factor: float | Tensor,
    left: list[Tensor],
    right: list[Tensor],
    products: list[Tensor],
    shards_of: list[Tensor],
) -> Tensor:
    """There is no foreach sum, so two foreach 1-norms: ``Σ x = Σ|x| − 2 Σ|min(x, 0)|``."""
    if not left:
        return torch.zeros(())
    torch._foreach_copy_(products, left)
    scale(products, factor)
    torch._foreach_mul_(products, right)
    whole = _power_norms(products, 1, shards_of=shards_of).sum()
    torch._foreach_clamp_max_(products, 0.0)
    return whole - 2.0 * _power_norms(products, 1, shards_of=shards_of).sum()


def _strided(*tensors: Tensor) -> bool:
    return all(t.layout == torch.strided for t in tensors)


def largest_number(tensors: Sequence[Tensor]) -> float:
    """What the narrowest of the tensors' dtypes holds; infinity where there is no tensor."""
    return min((torch.finfo(dtype).max for dtype in {t.dtype for t in tensors}), default=math.inf)


def largest_eps(tensors: Sequence[Tensor]) -> float:
    """The coarsest rounding unit among the tensors' dtypes."""
    return max(torch.finfo(dtype).eps for dtype in {t.dtype for t in tensors})


def _power_norms(
    tensors: Sequence[Tensor],
    order: int,
    wide: bool = False,
    shards_of: Sequence[Tensor] | None = None,
) -> Tensor:
    """``(Σ |x|^order)^(1/order)`` of each tensor over all of its shards, as one vector."""
    plain = [t.coalesce().values() if t.is_sparse else t for t in local(tensors)]
    kinds = _alike(plain, _DTYPE_AND_DEVICE)
    if len(kinds) == 1:
        vector = _norms_alike(plain, order, wide)
    else:
        home = plain[0].device
        vector = torch.empty(len(plain), dtype=_widest(home), device=home)
        for rows in kinds:
            vector[rows] = _norms_alike([plain[i] for i in rows], order, wide).to(vector)
    return _over_shards(vector, shards_of or tensors, order)


def _norms_alike(tensors: list[Tensor], order: int, wide: bool) -> Tensor:
    """The norms of tensors of one dtype on one device."""
    return torch.stack(torch._foreach_norm(tensors, order, dtype_of_norms(tensors[0], wide)))


def dtype_of_norms(tensor: Tensor, wide: bool) -> torch.dtype | None:
    """What squares are summed in: of 16-bit numbers 32 bits, ``wide`` as many as there are."""
    if not wide:
        return torch.float32 if tensor.dtype in HALF else None
    dtype = _widest(tensor.device)
    return dtype.to_complex() if tensor.is_complex() else dtype


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def widened(number: Tensor) -> Tensor:
    """The same number in as many bits as its device has."""
    return number.to(_widest(number.device))


def _over_shards(vector: Tensor, tensors: Sequence[Tensor], order: int) -> Tensor:
    """Each entry's norm over the shards of all ranks: one collective per device mesh."""
    if are_plain(tensors):
        return vector
    from torch.distributed.tensor import DTensor, Partial, Replicate

    powers = vector.to(_widest(vector.device)) ** order
    for rows in _alike(tensors, _sharding):
        first = tensors[rows[0]]
        if isinstance(first, DTensor):
            summed = [Partial() if p.is_shard() else Replicate() for p in first.placements]
            share = DTensor.from_local(powers[rows], first.device_mesh, summed)
            powers[rows] = share.full_tensor()
    return powers ** (1.0 / order)


def _sharding(tensor: Tensor) -> object:
    placements = getattr(tensor, "placements", None)
    return placements and (cast(Any, tensor).device_mesh, placements)


def _alike(tensors: Sequence[Tensor], kind: Callable[[Tensor], object]) -> list[list[int]]:
    """The indices of the tensors, split by ``kind``; one list where all are of one kind."""
    if len(set(map(kind, tensors))) == 1:
        return [list(range(len(tensors)))]
    kinds: dict[object, list[int]] = {}
    for i, tensor in enumerate(tensors):
        kinds.setdefault(kind(tensor), []).append(i)
    return list(kinds.values())


def average(targets: Sequence[Tensor], group: Any) -> None:
    """``targets ←`` their mean over the processes of a group, which all have the same ones."""
    if any(t.is_sparse for t in targets):
        raise TypeError(
            "gradients of an embedding with sparse=True cannot be averaged here: make it with "
            "sparse=False"
        )
    processes = torch.distributed.get_world_size(group)
    for rows in _alike(targets, _DTYPE_AND_DEVICE) if targets else []:
        chosen = [targets[i] for i in rows]
        together: Tensor = _flatten_dense_tensors(chosen)
        torch.distributed.all_reduce(together, group=group)
        together.div_(processes)
        means = cast(tuple[Tensor, ...], _unflatten_dense_tensors(together, chosen))
        torch._foreach_copy_(chosen, means)


def real(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Complex tensors as pairs of reals, in the same storage."""
    if not any(map(Tensor.is_complex, tensors)):
        return list(tensors)
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
