"""Random noise on the weights: where a gradient is taken, or left there after an update.

All draws are from a part's own generator: the same on every process, saved in checkpoints, and
never those of the model.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aesam._core import normals, tensors
from aesam._core.tensors import Workspace
from aesam.parts import checks
from aesam.parts.combine import Combine
from aesam.parts.part import Direction, Draws, Gradient, Memory, Tensors, radius, trained
from aesam.parts.single_pass import BeforePass


@dataclass(frozen=True)
class FilterNoise(BeforePass):
    """LPF-SGD's (Bisla et al. 2022): the gradient at ``w + ξ``, ``ξ`` in proportion to each filter.

    Each number of a filter has its own ``ξ ~ N(0, (γ‖w_f‖)²)``, ``‖w_f‖`` the norm of that filter:
    a slice of the parameter along its first dimension, and a parameter of one dimension is one
    filter (its authors' code). ``γ`` is the ``rho`` of the group. At step t of T it has grown to
    ``γ (1 + growth (1 − cos(πt/T))/2)``.

    Each forward and backward of a bare loop has a ``ξ`` of its own, so that M micro-batches are its
    authors' M; a closure or a block of ``first_pass()`` has one. :class:`Splits
    <aesam.parts.samples.Splits>` makes several of one batch.

    Args:
        growth: what is added to ``γ`` until the end of training, as a multiple of it, 0 or more; 0,
            the default, keeps it, and its authors also use 14.
        total_steps: optimizer steps of the whole training, a whole number from 1, which a growth
            needs; None by default.
        seed: of the draws, a whole number from 0, the default; checkpoints keep where they are.

    >>> w = torch.nn.Parameter(torch.ones(1000, 4))  # filters of norm 2
    >>> base = torch.optim.SGD([{"params": [w], "rho": 0.01}], lr=0.1)
    >>> lent = [torch.empty(1000, 4)]
    >>> FilterNoise().before_pass(base, Memory(), torch.Generator().manual_seed(0)).fill(lent)
    >>> round(lent[0].std().item(), 3)
    0.02
    """

    growth: float = 0.0
    total_steps: int | None = None
    seed: int = 0
    remembers = ("steps",)
    keeps_tensors = False

    def __post_init__(self) -> None:
        self._keep(
            growth=checks.at_least_zero("growth", self.growth),
            total_steps=checks.whole_or_none("total_steps", self.total_steps, least=1),
            seed=checks.seed("seed", self.seed),
        )

    @property
    def needs_total_steps(self) -> bool:
        return self.growth > 0.0 and self.total_steps is None

    def with_total_steps(self, total_steps: int | None) -> Any:
        return super().with_total_steps(total_steps) if self.growth > 0.0 else self

    def check_memory(self, memory: Memory) -> None:
        checks.at_least_zero("steps", memory.number("steps"))

    def before_pass(
        self, base: torch.optim.Optimizer, memory: Memory, generator: Draws
    ) -> Direction | None:
        grown = self.factor(memory.number("steps"))
        sizes = {p: size * grown for p, size in _sizes(base).items()}
        params = list(sizes)

        def draw(vectors: Tensors) -> None:
            normals.fill(vectors, params, generator)
            normals.scale_by_filters(vectors, params, list(sizes.values()))

        return Direction(params, [], [1.0] * len(params), length=1.0, fill=draw)

    def factor(self, step: float) -> float:
        """What ``γ`` is multiplied by at this step.

        Args:
            step: its index from 0; from ``total_steps`` on the factor stays.
        """
        if self.growth == 0.0:
            return 1.0
        done = min(1.0, step / self._known_total_steps())
        return 1.0 + self.growth * (1.0 - math.cos(math.pi * done)) / 2.0

    def before_base_step(
        self,
        base: torch.optim.Optimizer,
        memory: Memory,
        generator: Draws,
        workspace: Workspace,
    ) -> tuple[None, Memory]:
        return None, Memory({"steps": memory.number("steps") + 1.0})


@dataclass(frozen=True)
class _Exchange:
    """Noise that takes the place of the last, and which strokes of that are done."""

    new: Mapping[Tensor, Tensor]
    old: Mapping[Tensor, Tensor]
    done: list[object] = field(default_factory=list[object])


@dataclass(frozen=True)
class AnticorrelatedNoise(Combine):
    """Anti-PGD's (Orvieto et al. 2022): after the base's update ``w ← w + (ξ_{t+1} − ξ_t)``.

    ``ξ_t ~ N(0, σ²)``, one number for each of the weights, with ``σ`` the ``rho`` of the group and
    ``ξ_0 = 0``: so ``w`` is always some ``z + ξ_t``, and ``z`` descends the loss smoothed by the
    noise. A step with a second gradient is SAM's, ``d = g_s``: it goes with every policy. Neither
    momentum nor ``max_norm`` see the noise. Set ``rho`` to 0, or ``stop``, for the last part of
    training, so that what is evaluated in the end is ``z``.

    Args:
        stop: share of training after which there is no noise any more, above 0 and at most 1; 1,
            the default, for noise to the end.
        total_steps: optimizer steps of the whole training, a whole number from 1, which ``stop``
            below 1 needs; None by default.
        seed: of the draws, a whole number from 0, the default; checkpoints keep where they are.

    >>> w = torch.nn.Parameter(torch.zeros(1000))
    >>> base = torch.optim.SGD([{"params": [w], "rho": 0.5}], lr=0.1)
    >>> noisy, draw = AnticorrelatedNoise(), torch.Generator().manual_seed(0)
    >>> exchange, memory = noisy.before_base_step(base, Memory(), draw, Workspace())
    >>> with torch.no_grad():
    ...     noisy.after_base_step(base, exchange)
    >>> round(w.std().item(), 1), torch.equal(w, memory.tensors[w])
    (0.5, True)
    """

    stop: float = 1.0
    total_steps: int | None = None
    seed: int = 0
    remembers = ("steps",)

    def __post_init__(self) -> None:
        self._keep(
            stop=checks.share("stop", self.stop),
            total_steps=checks.whole_or_none("total_steps", self.total_steps, least=1),
            seed=checks.seed("seed", self.seed),
        )

    @property
    def needs_total_steps(self) -> bool:
        return self.stop < 1.0 and self.total_steps is None

    def with_total_steps(self, total_steps: int | None) -> Any:
        return super().with_total_steps(total_steps) if self.stop < 1.0 else self

    def check_memory(self, memory: Memory) -> None:
        checks.at_least_zero("steps", memory.number("steps"))

    def combine(
        self, first: Gradient, params: Tensors, second: Tensors, memory: Memory, generator: Draws
    ) -> None:
        return None

    def before_base_step(
        self,
        base: torch.optim.Optimizer,
        memory: Memory,
        generator: Draws,
        workspace: Workspace,
    ) -> tuple[_Exchange, Memory]:
        steps = memory.number("steps")
        after = {"steps": steps + 1.0}
        if self.stop < 1.0 and steps >= self.stop * self._known_total_steps():
            return _Exchange({}, memory.tensors), Memory(after)
        deviations = _sizes(base)
        owners = list(deviations)
        drawn = workspace.take(owners, owners)
        normals.fill(drawn, owners, generator)
        tensors.scale_each(drawn, list(deviations.values()))
        new = dict(zip(owners, drawn, strict=True))
        return _Exchange(new, memory.tensors), Memory(after, new)

    def after_base_step(self, base: torch.optim.Optimizer, carried: Any) -> None:
        if not isinstance(carried, _Exchange):
            return
        strokes = ((carried.new, 1.0), (carried.old, -1.0))
        for noises, factor in strokes[len(carried.done) :]:
            moved, vectors = list(noises), list(noises.values())
            # In one expression: Python lets no interrupt in between its call and its note.
            carried.done.append(tensors.add(moved, vectors, factor))


def _sizes(base: torch.optim.Optimizer) -> dict[Tensor, float]:
    """The ``rho`` of each parameter that is trained, that of its group."""
    rho = base.defaults.get("rho", 0.0)
    of_group = {id(group): abs(radius(group, rho)) for group in base.param_groups}
    return {p: of_group[id(group)] for p, group in trained(base.param_groups).items()}
