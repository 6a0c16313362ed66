"""What the theorems rest on: the two lemmas, and the variance of the gradient (Eq. 3).

The lemmas say how far SAM's gradient may turn away from the gradient. Expectations over batches are
exact: all batches of b samples, drawn with replacement, are taken.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from aesam import SharpnessAware
from aesam.paper.theory.problems import Problem
from aesam.parts import checks
from aesam.parts.policies import Always, Never

FULL = "full batch: ∇L(w)·∇L(w + ρ∇L(w)) ≥ (1 − ρβ)‖∇L(w)‖²"
MINI = "mini-batch: E ∇L(w)·∇L_B(w + ρ∇L_B(w)) ≥ (½ − ρβ)‖∇L(w)‖² − β²ρ²σ²/(2b)"
ROUNDING = 1e-9  # a relative slack this much below zero is rounding
WIDTH = 3.0  # standard deviation of the random points around the start


@dataclass(frozen=True)
class LemmaCheck:
    """A lemma on random points of one or several functions.

    ``smallest`` and ``median`` are of (left − right) over the size of the terms on the right:
    ``‖∇L‖²``, and with batches ``‖∇L‖² + β²ρ²σ²/(2b)`` with the σ² at the point.
    """

    lemma: str
    problem: str
    functions: int
    points: int
    batch: int | None
    rho_beta: float
    smallest: float
    median: float

    @property
    def holds(self) -> bool:
        return self.smallest >= -ROUNDING

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def full_batch_lemma(functions: list[Problem], rho_beta: float, points: int) -> LemmaCheck:
    """The slack of the full-batch lemma at random points of each function."""
    slacks = [_full_slack(f, _points(f, points), rho_beta) for f in functions]
    return _check(FULL, functions, rho_beta, None, slacks)


def mini_batch_lemma(
    functions: list[Problem], rho_beta: float, points: int, batch: int
) -> LemmaCheck:
    """The slack of the mini-batch lemma at random points of each function."""
    slacks = [_mini_slack(f, _points(f, points), rho_beta, batch) for f in functions]
    return _check(MINI, functions, rho_beta, batch, slacks)


def all_batches(count: int, batch: int) -> Tensor:
    """Every batch of ``batch`` samples drawn with replacement from ``count``, as rows.

    >>> all_batches(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    batch = checks.whole("batch", batch, least=1)
    return torch.tensor(list(product(range(count), repeat=batch)))


def points_and_batches(w: Tensor, problem: Problem, batch: int) -> tuple[Tensor, Tensor]:
    """Each point with each batch: the points repeated, and the batches."""
    batches = all_batches(problem.count, batch)
    return w.repeat_interleave(len(batches), 0), batches.repeat(len(w), 1)


def _full_slack(problem: Problem, w: Tensor, rho_beta: float) -> Tensor:
    rho = rho_beta / problem.full_beta
    g, g_s = _two_gradients(problem, w, None, rho)
    size = g.square().sum(1)
    return (g * g_s).sum(1) / size - (1 - rho_beta)


def _mini_slack(problem: Problem, w: Tensor, rho_beta: float, batch: int) -> Tensor:
    rho = rho_beta / problem.beta
    repeated, rows = points_and_batches(w, problem, batch)
    _, g_s = _two_gradients(problem, repeated, rows, rho)
    full = problem.gradient(w)
    mean = g_s.reshape(len(w), -1, w.shape[1]).mean(1)
    size = full.square().sum(1)
    noise = rho_beta**2 * problem.variance_at(w) / (2 * batch)
    return ((full * mean).sum(1) - (0.5 - rho_beta) * size + noise) / (size + noise)


def _two_gradients(
    problem: Problem, points: Tensor, rows: Tensor | None, rho: float
) -> tuple[Tensor, Tensor]:
    """``g`` and ``g_s`` of the library's SAM step, for each point on its own batch."""
    w = nn.Parameter(points.clone())
    at = w.detach()

    def gradient() -> Tensor:
        return problem.gradient(at) if rows is None else problem.batch_gradient(at, rows)

    opt = SharpnessAware(
        torch.optim.SGD([w], lr=0.0), policy=Always(), rho=rho, normalize=False, nonfinite="raise"
    )
    first = gradient()
    w.grad = first.clone()
    opt.needs_second_pass()
    with opt.perturbed():
        w.grad = gradient()
    return first, w.grad


def _points(problem: Problem, count: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    size = (checks.whole("points", count, least=1), len(problem.start))
    return problem.start + WIDTH * torch.randn(size, generator=draw, dtype=torch.float64)


def _check(
    lemma: str,
    functions: list[Problem],
    rho_beta: float,
    batch: int | None,
    slacks: Iterable[Tensor],
) -> LemmaCheck:
    slack = torch.cat(list(slacks))
    return LemmaCheck(
        lemma=lemma,
        problem=functions[0].name,
        functions=len(functions),
        points=len(slack),
        batch=batch,
        rho_beta=rho_beta,
        smallest=slack.min().item(),
        median=slack.median().item(),
    )


# Var ∇L(B;w) = E‖∇L(B;w)‖² − ‖∇L(D;w)‖², which is why ‖g‖² tells sharp from flat ----------------


@dataclass(frozen=True)
class VarianceCheck:
    """Both sides of the identity over all batches of b samples, at random points.

    Args:
        left: the variance by its definition, at the point where it is largest.
        right: the mean of the library's ‖g‖² less the square of the full gradient, at that point.
        difference: the largest difference of the two at any point, relative to ``E‖g‖²``.
        share: the largest variance of a sample's gradient at a point, over the problem's σ².
    """

    problem: str
    batch: int
    points: int
    batches: int
    left: float
    right: float
    difference: float
    share: float

    @property
    def holds(self) -> bool:
        """Whether the sides agree and the problem's σ² is an upper bound indeed."""
        return self.difference <= ROUNDING and self.share <= 1 + ROUNDING

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def variance_check(problem: Problem, *, batch: int, points: int) -> VarianceCheck:
    """The identity at ``points`` random points, for batches drawn with replacement."""
    draw = torch.Generator().manual_seed(1)
    size = (points, len(problem.start))
    w = problem.start + torch.randn(size, generator=draw, dtype=torch.float64)
    repeated, rows = points_and_batches(w, problem, batch)
    gradients = problem.batch_gradient(repeated, rows).reshape(points, -1, w.shape[1])
    squares = _squared_norms(gradients.flatten(0, 1)).reshape(points, -1).mean(1)
    full = problem.gradient(w)
    left = (gradients - full.unsqueeze(1)).square().sum(-1).mean(1)
    right = squares - full.square().sum(1)
    widest = int(left.argmax())
    return VarianceCheck(
        problem=problem.name,
        batch=batch,
        points=points,
        batches=gradients.shape[1],
        left=left[widest].item(),
        right=right[widest].item(),
        difference=((left - right).abs() / squares).max().item(),
        share=(problem.variance_at(w) / problem.variance).max().item(),
    )


def _squared_norms(gradients: Tensor) -> Tensor:
    """‖g‖² as the library's optimizer measures it, for one gradient after the other."""
    w = nn.Parameter(torch.zeros_like(gradients[0]))
    opt = SharpnessAware(torch.optim.SGD([w], lr=0.0), policy=Never())
    squares: list[float] = []
    for gradient in gradients:
        w.grad = gradient.clone()
        opt.needs_second_pass()
        opt.step()
        if opt.last_step is None:
            raise RuntimeError("the optimizer kept no record of its last step")
        squares.append(opt.last_step.squared_norm)
    return torch.tensor(squares, dtype=torch.float64)
