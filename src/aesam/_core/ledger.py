"""What a step may change: all of it is noted in one place, and committed as a whole or not at all.

How a step is decided and made is in :mod:`aesam._core.step`.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from aesam._core import tensors
from aesam._core.blocks import Blocks
from aesam._core.bystanders import Watch
from aesam._core.compared_forwards import ComparedForwards
from aesam._core.construction import Parts
from aesam._core.guards import RandomState
from aesam._core.health import Seen, Sighting, Sightings
from aesam._core.local_gradients import LocalGradients
from aesam._core.moved_forwards import MovedForwards
from aesam._core.tensors import Measured, Workspace
from aesam.parts.part import Gradient, Memory, MemoryPart, Part

_NO_MEMORY = Memory()

#: The block in which a trainer's own callbacks may make the passes.
CLOSURE = "opt.step(closure)"
_INSIDE_CLOSURE = ("first_pass()", "needs_second_pass()", "perturbed()")


@dataclass(frozen=True)
class StepRecord:
    """What the last finished step saw and did; equal where the decision and its reasons are.

    Args:
        index: of the step, from 0.
        used_sam: whether it took a second gradient.
        squared_norm: ``‖g‖²`` at ``w``.
        mean: μ_t (Eq. 4), None where the policy has none; the same for the next two.
        std: σ_t (Eq. 5).
        threshold: what ``‖g‖²`` was held against: μ_t + c_t σ_t, or a budget's own.
        radius_factor: what ρ was multiplied by (``compensate``), 1 without; None on a step that
            took no second gradient.
        rise: of the loss from ``w`` to ``w + ε``, as a share of it; None where the losses were not
            seen. This and the next three as in :class:`aesam.Health`, of this step alone.
        cosine: of the angle between both gradients; None on most steps, which do not look at it.
        bend: ``‖g_v‖/‖g‖``; None on the same steps.
        seconds: that the second pass took, as the host sees it; None without one.

    >>> StepRecord(index=0, used_sam=True, squared_norm=4.0).threshold is None
    True
    """

    index: int
    used_sam: bool
    squared_norm: float
    mean: float | None = None
    std: float | None = None
    threshold: float | None = None
    radius_factor: float | None = None
    rise: float | None = field(default=None, compare=False)
    cosine: float | None = field(default=None, compare=False)
    bend: float | None = field(default=None, compare=False)
    seconds: float | None = field(default=None, compare=False)

    def with_sight(self, seen: Seen) -> "StepRecord":
        """The same with what its second pass saw."""
        return replace(self, **vars(seen))


@dataclass(frozen=True)
class Committed:
    """Everything that a step changes: replaced as a whole, or not at all.

    ``memories`` are those of the parts that remember anything, by the part's question.
    """

    policy: Mapping[str, float]
    generators: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    memories: Mapping[str, Memory] = field(default_factory=dict[str, Memory])
    step: int = 0
    sam_steps: int = 0

    def memory(self, name: str) -> Memory:
        return self.memories.get(name, _NO_MEMORY)


@dataclass(frozen=True)
class SecondPass:
    """What a second pass that was decided needs; one that does not ascend is made at ``w``."""

    gradient: Gradient
    versions: list[int]
    random: RandomState | None
    losses: Tensor | None
    ascends: bool = True
    radius_factor: float = 1.0


@dataclass
class Pending:
    """A step that was decided and not yet taken.

    ``after`` is what taking it commits; it is None where a gradient is not finite. ``released`` are
    the tensors of memories that it replaces, which then go back to the workspace. ``backwards`` are
    the backward passes that made the first gradient, where they were counted. ``carried`` is what
    parts have for after the base's update, by question. ``loss`` is that of the first pass where it
    was told, ``sighting`` what the second one sees, ``seen`` that in plain numbers; ``numbers`` are
    those of the first gradient, perhaps still on the device. ``returned`` is what the base's update
    returned, once it has; ``afterwards`` then acts for the parts that have something to do after
    it, those in ``acted`` have. ``of_loop`` is the first gradient where the loop's own forward and
    backward are the second pass, and ``step()`` is to make the direction of what they leave.
    """

    after: Committed | None
    record: StepRecord | None = None
    generators: Mapping[str, torch.Generator] = field(default_factory=dict[str, torch.Generator])
    ahead: SecondPass | None = None
    of_loop: Gradient | None = None
    numbers: Measured | None = None
    norm_at_ascent: Tensor | None = None
    norm_of_direction: float = 0.0
    carried: dict[str, Any] = field(default_factory=dict[str, Any])
    scale: float = 1.0
    is_unscaled: bool = False
    backwards: int | None = None
    loss: Tensor | None = None
    sighting: Sighting | None = None
    seen: Seen | None = None
    released: list[dict[Tensor, Tensor]] = field(default_factory=list[dict[Tensor, Tensor]])
    returned: list[object] = field(default_factory=list[object])
    afterwards: Callable[[], None] = lambda: None
    acted: list[object] = field(default_factory=list[object])


#: A second pass that was decided, and what it needs.
Decided = tuple[Pending, SecondPass]


class Complete:
    """A decision whose passes are made, and the direction in ``p.grad`` that it left."""

    def __init__(self, pending: Pending, params: list[Tensor]) -> None:
        self.pending = pending
        self._held = [(p.grad, tensors.version(p.grad)) for p in params]

    def was_touched(self, params: list[Tensor]) -> bool:
        """Whether a closure changed that direction."""
        now = [(p.grad, tensors.version(p.grad)) for p in params]
        both = zip(now, self._held, strict=True)
        return any(g is not held or v != then for (g, v), (held, then) in both)


class Ledger:
    """The one mutable object of an optimizer, changed in place only.

    Wrappers that subclass the optimizer at run time share it by reference.
    """

    def __init__(self, parts: Parts, committed: Committed) -> None:
        self.parts = parts
        # Whether nobody has said yet how long the training is; a checkpoint's word holds till then.
        self.total_left_out = parts.needs_total_steps
        self.committed = committed
        self.skipped = 0
        self.last_step: StepRecord | None = None
        self.warned: set[str] = set()
        self._begin_idle()

    def _begin_idle(self) -> None:
        self.pending: Pending | None = None
        self.random: RandomState | None = None
        self.drawn: dict[str, torch.Generator] | None = None
        self.moved_forwards: MovedForwards | None = None
        self.compared_forwards: ComparedForwards | None = None
        self.sightings = Sightings(self.committed.sam_steps)
        self.workspace = Workspace()
        self.watch = Watch()
        self.local = LocalGradients()
        self.blocks = Blocks(self.end_step)
        self._mode: str | None = None  # of a base with two sets of weights, as last told

    @property
    def block(self) -> str | None:
        """The block that we are in, by its name; None outside of all."""
        return self.blocks.name

    @property
    def awaits_backward(self) -> bool:
        """Whether a forward has moved the weights and its backward has not ended."""
        return self.moved_forwards is not None and self.moved_forwards.is_away

    def begin(self, call: str) -> None:
        """Begin anew: a pending step is discarded; refused inside a pass."""
        self.ready_for(call)
        self.discard()

    def ready_for(self, call: str) -> None:
        """Refuse ``call`` inside a pass; end a pass that an interrupt left behind."""
        self.blocks.drop_left()
        self._forget_forward()
        if self.block is not None and not (self.block == CLOSURE and call in _INSIDE_CLOSURE):
            raise RuntimeError(f"{call} inside `with {self.block}`: leave that block first")

    def _forget_forward(self) -> None:
        """Bring the weights back from a forward whose backward has not ended."""
        if self.moved_forwards is not None:
            self.moved_forwards.no_forward_is_running()
            self.moved_forwards.bring_back()
        if self.compared_forwards is not None:
            self.compared_forwards.no_forward_is_running()

    def switch(self, mode: str, switch: Callable[[], object] | None) -> None:
        """Let a base with two sets of weights change to the other.

        Trainers say ``train()`` before every forward, that of a pass too: nothing to do then.
        """
        if switch is None or (mode == "train" == self._mode and self.block is not None):
            return
        if self.blocks.are_displaced or mode == "eval":
            self.ready_for(f"{mode}()")
        switch()
        self._mode = mode

    def discard(self) -> None:
        """Drop the pending step, if any: it counts as skipped and leaves no other trace."""
        if self.pending is not None:
            self.pending, self.skipped = None, self.skipped + 1

    def clear_gradients(self) -> None:
        """Those of what parts remember, where it takes part in the forward and has its own."""
        for name in self.parts.movers:
            for remembered in self.committed.memory(name).tensors.values():
                remembered.grad = None

    def forget_first_pass(self) -> None:
        """What a first pass began with is of no use any more: no decision follows."""
        self.random = self.drawn = None
        self.announce(1.0)

    def announce(self, scale: float) -> None:
        """Say by which factor the losses that follow are multiplied before a backward."""
        if self.compared_forwards is not None:
            self.compared_forwards.announced = scale

    def end_step(self) -> None:
        """End the step under way after an error: taken if the base's update returned."""
        self.forget_first_pass()
        if self.moved_forwards is not None:
            self.moved_forwards.bring_back()
        if self.pending is not None and self.pending.returned:
            with suppress(Exception):  # which was raised already
                self.pending.afterwards()
            self.commit(self.pending)
        else:
            self.discard()

    def commit(self, pending: Pending) -> None:
        """Take the step; done twice, after an interrupt, it is taken once."""
        if pending.after is not None and self.committed is not pending.after:
            record = pending.record
            if record is not None and pending.seen is not None:
                record = record.with_sight(pending.seen)
            self.committed, self.last_step = pending.after, record
            self.sightings.note(pending.seen)
        released, pending.released = pending.released, []
        self.pending = None
        for tensors_of in released:
            self.workspace.give(list(tensors_of), list(tensors_of.values()))

    def continue_from(self, committed: Committed, skipped: int) -> None:
        """Go on from a checkpoint; a step under way is forgotten."""
        self.committed, self.skipped = committed, skipped
        self.sightings = Sightings(committed.sam_steps)
        self.last_step = self.pending = self._mode = None
        self.forget_first_pass()

    def __getstate__(self) -> dict[str, Any]:
        self.ready_for("copying or pickling the optimizer")
        kept = ("parts", "total_left_out", "committed", "skipped", "last_step", "warned")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_idle()


def start(policy_state: Mapping[str, float], parts: Mapping[str, Part]) -> Committed:
    """What holds before the first step; each seed of a part gets a generator of its own.

    They are named after the part's question, followed by the path of a seed of a member's.
    """
    generators = {
        f"{name}.{path}" if path else name: torch.Generator().manual_seed(seed).get_state()
        for name, part in parts.items()
        for path, seed in part.seeds().items()
    }
    begun = {n: part.start() for n, part in parts.items() if isinstance(part, MemoryPart)}
    memories = {name: memory for name, memory in begun.items() if memory != _NO_MEMORY}
    return Committed(policy=policy_state, generators=generators, memories=memories)
