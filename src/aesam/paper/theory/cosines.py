# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Nonconvex problems made of cosines, whose curvature is bounded by their amplitudes."""

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from aesam.paper.theory.problem import Problem
from aesam.parts import checks


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
