"""The parts of a step: five questions, and the answers that a method picks from.

When to take the second gradient (:mod:`~aesam.parts.policies`), where
(:mod:`~aesam.parts.ascents`), on which rows (:mod:`~aesam.parts.samples`), what a step without one
does (:mod:`~aesam.parts.between`) and how two gradients become one
(:mod:`~aesam.parts.combine`). :mod:`~aesam.parts.controls` has policies to compare with.
"""

from aesam.parts import ascents, between, combine, controls, policies, samples
from aesam.parts.ascents import Ascent
from aesam.parts.between import Between
from aesam.parts.combine import Combine
from aesam.parts.part import Direction, Gradient, Memory, Part, global_norm, radius
from aesam.parts.policies import Decision, Observation, Policy
from aesam.parts.samples import Samples

__all__ = [
    "Ascent",
    "Between",
    "Combine",
    "Decision",
    "Direction",
    "Gradient",
    "Memory",
    "Observation",
    "Part",
    "Policy",
    "Samples",
    "ascents",
    "between",
    "combine",
    "controls",
    "global_norm",
    "policies",
    "radius",
    "samples",
]
