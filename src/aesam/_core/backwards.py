"""The backward passes that wrote into ``p.grad``: how many, and what the last one left there."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# What tells one backward from another, and when it has ended, carries an underscore in torch.

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn.parameter import is_lazy

from aesam._core import tensors
from aesam._core.blocks import Block

current_task: Callable[[], int] = torch._C._current_graph_task_id
_queue_callback: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback


class Backwards:
    """Counts backward passes since the gradients were last cleared, by hooks on the parameters.

    A pass is told by its number in the autograd engine, so it counts once, whichever parameters
    it reaches. FSDP2 fires no hooks on its parameters: there the output of the root is looked at.
    """

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.events = 0  # counts up with every backward and every clearing
        self._parameters: dict[int, weakref.ref[Tensor]] = {}
        self._left: dict[int, tuple[int, int]] = {}  # of each gradient: identity and version
        self._followed: tuple[list[int], int] = [], 0
        self._probes: dict[int, Tensor] = {}
        self._edited = False
        self.on_end: weakref.WeakMethod[Callable[[], None]] | None = None
        self._last = -1
        self._open: int | None = None
        self._ignores = False
        self._are_moved = False
        self._moved: set[int] = set()  # those of passes at moved weights
        self._arrived = _hook_for(weakref.ref(self))

    @property
    def count(self) -> int:
        return len(self.tasks)

    def follow(self, params: Sequence[Tensor]) -> None:
        """Watch these parameters; those that are watched already cost a look-up."""
        known, keys = self._parameters, list(map(id, params))
        if (keys, len(known)) == self._followed:
            return  # none has gone since
        for p in params:
            if id(p) not in known and p.requires_grad and p.is_leaf and not is_lazy(p):
                known[id(p)] = weakref.ref(p, _forgetter(known, id(p)))
                handle: Any = p.register_post_accumulate_grad_hook(self._arrived)
                weakref.finalize(self, handle.remove)
        if known.keys() >= set(keys):
            self._followed = keys, len(known)

    def ignore(self, block: Block) -> None:
        """Count nothing within the block, whose gradients nobody else sees."""
        block.will(self._heed)
        self._ignores = True

    def _heed(self) -> None:
        self._ignores = False

    def at_moved_weights(self, block: Block) -> None:
        """Note that what begins within the block is of weights where they should be."""
        block.will(self._at_home)
        self._are_moved = True

    def _at_home(self) -> None:
        self._are_moved = False

    def is_of_moved_weights(self, task: int) -> None:
        """Note the same of one of them."""
        self._moved = {*self._moved.intersection(self.tasks), task}

    @property
    def are_of_moved_weights(self) -> bool:
        """Whether all of them are, as far as they were counted."""
        return self._moved.issuperset(self.tasks)

    def clear(self) -> None:
        """The gradients were cleared, or taken by a step."""
        self.tasks.clear()
        self._left.clear()
        self._probes.clear()
        self._open, self._edited = None, False
        self.events += 1

    def at_root(self, task: int, sharded: bool) -> None:
        """A gradient arrived at the model's output: passes nested in this one belong to it."""
        if self._open != task:
            self._open = task
            _queue_callback(self._soon)
        if sharded:
            self._began(task, None)

    def at_parameter(self, task: int, param: Tensor) -> None:
        if self._ignores:
            return
        self._last = task
        if self._open is None:
            _queue_callback(self._soon)
        self._began(task if self._open is None else self._open, param)

    def none_is_running(self) -> None:
        """A backward that an exception ended has no end of its own."""
        self._open = None

    def _began(self, task: int, param: Tensor | None) -> None:
        if self.tasks and self.tasks[-1] == task:
            return
        if self.tasks and self._were_cleared(param):
            self.tasks.clear()
        self.tasks.append(task)
        self.events += 1
        if self._are_moved:
            self.is_of_moved_weights(task)

    def _were_cleared(self, arrived: Tensor | None) -> bool:
        """Whether the gradients of before are gone, though nobody told us."""
        before = [
            p for i in self._left if (r := self._parameters.get(i)) and (p := r()) is not None
        ]
        others = [p for p in before if p is not arrived]
        if others:
            held = [p for p in others if p.grad is not None]
            written = [p for p in held if self._stamp(p) != self._left[id(p)]]
            if any(p.grad is not None and bool(p.grad.any()) for p in written):
                self._edited = True  # between two backwards, where no decision sees it
                return False
            return len(written) == len(held)  # all of them gone, or zeroed in place
        if arrived is None or arrived.grad is None or not before:
            return False
        identity, version = self._left[id(arrived)]
        return self._stamp(arrived) != (identity, version + 1)

    @staticmethod
    def _stamp(param: Tensor) -> tuple[int, int]:
        return id(param.grad), tensors.version(param.grad)

    def _soon(self) -> None:
        # DDP and FSDP2 finish the gradients in callbacks of their own: behind those.
        _queue_callback(self._ended)

    def _ended(self) -> None:
        self._open = None
        alive = [p for r in self._parameters.values() if (p := r()) is not None]
        there = [(p, g) for p in alive if (g := p.grad) is not None]
        versions = tensors.versions([g for _, g in there])
        self._left = {id(p): (id(g), v) for (p, g), v in zip(there, versions, strict=True)}
        self._probes = {}
        dense = [(p, g) for p, g in there if not g.is_sparse]
        for some in (dense, [pair for pair in dense if pair[1].dim() > 1]):
            if some:
                owner, smallest = min(some, key=_size)
                self._probes[id(owner)] = smallest.detach().clone()
        told = self.on_end() if self.on_end is not None else None
        if told is not None:
            told()

    def were_edited(
        self, params: Sequence[Tensor], values: Sequence[Tensor], idle_writes: int = 0
    ) -> bool:
        """Whether gradients were written to since the last backward ended, as clipping does.

        ``idle_writes`` to each of them are known to have changed nothing.
        """
        if self._edited or not self.tasks:
            return self._edited
        found, known = self._left, self._parameters
        stamps = zip(map(id, params), map(id, values), tensors.versions(values), strict=True)
        return any(
            found.get(p) != (g, version - idle_writes) for p, g, version in stamps if p in known
        )

    def lost_any(self, params: Iterable[Tensor]) -> bool:
        """Whether a gradient is gone that the last backward left, as if it were frozen."""
        return bool(self.tasks) and not self._left.keys() <= {id(p) for p in params}

    def drift(self, params: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor | None:
        """How far two small gradients have moved since the last backward ended; on the device.

        Unscaling and ``p.grad.data`` write to gradients without counting up their versions, and so
        does anything that is done to DTensors.
        """
        if not self._probes:
            return None
        now = dict(zip(map(id, params), values, strict=True))
        pairs = [
            (g, then)
            for key, then in self._probes.items()
            if (g := now.get(key)) is not None and g.shape == then.shape
        ]
        # Equal infinities, which an overflow leaves, are no drift; their difference is no number.
        moves = [torch.where(g == then, 0.0, g - then).nan_to_num(0.0) for g, then in pairs]
        return tensors.norm(moves) if moves else None


def _size(pair: tuple[Tensor, Tensor]) -> int:
    return pair[0].numel()


def _hook_for(own: "weakref.ref[Backwards]") -> Callable[[Tensor], None]:
    """Holds neither the optimizer nor its parameters, so that both can go."""

    def arrived(param: Tensor) -> None:
        backwards = own()
        if backwards is not None and backwards._last != (task := current_task()):
            backwards.at_parameter(task, param)

    return arrived


def _forgetter(known: dict[int, Any], key: int) -> Callable[[object], None]:
    return lambda _: known.pop(key, None) and None
