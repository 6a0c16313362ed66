"""All that changes in training: what is committed, and the step under way."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aesam._core.guards import Displacement, RandomState
from aesam._core.tensors import Workspace
from aesam.parts.part import Gradient, Memory, Part


@dataclass(frozen=True)
class StepRecord:
    """What the last finished step saw and did.

    Args:
        index: of the step, from 0.
        used_sam: whether it took the second gradient.
        squared_norm: ``‖g‖²``.
        mean: ``μ_t`` (Eq. 4), None where the policy has none, as for the next two.
        std: ``σ_t`` (Eq. 5).
        threshold: ``μ_t + c_t σ_t``.

    >>> StepRecord(index=0, used_sam=True, squared_norm=4.0).threshold is None
    True
    """

    index: int
    used_sam: bool
    squared_norm: float
    mean: float | None = None
    std: float | None = None
    threshold: float | None = None


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
        return self.memories.get(name) or Memory()


@dataclass(frozen=True)
class SecondPass:
    """What a second pass that was decided needs."""

    gradient: Gradient
    versions: list[int]
    random: RandomState | None
    losses: Tensor | None


@dataclass
class Pending:
    """A step that was decided and not yet taken.

    ``after`` is what taking it commits; it is None where a gradient is not finite. ``released`` are
    memories that it replaces and whose tensors go back to the workspace.
    """

    after: Committed | None
    record: StepRecord | None = None
    generators: Mapping[str, torch.Generator] = field(default_factory=dict[str, torch.Generator])
    ahead: SecondPass | None = None
    norm_at_ascent: Tensor | None = None
    norm_of_second: float = 0.0
    carried: Any = None
    scale: float = 1.0
    released: list[Memory] = field(default_factory=list[Memory])


class Ledger:
    """The one mutable object of an optimizer, changed in place only.

    Wrappers that subclass the optimizer at run time share it by reference.
    """

    def __init__(self, committed: Committed) -> None:
        self.committed = committed
        self.skipped = 0
        self.last_step: StepRecord | None = None
        self.warned: set[str] = set()
        self._begin_idle()

    def _begin_idle(self) -> None:
        self.pending: Pending | None = None
        self.random: RandomState | None = None
        self.workspace = Workspace()
        self._inside: str | None = None
        self._displaced: Displacement | None = None

    @property
    def is_idle(self) -> bool:
        return self._inside is None and self.pending is None

    def ready_for(self, call: str) -> None:
        """Refuse ``call`` inside a pass; bring weights home that an interrupt left behind."""
        if self._inside is not None:
            raise RuntimeError(f"{call} inside `with {self._inside}`: leave that block first")
        if self._displaced is not None:
            self._bring_home(self._displaced)

    @contextmanager
    def inside(self, block: str, displacement: Displacement | None) -> Generator[None]:
        """Weights displaced inside; back to the bit outside, whatever happened."""
        self._inside, self._displaced = block, displacement
        try:
            if displacement is not None:
                displacement.move()
            yield
        finally:
            self._inside = None
            if displacement is not None:
                self._bring_home(displacement)

    def _bring_home(self, displacement: Displacement) -> None:
        displacement.restore()
        self._displaced = None

    def discard(self) -> None:
        """Drop the pending step, if any: it counts as skipped and leaves no other trace."""
        if self.pending is not None:
            self.pending = None
            self.skipped += 1

    def commit(self, after: Committed, pending: Pending) -> None:
        for memory in pending.released:
            self.workspace.give(list(memory.tensors), list(memory.tensors.values()))
        self.committed, self.last_step = after, pending.record

    def continue_from(self, committed: Committed, skipped: int) -> None:
        """Go on from a checkpoint; a step under way is forgotten."""
        self.committed, self.skipped = committed, skipped
        self.last_step = self.pending = self.random = None

    def __getstate__(self) -> dict[str, Any]:
        self.ready_for("copying or pickling the optimizer")
        kept = ("committed", "skipped", "last_step", "warned")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_idle()


def start(policy_state: Mapping[str, float], parts: Mapping[str, Part]) -> Committed:
    """The state before the first step; each part with a seed gets a generator of its own."""
    seeds = {name: getattr(part, "seed", None) for name, part in parts.items()}
    generators = {
        name: torch.Generator().manual_seed(seed).get_state()
        for name, seed in seeds.items()
        if seed is not None
    }
    return Committed(policy=policy_state, generators=generators)
