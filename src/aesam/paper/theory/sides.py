"""Both sides of a bound, and what may be said of them."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from aesam.paper.theory.descent import Descent

ERRORS = 3.0  # how many standard errors a difference must have to be called one
FULL_BATCH = "full-batch theorem"
MINI_BATCH = "mini-batch theorem"
SAM_ALONE = "corollary 1 (SAM)"
LARGER_STEP = "corollary 2 (η ∝ √b)"
BOUNDS = (FULL_BATCH, MINI_BATCH, SAM_ALONE, LARGER_STEP)


@dataclass(frozen=True)
class Sides:
    """One bound on one problem for one T and one policy.

    Args:
        left: ``min_t ‖∇L(w_t)‖²``, of the mean over ``n`` repetitions where batches are drawn.
        right: the bound, with the mean decrease of the loss.
        error: the standard error of ``right − left``, with t held at the smallest; 0 for n = 1.
        gap: the condition of the proof that is not met; None where the bound is claimed.
    """

    bound: str
    problem: str
    beta: float
    variance: float
    batch: int | None
    steps: int
    lr: float
    rho: float
    policy: str
    method: str
    zeta: float
    decrease: float
    left: float
    left_error: float
    right: float
    error: float
    n: int
    gap: str | None

    @property
    def claimed(self) -> bool:
        """Whether the conditions hold under which the bound is proven."""
        return self.gap is None

    @property
    def ratio(self) -> float | None:
        """Left over right: 1 is tight, above 1 is broken; None where the bound is not positive."""
        return self.left / self.right if self.right > 0 else None

    @property
    def holds(self) -> bool:
        """Whether the left side is no larger than the right one, as measured."""
        return self.left <= self.right

    @property
    def verdict(self) -> str:
        """In words: holds, BROKEN, undecided, or the same without a claim."""
        if not self.claimed:
            return "not claimed, holds" if self.holds else "not claimed, fails"
        if abs(self.right - self.left) < ERRORS * self.error:
            return "undecided"
        return "holds" if self.holds else "BROKEN"

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "ratio": self.ratio,
            "claimed": self.claimed,
            "holds": self.holds,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Measured:
    """The left side and what the right one needs: means over repetitions."""

    left: float
    left_error: float
    decrease: float
    zeta: float
    n: int


def measured(descent: Descent) -> Measured:
    """Means over the repetitions, at the step where the mean squared gradient is smallest."""
    lowest = descent.squares[_lowest(descent)]
    return Measured(
        left=float(lowest.mean()),
        left_error=standard_error(lowest),
        decrease=float(descent.decreases.mean()),
        zeta=float(descent.zetas.mean()),
        n=len(lowest),
    )


def slack_error(descent: Descent, right_per_decrease: float) -> float:
    """The standard error of right − left, where right grows so much with the decrease."""
    lowest = descent.squares[_lowest(descent)]
    return standard_error(right_per_decrease * descent.decreases - lowest)


def standard_error(values: np.ndarray) -> float:
    """The standard error of the mean; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    return float(values.std(ddof=1) / len(values) ** 0.5)


def _lowest(descent: Descent) -> int:
    return int(descent.squares.mean(axis=1).argmin())
