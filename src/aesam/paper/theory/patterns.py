"""Which steps use SAM: the policies that the bounds are computed for, by their share ζ."""

from collections.abc import Callable
from dataclasses import dataclass

from aesam.parts.policies import Adaptive, Always, Bernoulli, Never, Periodic, Policy


@dataclass(frozen=True)
class Pattern:
    """A policy for a training of ``steps`` steps, and how it is shown.

    ``method`` is the method of the paper whose colour it has; ``by_batch`` says that its decisions
    depend on the batches, so that repetitions cannot share them.
    """

    label: str
    method: str
    make: Callable[[int], Policy]
    by_batch: bool = False


ERM = Pattern("ERM", "erm", lambda _: Never())
QUARTER = Pattern("every 4th", "ss-sam", lambda _: Periodic(4))
HALF = Pattern("SS-SAM ½", "ss-sam", lambda steps: Bernoulli(0.5, seed=steps))
MOST = Pattern("SS-SAM ¾", "ss-sam", lambda steps: Bernoulli(0.75, seed=steps))
ADAPTIVE = Pattern("AE-SAM", "ae-sam", lambda steps: Adaptive(total_steps=steps), by_batch=True)
SAM = Pattern("SAM", "sam", lambda _: Always())
PATTERNS = (ERM, QUARTER, HALF, MOST, ADAPTIVE, SAM)
SHOWN_OVER_STEPS = (ERM, HALF, ADAPTIVE, SAM)  # four pairs of curves are what a figure can hold
