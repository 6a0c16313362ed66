"""Both sides of the theorems and corollaries: what was measured, and the bound on it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from aesam.paper.theory import bounds, descent
from aesam.paper.theory.descent import SAM, Descent, Pattern
from aesam.paper.theory.problems import Problem

ERRORS = 3.0  # how many standard errors a difference must have to be called one
FULL_BATCH = "full-batch theorem"
MINI_BATCH = "mini-batch theorem"
SAM_ALONE = "corollary 1 (SAM)"
LARGER_STEP = "corollary 2 (η ∝ √b)"
BOUNDS = (FULL_BATCH, MINI_BATCH, SAM_ALONE, LARGER_STEP)
RATE = 0.5  # η on full batches in units of 1/β; below 1
RADIUS = 0.4  # ρ on full batches in units of 1/β; below 1/2


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


@dataclass(frozen=True, eq=False)
class Case:
    """What a bound is computed for; without a batch it is the whole loss, with the β of that."""

    problem: Problem
    pattern: Pattern
    steps: int
    lr: float
    rho: float
    batch: int | None = None

    @property
    def beta(self) -> float:
        return self.problem.full_beta if self.batch is None else self.problem.beta

    @property
    def variance(self) -> float:
        return 0.0 if self.batch is None else self.problem.variance


def full_batch_sides(problem: Problem, pattern: Pattern, steps: int) -> Sides:
    """The full-batch theorem, for any pattern of SAM and ERM steps."""
    beta = problem.full_beta
    case = Case(problem, pattern, steps, lr=RATE / beta, rho=RADIUS / beta)
    known = {"beta": beta, "lr": case.lr, "rho": case.rho}
    done = descent.full_batch(problem, pattern.make(steps), lr=case.lr, rho=case.rho, steps=steps)
    bound = partial(bounds.full_batch_bound, zeta=_zeta(done), steps=steps, **known)
    return _sides(FULL_BATCH, case, done, bound, bounds.full_batch_gap(**known))


def mini_batch_sides(
    problem: Problem, pattern: Pattern, steps: int, *, batch: int, repetitions: int
) -> list[Sides]:
    """The mini-batch theorem; with SAM on every step its first corollary, from the same runs."""
    lr = bounds.learning_rate(problem.beta, steps)
    case = Case(problem, pattern, steps, lr, bounds.radius(steps), batch)
    done = _descend(case, batch, repetitions)
    known = {"beta": problem.beta, "variance": problem.variance, "batch": batch, "steps": steps}
    gap = bounds.mini_batch_gap(beta=problem.beta, steps=steps, by_batch=pattern.by_batch)
    claims = {MINI_BATCH: partial(bounds.mini_batch_bound, zeta=_zeta(done), **known)}
    if pattern is SAM:
        claims[SAM_ALONE] = partial(bounds.sam_bound, **known)
    return [_sides(name, case, done, bound, gap) for name, bound in claims.items()]


def larger_step_sides(
    problem: Problem, pattern: Pattern, steps: int, *, batch: int, repetitions: int
) -> Sides:
    """The second corollary: the step grows with √b."""
    lr = bounds.learning_rate(problem.beta, steps, batch)
    case = Case(problem, pattern, steps, lr, bounds.radius(steps), batch)
    done = _descend(case, batch, repetitions)
    known = {"beta": problem.beta, "variance": problem.variance, "batch": batch, "steps": steps}
    bound = partial(bounds.larger_step_bound, zeta=_zeta(done), **known)
    gap = bounds.mini_batch_gap(
        beta=problem.beta, steps=steps, by_batch=pattern.by_batch, largest_batch=batch
    )
    return _sides(LARGER_STEP, case, done, bound, gap)


def _descend(case: Case, batch: int, repetitions: int) -> Descent:
    """All repetitions at once, or one by one where each decides for itself."""
    many = 1 if case.pattern.by_batch else repetitions
    train = partial(descent.mini_batch, case.problem, lr=case.lr, rho=case.rho, steps=case.steps)
    return descent.joined(
        [
            train(case.pattern.make(case.steps), batch=batch, repetitions=many, seed=seed)
            for seed in range(repetitions // many)
        ]
    )


def _sides(
    name: str, case: Case, done: Descent, bound: Callable[[float], float], gap: str | None
) -> Sides:
    lowest = done.squares[done.squares.mean(axis=1).argmin()]
    decrease = float(done.decreases.mean())
    per_decrease = bound(1.0) - bound(0.0)  # the bound is linear in the decrease
    return Sides(
        bound=name,
        problem=case.problem.name,
        beta=case.beta,
        variance=case.variance,
        batch=case.batch,
        steps=case.steps,
        lr=case.lr,
        rho=case.rho,
        policy=case.pattern.label,
        method=case.pattern.method,
        zeta=_zeta(done),
        decrease=decrease,
        left=float(lowest.mean()),
        left_error=standard_error(lowest),
        right=bound(decrease),
        error=standard_error(per_decrease * done.decreases - lowest),
        n=len(lowest),
        gap=gap,
    )


def _zeta(done: Descent) -> float:
    return float(done.zetas.mean())


def standard_error(values: np.ndarray) -> float:
    """The standard error of the mean; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    return float(values.std(ddof=1) / len(values) ** 0.5)
