# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Convex problems: least squares and logistic regression."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from aesam.paper.theory.problem import Problem
from aesam.parts import checks


@dataclass(frozen=True, eq=False)
class LeastSquares(Problem):
    """``ℓ_i(w) = ½‖X w − y_i‖²``: one design, samples that differ in their targets.

    All samples have the Hessian ``XᵀX``, so β is its largest eigenvalue and the gradient noise
    ``Xᵀ(ȳ − y_i)`` has the same variance everywhere.
    """

    design: Tensor
    targets: Tensor

    def loss(self, w: Tensor) -> Tensor:
        residuals = (w @ self.design.T).unsqueeze(1) - self.targets
        return 0.5 * residuals.square().sum(-1).mean(1)

    def gradient(self, w: Tensor) -> Tensor:
        return (w @ self.design.T - self.targets.mean(0)) @ self.design

    def batch_loss(self, w: Tensor, rows: Tensor) -> Tensor:
        residuals = (w @ self.design.T).unsqueeze(1) - self.targets[rows]
        return 0.5 * residuals.square().sum(-1).mean(1)

    def batch_gradient(self, w: Tensor, rows: Tensor) -> Tensor:
        return (w @ self.design.T - self.targets[rows].mean(1)) @ self.design


def least_squares(
    seed: int, *, beta: float = 0.75, sigma: float = 0.5, condition: float = 100.0
) -> LeastSquares:
    """Six weights, 16 samples, eigenvalues of ``XᵀX`` from ``beta`` down to ``beta/condition``."""
    size, count = 6, 16
    draw = torch.Generator().manual_seed(checks.seed("seed", seed))
    turn = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))[0]
    decay = checks.positive("condition", condition) ** (-torch.arange(size).double() / (size - 1))
    design = (checks.positive("beta", beta) * decay).sqrt().unsqueeze(1) * turn
    truth = torch.randn(size, generator=draw, dtype=torch.float64)
    noise = torch.randn(count, size, generator=draw, dtype=torch.float64)
    noise = noise - noise.mean(0)
    spread = (noise @ design).square().sum(1).mean().sqrt()
    noise = noise * (checks.at_least_zero("sigma", sigma) / spread)
    return LeastSquares(
        name="least squares",
        beta=beta,
        full_beta=beta,
        variance=sigma**2,
        start=torch.zeros(size, dtype=torch.float64),
        count=count,
        design=design,
        targets=truth @ design.T + noise,
    )


@dataclass(frozen=True, eq=False)
class Logistic(Problem):
    """``ℓ_i(w) = log(1 + e^(−z_i·w))`` with ``z_i = y_i x_i`` and all ``‖z_i‖² = 4β``.

    The Hessian of a sample is ``s(1−s) z zᵀ`` with the sigmoid ``s``, at most ``‖z‖²/4``, which is
    reached at w = 0. A sample's gradient is shorter than ``‖z‖``, so σ² = 4β is a bound.
    """

    signed: Tensor

    def loss(self, w: Tensor) -> Tensor:
        return softplus(-(w @ self.signed.T)).mean(1)

    def gradient(self, w: Tensor) -> Tensor:
        return -torch.sigmoid(-(w @ self.signed.T)) @ self.signed / self.count

    def batch_loss(self, w: Tensor, rows: Tensor) -> Tensor:
        return softplus(-self._margins(w, rows)).mean(1)

    def batch_gradient(self, w: Tensor, rows: Tensor) -> Tensor:
        pull = torch.sigmoid(-self._margins(w, rows)).unsqueeze(1)
        return -(pull @ self.signed[rows]).squeeze(1) / rows.shape[1]

    def _margins(self, w: Tensor, rows: Tensor) -> Tensor:
        return (self.signed[rows] @ w.unsqueeze(2)).squeeze(2)


def logistic(seed: int, *, beta: float = 1.0, flipped: float = 0.1) -> Logistic:
    """Five weights, 32 samples, labels of a random teacher of which a share is flipped."""
    size, count = 5, 32
    draw = torch.Generator().manual_seed(checks.seed("seed", seed))
    inputs = torch.randn(count, size, generator=draw, dtype=torch.float64)
    labels = torch.sign(inputs @ torch.randn(size, generator=draw, dtype=torch.float64))
    wrong = torch.rand(count, generator=draw) < checks.probability("flipped", flipped)
    labels = torch.where(wrong, -labels, labels)
    length = 2.0 * checks.positive("beta", beta) ** 0.5
    signed = labels.unsqueeze(1) * inputs * (length / inputs.norm(dim=1, keepdim=True))
    return Logistic(
        name="logistic regression",
        beta=beta,
        full_beta=torch.linalg.eigvalsh(signed.T @ signed)[-1].item() / (4 * count),
        variance=4.0 * beta,
        start=torch.zeros(size, dtype=torch.float64),
        count=count,
        signed=signed,
    )
