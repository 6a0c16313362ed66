"""``Var ∇L(B;w) = E‖∇L(B;w)‖² − ‖∇L(D;w)‖²`` (Eq. 3), which is why ‖g‖² tells sharp from flat."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aesam import SharpnessAware
from aesam.paper.theory.lemmas import points_and_batches
from aesam.paper.theory.problem import Problem
from aesam.parts.policies import Never

ROUNDING = 1e-9


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
