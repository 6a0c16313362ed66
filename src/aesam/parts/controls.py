"""Policies that the adaptive one is set against: is it the geometry, or just the schedule?"""

import math
from dataclasses import dataclass
from typing import cast

import torch

from aesam._core.tensors import to_host
from aesam.parts import checks
from aesam.parts.budget import Budget
from aesam.parts.policies import (
    Adaptive,
    Decision,
    Late,  # noqa: F401  # pyright: ignore[reportUnusedImport]  # where it was before
    Observation,
    State,
)


@dataclass(frozen=True)
class MatchedRate(Adaptive):
    """A coin with the rate that the adaptive schedule expects, blind to the loss.

    ``p_t = 1 − Φ(c_t)`` with the ``c_t`` of :class:`aesam.parts.policies.Adaptive`: as often as it
    on gradients whose squared norms are normal, at the same times of training, but on steps that
    are drawn instead of chosen.

    Args:
        lambda1: ``λ1`` of the adaptive policy that it is matched to; -1 by default.
        lambda2: ``λ2`` of that policy, at least ``lambda1``; 1 by default.
        delta: ``δ`` of that policy, above 0 and below 1; has no influence on the rate.
        total_steps: optimizer steps of the whole training, a whole number from 1; left out (None,
            the default), it must be filled in before the first decision.
        initial_variance: ``σ²₋₁`` of that policy, above 0; has no influence on the rate either.
        seed: of the draws, a whole number from 0, the default; checkpoints keep where they are.

    >>> MatchedRate(total_steps=10).rate(5)
    0.5
    """

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keep(seed=checks.seed("seed", self.seed))

    def rate(self, step: int) -> float:
        """``p_t``: the share of a normal distribution above ``c_t`` standard deviations."""
        return 0.5 * math.erfc(self.threshold_factor(step) / math.sqrt(2.0))

    def start(self) -> State:
        return {}

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        (draw,) = to_host(torch.rand(1, generator=now.generator, dtype=torch.float64))
        return Decision(draw < self.rate(now.step), notice=self._notice(now.step)), state


@dataclass(frozen=True)
class Inverted(Adaptive):
    """The adaptive policy upside down: the second gradient where the loss is flattest.

    ``‖g‖² ≤ μ_t − c_t σ_t``, the mirror image of the adaptive threshold, so that the expected rate
    is the same at every time of training.

    Args:
        lambda1: factor ``λ1`` below the mean at the end, at most ``lambda2``; -1 by default.
        lambda2: factor ``λ2`` below the mean at the start; 1 by default.
        delta: forgetting rate ``δ`` of mean and variance, above 0 and below 1; 0.9 by default.
        total_steps: optimizer steps of the whole training, a whole number from 1; left out (None,
            the default), it must be filled in before the first decision.
        initial_variance: ``σ²`` before the first step, above 0; ``e⁻¹⁰`` by default.

    >>> policy = Inverted(total_steps=100)
    >>> policy.decide(Observation(step=0, squared_norm=4.0), policy.start())[0].use_sam
    False
    """

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        adaptive, after = super().decide(now, state)
        mean, std = cast(float, adaptive.mean), cast(float, adaptive.std)
        factor = self.threshold_factor(now.step)
        threshold = mean - factor * std if math.isfinite(factor) else -factor
        fires = now.squared_norm <= threshold
        return Decision(fires, mean, std, threshold, adaptive.notice), after


@dataclass(frozen=True)
class InvertedBudget(Budget):
    """A budget upside down: spent on the steps with the smallest ``‖g‖²`` for their time.

    Args:
        share: of the steps that take a second gradient, from 0 to 1.
        late: share of the training at whose start none is taken, from 0 to below 1; 0 by default.
        total_steps: optimizer steps of the whole training, a whole number from 1; with ``late``
            only. None by default.

    >>> InvertedBudget(1.0).decide(Observation(0, 4.0), InvertedBudget(1.0).start())[0].use_sam
    True
    """

    def _height(self, squared_norm: float) -> float:
        return -super()._height(squared_norm)

    def _norm_at(self, height: float) -> float:
        return super()._norm_at(-height)
