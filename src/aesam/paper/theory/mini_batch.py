"""Both sides of the mini-batch theorem and of its two corollaries."""

from collections.abc import Callable
from functools import partial

from aesam.paper.theory import descent
from aesam.paper.theory.bounds import (
    larger_step_bound,
    learning_rate,
    mini_batch_bound,
    mini_batch_gap,
    radius,
    sam_bound,
)
from aesam.paper.theory.descent import Descent
from aesam.paper.theory.patterns import SAM, Pattern
from aesam.paper.theory.problem import Problem
from aesam.paper.theory.sides import (
    LARGER_STEP,
    MINI_BATCH,
    SAM_ALONE,
    Sides,
    measured,
    slack_error,
)


def mini_batch_sides(
    problem: Problem, pattern: Pattern, steps: int, *, batch: int, repetitions: int
) -> list[Sides]:
    """The theorem; where SAM is on every step, its first corollary too, from the same runs."""
    lr = learning_rate(problem.beta, steps)
    run = _descend(problem, pattern, steps, lr, batch, repetitions)
    known = {"beta": problem.beta, "variance": problem.variance, "batch": batch, "steps": steps}
    gap = mini_batch_gap(beta=problem.beta, steps=steps, by_batch=pattern.by_batch)
    zeta = float(run.zetas.mean())
    bounds = {MINI_BATCH: partial(mini_batch_bound, zeta=zeta, **known)}
    if pattern is SAM:
        bounds[SAM_ALONE] = partial(sam_bound, **known)
    return [
        _sides(name, bound, run, problem, pattern, steps, lr, batch, gap)
        for name, bound in bounds.items()
    ]


def larger_step_sides(
    problem: Problem, pattern: Pattern, steps: int, *, batch: int, repetitions: int
) -> Sides:
    """The second corollary: the step grows with √b."""
    lr = learning_rate(problem.beta, steps, batch)
    run = _descend(problem, pattern, steps, lr, batch, repetitions)
    bound = partial(
        larger_step_bound,
        beta=problem.beta,
        variance=problem.variance,
        batch=batch,
        zeta=float(run.zetas.mean()),
        steps=steps,
    )
    gap = mini_batch_gap(
        beta=problem.beta, steps=steps, by_batch=pattern.by_batch, largest_batch=batch
    )
    return _sides(LARGER_STEP, bound, run, problem, pattern, steps, lr, batch, gap)


def _descend(
    problem: Problem, pattern: Pattern, steps: int, lr: float, batch: int, repetitions: int
) -> Descent:
    """All repetitions at once, or one by one where each decides for itself."""
    many = 1 if pattern.by_batch else repetitions
    return descent.joined(
        [
            descent.mini_batch(
                problem,
                pattern.make(steps),
                lr=lr,
                rho=radius(steps),
                steps=steps,
                batch=batch,
                repetitions=many,
                seed=seed,
            )
            for seed in range(repetitions // many)
        ]
    )


def _sides(
    name: str,
    bound: Callable[[float], float],
    run: Descent,
    problem: Problem,
    pattern: Pattern,
    steps: int,
    lr: float,
    batch: int,
    gap: str | None,
) -> Sides:
    mean = measured(run)
    return Sides(
        bound=name,
        problem=problem.name,
        beta=problem.beta,
        variance=problem.variance,
        batch=batch,
        steps=steps,
        lr=lr,
        rho=radius(steps),
        policy=pattern.label,
        method=pattern.method,
        zeta=mean.zeta,
        decrease=mean.decrease,
        left=mean.left,
        left_error=mean.left_error,
        right=bound(mean.decrease),
        error=slack_error(run, bound(1.0) - bound(0.0)),
        n=mean.n,
        gap=gap,
    )
