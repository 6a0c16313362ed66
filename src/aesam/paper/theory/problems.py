# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The problems that the bounds are computed on, with their β and σ²: cosines and regressions."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import softplus

from aesam.parts import checks


@dataclass(frozen=True, eq=False)
class Problem(ABC):
    """A mean of sample losses ``L(w) = mean_i ℓ_i(w)`` with known constants, in float64.

    Weights come as rows of ``w``, one for each of many independent repetitions, and a batch as row
    numbers ``rows`` of shape (repetitions, b).

    Args:
        name: short, in the reader's words.
        beta: every ``ℓ_i`` is β-smooth.
        full_beta: ``L`` is β-smooth; at most ``beta``.
        variance: σ², the largest ``mean_i ‖∇ℓ_i(w) − ∇L(w)‖²`` over all ``w``, or a bound on it.
        start: ``w_0``.
        count: how many samples there are.
    """

    name: str
    beta: float
    full_beta: float
    variance: float
    start: Tensor
    count: int

    @abstractmethod
    def loss(self, w: Tensor) -> Tensor:
        """``L`` of each row of ``w``."""

    @abstractmethod
    def gradient(self, w: Tensor) -> Tensor:
        """``∇L`` at each row of ``w``."""

    @abstractmethod
    def batch_loss(self, w: Tensor, rows: Tensor) -> Tensor:
        """The loss of each repetition on its own batch."""

    @abstractmethod
    def batch_gradient(self, w: Tensor, rows: Tensor) -> Tensor:
        """The gradient of each repetition on its own batch."""

    def variance_at(self, w: Tensor) -> Tensor:
        """``mean_i ‖∇ℓ_i(w) − ∇L(w)‖²`` at each row of ``w``."""
        samples = torch.arange(self.count)
        each = [self.batch_gradient(w, i.expand(len(w), 1)) for i in samples]
        return (torch.stack(each) - self.gradient(w)).square().sum(-1).mean(0)


def problems() -> list[Problem]:
    """One hard case, one with a constant Hessian, one nonconvex and one that people train."""
    return [
        tilted_cosine(3.0, sigma=1.0, start=0.5),
        least_squares(seed=0),
        shifted_cosines(seed=0),
        logistic(seed=0),
    ]


def without_noise() -> Problem:
    """``L = 3 cos w`` with σ = 0, on which the mini-batch theorem as printed fails."""
    return tilted_cosine(3.0, sigma=0.0, start=0.5)


# Nonconvex: made of cosines, whose curvature is bounded by their amplitudes -----------------------


@dataclass(frozen=True, eq=False)
class TiltedCosine(Problem):
    """``ℓ_±(w) = β cos w ± σ w``: the gradient noise has the variance σ² everywhere."""

    def loss(self, w: Tensor) -> Tensor:
        return self.beta * torch.cos(w[:, 0])

    def gradient(self, w: Tensor) -> Tensor:
        return -self.beta * torch.sin(w)

    def batch_loss(self, w: Tensor, rows: Tensor) -> Tensor:
        return self.loss(w) + self._tilt(rows)[:, 0] * w[:, 0]

    def batch_gradient(self, w: Tensor, rows: Tensor) -> Tensor:
        return self.gradient(w) + self._tilt(rows)

    def _tilt(self, rows: Tensor) -> Tensor:
        return math.sqrt(self.variance) * (2.0 * rows.double() - 1.0).mean(1, keepdim=True)


def tilted_cosine(beta: float, sigma: float, start: float) -> TiltedCosine:
    """``L = β cos w`` from ``start``, with gradient noise of standard deviation ``sigma``.

    >>> tilted_cosine(3.0, sigma=0.0, start=0.5).name
    '3 cos w'
    """
    beta, sigma = checks.positive("beta", beta), checks.at_least_zero("sigma", sigma)
    at = torch.tensor([start], dtype=torch.float64)
    return TiltedCosine(f"{beta:g} cos w", beta, beta, sigma**2, at, count=2)


@dataclass(frozen=True, eq=False)
class ShiftedCosines(Problem):
    """``ℓ_i(w) = Σ_k a_k cos(v_k·w ± δ)``, one sample for each choice of the signs.

    The Hessian is ``−Σ a_k cos(·) v_k v_kᵀ``, so ``β = λ_max(Σ |a_k| v_k v_kᵀ)``, which is reached
    where all cosines are ±1. The mean over the signs is ``L = cos δ Σ a_k cos(v_k·w)``, and the
    noise has the variance ``sin² δ Σ a_k² ‖v_k‖² cos²(v_k·w)``.
    """

    amplitudes: Tensor
    directions: Tensor
    shift: float
    signs: Tensor

    def loss(self, w: Tensor) -> Tensor:
        return math.cos(self.shift) * torch.cos(w @ self.directions.T) @ self.amplitudes

    def gradient(self, w: Tensor) -> Tensor:
        slopes = torch.sin(w @ self.directions.T) * self.amplitudes
        return -math.cos(self.shift) * (slopes @ self.directions)

    def batch_loss(self, w: Tensor, rows: Tensor) -> Tensor:
        return (torch.cos(self._angles(w, rows)) @ self.amplitudes).mean(1)

    def batch_gradient(self, w: Tensor, rows: Tensor) -> Tensor:
        slopes = torch.sin(self._angles(w, rows)).mean(1) * self.amplitudes
        return -slopes @ self.directions

    def _angles(self, w: Tensor, rows: Tensor) -> Tensor:
        return (w @ self.directions.T).unsqueeze(1) + self.shift * self.signs[rows]


def shifted_cosines(
    seed: int, *, beta: float = 1.0, shift: float = math.pi / 5, terms: int = 4
) -> ShiftedCosines:
    """A random sum of cosines in as many dimensions as terms, scaled to the smoothness ``beta``."""
    draw = torch.Generator().manual_seed(checks.seed("seed", seed))
    directions = torch.randn(terms, terms, generator=draw, dtype=torch.float64)
    amplitudes = torch.randn(terms, generator=draw, dtype=torch.float64)
    start = torch.randn(terms, generator=draw, dtype=torch.float64)
    steepest = torch.linalg.eigvalsh(directions.T * amplitudes.abs() @ directions)[-1]
    amplitudes = amplitudes * (checks.positive("beta", beta) / steepest)
    noise = (amplitudes**2 * directions.square().sum(1)).sum().item()
    signs = torch.tensor(list(product((-1.0, 1.0), repeat=terms)), dtype=torch.float64)
    return ShiftedCosines(
        name="sum of cosines",
        beta=beta,
        full_beta=beta * math.cos(shift),
        variance=math.sin(shift) ** 2 * noise,
        start=start,
        count=len(signs),
        amplitudes=amplitudes,
        directions=directions,
        shift=shift,
        signs=signs,
    )


# Convex -------------------------------------------------------------------------------------------


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
