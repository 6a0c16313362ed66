"""Both sides of the full-batch theorem: any pattern of SAM and ERM steps."""

from aesam.paper.theory import descent
from aesam.paper.theory.bounds import full_batch_bound, full_batch_gap
from aesam.paper.theory.patterns import Pattern
from aesam.paper.theory.problem import Problem
from aesam.paper.theory.sides import FULL_BATCH, Sides, measured

RATE = 0.5  # η in units of 1/β; below 1
RADIUS = 0.4  # ρ in units of 1/β; below 1/2


def full_batch_sides(problem: Problem, pattern: Pattern, steps: int) -> Sides:
    """Gradient descent on the whole loss, with the β of the whole loss."""
    beta = problem.full_beta
    lr, rho = RATE / beta, RADIUS / beta
    run = measured(descent.full_batch(problem, pattern.make(steps), lr=lr, rho=rho, steps=steps))
    return Sides(
        bound=FULL_BATCH,
        problem=problem.name,
        beta=beta,
        variance=0.0,
        batch=None,
        steps=steps,
        lr=lr,
        rho=rho,
        policy=pattern.label,
        method=pattern.method,
        zeta=run.zeta,
        decrease=run.decrease,
        left=run.left,
        left_error=0.0,
        right=full_batch_bound(run.decrease, beta=beta, lr=lr, rho=rho, zeta=run.zeta, steps=steps),
        error=0.0,
        n=1,
        gap=full_batch_gap(beta=beta, lr=lr, rho=rho),
    )
