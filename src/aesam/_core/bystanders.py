"""What else a pass writes without gradient: statistics in frozen parameters, and metrics.

The first pass of a step may do so, the second must leave no trace. Buffers are few and copied
always; of frozen parameters a model may have billions, so only those are copied that the passes
have been seen to write.
"""

import math
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from aesam._core import messages, tensors
from aesam._core.guards import Buffers, is_written_in_place

_SAMPLE = 1 << 12  # numbers of a tensor that are kept to notice a write that leaves no trace

_LONGEST = 1 << 16  # entries of a collection that is looked into

#: A parameter's version and address: both stay as they are unless somebody writes to it.
Stamp = tuple[int, int]


class Bystanders:
    """Everything in the model that a pass may write without gradient, as it is now."""

    def __init__(self, model: nn.Module | None, watch: "Watch") -> None:
        modules = [] if model is None else list(model.modules())
        self._model = model
        # The gathered weights of FSDP2 would be taken for frozen parameters of their own, and their
        # memory is gone when it comes to writing to them again.
        sharded: list[Any] = [m for m in modules if hasattr(type(m), "reshard")]
        for module in sharded:
            module.reshard()
        self._buffers = Buffers(modules)
        self._frozen = Frozen(modules, watch)
        self._metrics = Metrics(modules)

    def restore(self) -> None:
        """Put all of it back, to the bit."""
        self._buffers.restore()
        self._frozen.restore()
        self._metrics.restore()

    def refuse_lost(self) -> None:
        """Raise if the second pass overwrote what nothing before it had announced."""
        if self._model is not None and self._frozen.lost:
            lost = self._frozen.lost
            names = [name for name, p in self._model.named_parameters() if id(p) in lost]
            raise RuntimeError(messages.LOST_STATISTICS.format(names=", ".join(names)))


# Frozen parameters -------------------------------------------------------------------------------


class Watch:
    """Which frozen parameters the passes write, learned from step to step without copying them.

    A parameter that was written has another version than when it was last looked at, or another
    address (``p.data = …``, as MoCo's key encoder). A write into ``p.data`` leaves neither: some
    numbers of each are therefore kept from before the very first pass until the first look.
    """

    def __init__(self) -> None:
        self._stamps: dict[int, Stamp] = {}
        self._samples: dict[int, Tensor] = {}
        self._written: set[int] = set()
        self._has_begun = False

    def start(self, model: nn.Module | None) -> None:
        """Take what frozen parameters hold now for what no pass has written."""
        frozen = {} if model is None else {id(p): p for _, _, p in _frozen(model.modules())}
        self._stamps = _stamps_of(frozen)
        self._samples = {key: _sample(p).clone() for key, p in frozen.items()}
        self._has_begun = False

    def begin(self, model: nn.Module | None) -> None:
        """Start again before the very first pass: weights may have been loaded meanwhile."""
        if not self._has_begun:
            self.start(model)
            self._has_begun = True

    def suspects(self, frozen: Mapping[int, Tensor], now: dict[int, Stamp]) -> list[int]:
        """Those of the parameters, by their ids, that a pass may write."""
        found = [k for k in frozen if k in self._written or self._stamps.get(k) != now[k]]
        samples, self._samples = self._samples, {}
        unseen = samples.keys() & frozen.keys() - set(found) if samples else ()
        silent = [k for k in unseen if not torch.equal(samples[k], _sample(frozen[k]))]
        self._written.update(silent)
        return found + silent

    def learn(self, written: Iterable[int], now: dict[int, Stamp]) -> None:
        """Go on from what the parameters are after a second pass; ids of others are forgotten."""
        self._written = {key for key in (*self._written, *written) if key in now}
        self._stamps = now


class Frozen:
    """Copies of the frozen parameters that a pass may write, and which tensor is which."""

    def __init__(self, modules: Sequence[nn.Module], watch: Watch) -> None:
        self._watch = watch
        self._bound = _frozen(modules)
        self._all: dict[int, Tensor] = {id(p): p for _, _, p in self._bound}
        #: ids of parameters that the second pass wrote although nothing had before
        self.lost: set[int] = set()
        if not self._all:
            return
        self._before = _stamps_of(self._all)
        self._keys = watch.suspects(self._all, self._before)
        self._tensors = [self._all[key] for key in self._keys]
        self._copies = [p.detach().clone() for p in self._tensors]

    def restore(self) -> None:
        if not self._all:
            return
        now = _stamps_of(self._all)
        moved = {key for key, stamp in now.items() if stamp != self._before[key]}
        self.lost = moved.difference(self._keys)
        with torch.no_grad():
            tensors.assign(self._tensors, self._copies)
        for module, name, p in self._bound:
            held = module._parameters  # pyright: ignore[reportPrivateUsage]
            # A forward pass may put a new one in its place; of its own, FSDP2 puts shards there.
            if (found := held.get(name)) is not p and type(found) is Parameter:
                held[name] = p
        now.update(_stamps_of({key: self._all[key] for key in self._keys}))
        self._watch.learn(moved, now)


def _frozen(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, str, Parameter]]:
    """Plain ones only: no forward pass writes to shards or to quantised weights."""
    return [
        (module, name, p)
        for module in modules
        for name, p in module._parameters.items()  # pyright: ignore[reportPrivateUsage]
        if type(p) is Parameter and not (p.requires_grad or p.is_meta or p.is_inference())
    ]


def _stamps_of(frozen: Mapping[int, Tensor]) -> dict[int, Stamp]:
    strided = torch.strided
    return {
        key: (p._version, p.data_ptr() if p.layout is strided else 0)  # pyright: ignore[reportPrivateUsage]
        for key, p in frozen.items()
    }


def _sample(p: Tensor) -> Tensor:
    """Some of a parameter's numbers, evenly spread; all where they are few."""
    if p.layout is not torch.strided:
        return torch.empty(0)
    numbers = p.detach().flatten() if p.is_contiguous() else p.detach()
    return numbers[:: 1 + p.numel() // _SAMPLE] if numbers.dim() else numbers


# Metrics -----------------------------------------------------------------------------------------


class Metrics:
    """The metrics of torchmetrics in a model: each batch is counted once."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        library = sys.modules.get("torchmetrics")  # without it there are none
        kinds = tuple(
            kind
            for name in ("Metric", "MetricCollection")
            if isinstance(kind := getattr(library, name, None), type)
        )
        self._kept = [Attributes(m) for m in modules if isinstance(m, kinds)] if kinds else []

    def restore(self) -> None:
        for attributes in self._kept:
            attributes.restore()


def held_in(values: Iterable[Any]) -> list[Any]:
    """All objects, each once, with what collections among them hold, however deep."""
    found: dict[int, Any] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if id(value) in found:
            continue
        found[id(value)] = value
        if isinstance(value, list | tuple | deque | dict) and len(cast(Any, value)) <= _LONGEST:
            inside = cast(Any, value)
            waiting += inside.values() if isinstance(value, dict) else inside
    return list(found.values())


class Attributes:
    """The attributes of an object, and what the tensors and collections among them hold.

    ``leave`` names those that are none of ours; tensors with more numbers than ``largest`` are
    looked at and not copied.
    """

    def __init__(
        self, owner: object, leave: frozenset[str] = frozenset(), largest: float = math.inf
    ) -> None:
        self._own, self._leave = vars(owner), leave
        self._values: dict[str, Any] = {k: v for k, v in self._own.items() if k not in leave}
        found = held_in(self._values.values())
        # What carries a graph is nobody's running total; it is bound again, not copied.
        held = [v for v in found if isinstance(v, Tensor) and v.grad_fn is None]
        written = [t for t in held if is_written_in_place(t) and not t.is_inference()]
        self._tensors = [t for t in written if t.numel() <= largest]
        self._copies = [t.detach().clone() for t in self._tensors]
        self._seen = [(t, t._version) for t in written if t.numel() > largest]  # pyright: ignore[reportPrivateUsage]
        self._entries: list[tuple[Any, Any]] = [
            (v, v.copy()) for v in found if isinstance(v, list | deque | dict | set)
        ]

    def restore(self) -> None:
        for name in [k for k in self._own if k not in self._leave and k not in self._values]:
            del self._own[name]
        self._own.update(self._values)
        with torch.no_grad():
            tensors.assign(self._tensors, self._copies)
        for collection, entries in self._entries:
            collection.clear()
            put_back = collection.extend if hasattr(entries, "extend") else collection.update
            put_back(entries)

    def lost(self) -> list[str]:
        """The names of tensors that were too large to be copied and were written all the same."""
        changed = {id(t) for t, version in self._seen if t._version != version}  # pyright: ignore[reportPrivateUsage]
        return [name for name, value in self._values.items() if id(value) in changed]
