"""Training on a problem with the library's optimizer, under the policies that bounds are for."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from aesam import SharpnessAware
from aesam.paper.theory.problems import Problem
from aesam.parts import checks
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


@dataclass(frozen=True, eq=False)
class Descent:
    """What the bounds are about; the last axis is the repetition.

    Args:
        squares: ``‖∇L(w_t)‖²`` before each step.
        decreases: ``L(w_0) − L(w_T)``.
        zetas: the share of SAM steps.
    """

    squares: np.ndarray
    decreases: np.ndarray
    zetas: np.ndarray


def full_batch(problem: Problem, policy: Policy, *, lr: float, rho: float, steps: int) -> Descent:
    """Gradient descent on ``L`` itself."""
    return _descend(problem, policy, lambda w: lambda: problem.gradient(w), lr, rho, steps, 1)


def mini_batch(
    problem: Problem,
    policy: Policy,
    *,
    lr: float,
    rho: float,
    steps: int,
    batch: int,
    repetitions: int,
    seed: int,
) -> Descent:
    """Descent on batches of ``batch`` samples, drawn with replacement, for each repetition its own.

    With ``ε = ρ g``, not normalised, and plain gradient descent, each entry of the weights moves by
    its own gradient alone, so repetitions are rows of one parameter. They share the decisions of
    the policy: a policy that looks at the gradient takes one repetition at a time.
    """
    draw = torch.Generator().manual_seed(checks.seed("seed", seed))
    size = (checks.whole("repetitions", repetitions, least=1), checks.whole("batch", batch, 1))

    def on_new_batch(w: Tensor) -> Callable[[], Tensor]:
        rows = torch.randint(problem.count, size, generator=draw)
        return lambda: problem.batch_gradient(w, rows)

    return _descend(problem, policy, on_new_batch, lr, rho, steps, repetitions)


def joined(descents: list[Descent]) -> Descent:
    """Several sets of repetitions as one."""
    return Descent(
        np.concatenate([d.squares for d in descents], axis=1),
        np.concatenate([d.decreases for d in descents]),
        np.concatenate([d.zetas for d in descents]),
    )


def _descend(
    problem: Problem,
    policy: Policy,
    gradient_on_batch: Callable[[Tensor], Callable[[], Tensor]],
    lr: float,
    rho: float,
    steps: int,
    repetitions: int,
) -> Descent:
    w = nn.Parameter(problem.start.repeat(repetitions, 1))
    at = w.detach()  # the same memory: it is where the weights are, displaced or not
    opt = SharpnessAware(
        torch.optim.SGD([w], lr=lr), policy=policy, rho=rho, normalize=False, nonfinite="raise"
    )
    squares = torch.empty(checks.whole("steps", steps, least=1), repetitions, dtype=torch.float64)
    before = problem.loss(at)
    for t in range(steps):
        squares[t] = problem.gradient(at).square().sum(1)
        gradient = gradient_on_batch(at)
        w.grad = gradient()
        if opt.needs_second_pass():
            with opt.perturbed():
                w.grad = gradient()
        opt.step()
    zetas = np.full(repetitions, opt.sam_fraction)
    return Descent(squares.numpy(), (before - problem.loss(at)).numpy(), zetas)
