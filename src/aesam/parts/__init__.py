"""The parts of a step: five questions, and the answers that a method picks from.

When to take the second gradient (:mod:`~aesam.parts.policies`), where
(:mod:`~aesam.parts.ascents` and, for variants, :mod:`~aesam.parts.scaled_ascents`,
:mod:`~aesam.parts.averaged_ascents`, :mod:`~aesam.parts.chosen_ascents` and
:mod:`~aesam.parts.radii`; without a second gradient :mod:`~aesam.parts.single_pass` and
:mod:`~aesam.parts.low_rank`), on which rows
(:mod:`~aesam.parts.samples`), what a step without one does (:mod:`~aesam.parts.between`) and how
two gradients become one (:mod:`~aesam.parts.combine`). :mod:`~aesam.parts.budget` has the policy of
a cost that is set, :mod:`~aesam.parts.composed` policies made of others,
:mod:`~aesam.parts.controls` those to compare with, :mod:`~aesam.parts.noise` random noise on the
weights, :mod:`~aesam.parts.trajectory` outputs held near those of earlier weights.

Here is all that a new part needs: its base, what it is handed (:class:`Gradient`, :class:`Memory`,
:class:`Workspace`, ``Draws``), what it returns, :func:`global_norm`, which is right for sharded
parameters too, :func:`on_device`, which marks what needs no number on the host, and ``checks`` of
what its constructor is given.
"""

from aesam.parts import (
    ascents,
    averaged_ascents,
    between,
    budget,
    checks,
    chosen_ascents,
    combine,
    composed,
    controls,
    low_rank,
    noise,
    policies,
    radii,
    samples,
    scaled_ascents,
    single_pass,
    trajectory,
)
from aesam.parts.ascents import Ascent
from aesam.parts.between import Between
from aesam.parts.combine import Combine
from aesam.parts.part import (
    Direction,
    Draws,
    Excursion,
    Gradient,
    Memory,
    MemoryPart,
    Part,
    Place,
    Tensors,
    Workspace,
    global_norm,
    on_device,
    radius,
    rate,
)
from aesam.parts.policies import Decision, Observation, Policy
from aesam.parts.samples import Samples

__all__ = [
    "Ascent",
    "Between",
    "Combine",
    "Decision",
    "Direction",
    "Draws",
    "Excursion",
    "Gradient",
    "Memory",
    "MemoryPart",
    "Observation",
    "Part",
    "Place",
    "Policy",
    "Samples",
    "Tensors",
    "Workspace",
    "ascents",
    "averaged_ascents",
    "between",
    "budget",
    "checks",
    "chosen_ascents",
    "combine",
    "composed",
    "controls",
    "global_norm",
    "low_rank",
    "noise",
    "on_device",
    "policies",
    "radii",
    "radius",
    "rate",
    "samples",
    "scaled_ascents",
    "single_pass",
    "trajectory",
]
