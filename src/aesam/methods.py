"""The methods of the paper by name; each picks from the five axes and does nothing else."""

import math

import torch
from torch import nn

from aesam.optimizer import SharpnessAware
from aesam.parts.ascents import RandomSubset
from aesam.parts.between import Reuse
from aesam.parts.policies import Adaptive, Always, Bernoulli, Periodic
from aesam.parts.samples import LargestRise


class SAM(SharpnessAware):
    """Sharpness-aware minimization (Foret et al. 2021): two gradients on every step.

    ``d = ∇L(B; w + ε)`` with ``ε = ρ g/‖g‖`` (Eq. 2).

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> SAM(torch.optim.SGD([w], lr=0.1), rho=0.05).policy
    Always()
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rho: float = 0.05,
        normalize: bool = True,
        nonfinite: str = "skip",
    ) -> None:
        super().__init__(
            base, model, policy=Always(), rho=rho, normalize=normalize, nonfinite=nonfinite
        )


class SSSAM(SharpnessAware):
    """SS-SAM (Zhao et al. 2022): SAM with probability ``p`` on each step, else the plain step.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> SSSAM(torch.optim.SGD([w], lr=0.1), p=0.5, seed=1).policy
    Bernoulli(p=0.5, seed=1)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        p: float = 0.5,
        seed: int = 0,
        rho: float = 0.05,
        normalize: bool = True,
        nonfinite: str = "skip",
    ) -> None:
        super().__init__(
            base,
            model,
            policy=Bernoulli(p, seed),
            rho=rho,
            normalize=normalize,
            nonfinite=nonfinite,
        )


class LookSAM(SharpnessAware):
    """LookSAM (Liu et al. 2022): SAM on every ``k``-th step, its direction reused in between.

    Between, ``d = g + α (‖g‖/‖g_v‖) g_v``; see :class:`aesam.parts.between.Reuse`.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> LookSAM(torch.optim.SGD([w], lr=0.1), k=2).policy
    Periodic(k=2)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        k: int = 5,
        alpha: float = 0.5,
        rho: float = 0.05,
        normalize: bool = True,
        nonfinite: str = "skip",
    ) -> None:
        super().__init__(
            base,
            model,
            policy=Periodic(k),
            between=Reuse(alpha),
            rho=rho,
            normalize=normalize,
            nonfinite=nonfinite,
        )


class AESAM(SharpnessAware):
    """AE-SAM (Algorithm 1): SAM where the loss is sharp, else the plain step.

    Sharp is ``‖g‖² ≥ μ_t + c_t σ_t``; see :class:`aesam.parts.policies.Adaptive`. The
    defaults take the second gradient on about half of the steps.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> AESAM(torch.optim.SGD([w], lr=0.1), total_steps=1000).policy.lambda1
    -1.0
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        total_steps: int | None = None,
        lambda1: float = -1.0,
        lambda2: float = 1.0,
        delta: float = 0.9,
        initial_variance: float = math.exp(-10),
        rho: float = 0.05,
        normalize: bool = True,
        nonfinite: str = "skip",
    ) -> None:
        super().__init__(
            base,
            model,
            policy=Adaptive(lambda1, lambda2, delta, total_steps, initial_variance),
            rho=rho,
            normalize=normalize,
            nonfinite=nonfinite,
        )


class AELookSAM(SharpnessAware):
    """AE-LookSAM (Algorithm 1): SAM where the loss is sharp, its direction reused elsewhere.

    The defaults take the second gradient on about a fifth of the steps; under label noise the
    paper uses ``lambda1=-1, lambda2=1``.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> AELookSAM(torch.optim.SGD([w], lr=0.1), total_steps=1000).parts.between
    Reuse(alpha=0.5)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        total_steps: int | None = None,
        lambda1: float = 0.0,
        lambda2: float = 2.0,
        delta: float = 0.9,
        initial_variance: float = math.exp(-10),
        alpha: float = 0.5,
        rho: float = 0.05,
        normalize: bool = True,
        nonfinite: str = "skip",
    ) -> None:
        super().__init__(
            base,
            model,
            policy=Adaptive(lambda1, lambda2, delta, total_steps, initial_variance),
            between=Reuse(alpha),
            rho=rho,
            normalize=normalize,
            nonfinite=nonfinite,
        )


class ESAM(SharpnessAware):
    """ESAM (Du et al. 2022): SAM's ascent on random tensors, its gradient on selected rows.

    Each tensor takes part in ``ε`` with probability ``β``; the second gradient is of the
    ``γ b`` rows whose loss rose most. ``step`` takes a function of per-sample losses.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> ESAM(torch.optim.SGD([w], lr=0.1), beta=0.6, gamma=0.5).parts.samples
    LargestRise(gamma=0.5)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        beta: float = 0.6,
        gamma: float = 0.5,
        seed: int = 0,
        rho: float = 0.05,
        normalize: bool = True,
        nonfinite: str = "skip",
    ) -> None:
        super().__init__(
            base,
            model,
            policy=Always(),
            ascent=RandomSubset(beta, seed),
            samples=LargestRise(gamma),
            rho=rho,
            normalize=normalize,
            nonfinite=nonfinite,
        )
