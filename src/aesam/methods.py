"""The named methods: each picks from the five questions' answers and does nothing else.

A class and its record stand together. What the keywords of all methods mean (``rho``,
``normalize``, ``nonfinite``, ``replay``, ``max_norm``, ``local_ascent``, ``compensate``) is said at
:class:`aesam.SharpnessAware`.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict

import torch
from torch import nn

from aesam._core import construction
from aesam.optimizer import SharpnessAware
from aesam.parts import checks
from aesam.parts.ascents import RandomSubset
from aesam.parts.between import Between, Plain, Reuse
from aesam.parts.budget import Budget
from aesam.parts.controls import Inverted, InvertedBudget, MatchedRate
from aesam.parts.policies import Adaptive, Always, Bernoulli, Late, Never, Periodic
from aesam.parts.samples import LargestRise
from aesam.registry import Setting, register_method

if TYPE_CHECKING:
    from typing_extensions import Unpack


class WithoutLength(TypedDict, total=False):
    """The keywords that a method hands on that has its own word for how far it ascends.

    >>> sorted(WithoutLength.__annotations__)
    ['compensate', 'local_ascent', 'max_norm', 'nonfinite', 'replay']
    """

    nonfinite: Literal["skip", "raise"]
    replay: bool
    max_norm: float | None
    local_ascent: bool
    compensate: float | None


class WithoutRadius(WithoutLength, total=False):
    """The keywords that a method with another default of ``rho`` hands on.

    >>> sorted(WithoutRadius.__annotations__)
    ['compensate', 'local_ascent', 'max_norm', 'nonfinite', 'normalize', 'replay']
    """

    normalize: bool


class Common(WithoutRadius, total=False):
    """The keywords that every method hands on to :class:`aesam.SharpnessAware`.

    >>> sorted(Common.__annotations__)
    ['compensate', 'local_ascent', 'max_norm', 'nonfinite', 'normalize', 'replay', 'rho']
    """

    rho: float


RHO = Setting(
    "rho",
    0.05,
    "radius of the ascent",
    symbol="ρ",
    allowed="≥ 0",
    least=0.0,
    grid=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
)
ALPHA = Setting(
    "alpha",
    0.5,
    "weight of the reused direction",
    symbol="α",
    allowed="any finite number",
    grid=(0.1, 0.3, 0.6, 0.9),
)
NORMALIZE = Setting(
    "normalize", True, "normalise the ascent: ε = ρ g/‖g‖, else ε = ρ g", allowed="yes or no"
)
K = Setting("k", 5, "a second gradient every k-th step", symbol="k", allowed="≥ 1", least=1)
P = Setting(
    "p", 0.5, "probability of a second gradient", symbol="p", allowed="0 to 1", least=0.0, most=1.0
)
LAMBDA1 = Setting(
    "lambda1", -1.0, "threshold at the end of training", symbol="λ1", allowed="≤ λ2, or both ±∞"
)
LAMBDA2 = Setting("lambda2", 1.0, "threshold at the start of training", symbol="λ2", allowed="≥ λ1")
DELTA = Setting(
    "delta",
    0.9,
    "forgetting rate of the running mean and variance",
    symbol="δ",
    allowed="between 0 and 1",
    least=0.0,
    most=1.0,
    is_open=True,
)
INITIAL_VARIANCE = Setting(
    "initial_variance",
    math.exp(-10),
    "variance before the first step",
    symbol="σ²₋₁",
    allowed="> 0",
    implied=True,
    least=0.0,
    is_open=True,
)
BETA = Setting(
    "beta",
    0.6,
    "share of tensors in the ascent",
    symbol="β",
    allowed="> 0, ≤ 1",
    least=0.0,
    most=1.0,
)
GAMMA = Setting(
    "gamma",
    0.5,
    "share of rows in the second gradient",
    symbol="γ",
    allowed="> 0, ≤ 1",
    least=0.0,
    most=1.0,
)
AFTER = Setting(
    "after",
    0.75,
    "share of training before the first second gradient",
    allowed="0 to 1",
    least=0.0,
    most=1.0,
)

BUDGET = Setting(
    "budget",
    None,
    "share of the steps that may take a second gradient, instead of the thresholds",
    allowed="0 to 1",
    implied=True,
    instead_of=("lambda1", "lambda2", "delta", "initial_variance", "total_steps"),
)
#: Of methods that take a second gradient on a part of their steps; elsewhere the factor is 1.
COMPENSATE = Setting(
    "compensate",
    None,
    "largest factor on ρ, which is one over the share of steps with a second gradient so far",
    phrase="compensated ≤ {}",
    allowed="≥ 1",
    implied=True,
    least=1.0,
)

HALF = (LAMBDA1, LAMBDA2)  # a second gradient on about half of the steps
FIFTH = (LAMBDA1.but(0.0), LAMBDA2.but(2.0))  # on about a fifth


@dataclass(frozen=True)
class Thresholds:
    """What an adaptive method was given of the paper's policy; None where it was not."""

    total_steps: int | None = None
    lambda1: float | None = None
    lambda2: float | None = None
    delta: float | None = None
    initial_variance: float | None = None

    @property
    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def policy(self, kind: type[Adaptive], usual: tuple[Setting, Setting]) -> Adaptive:
        """The paper's policy, with these thresholds where none are given."""
        thresholds: dict[str, Any] = {setting.name: setting.default for setting in usual}
        return kind(**{**thresholds, **self._given})

    def instead(self, kind: type[Budget], budget: float) -> Budget:
        """A budget, which goes with none of them."""
        share = checks.probability("budget", budget)
        if self._given:
            others = " and ".join(f"{name}={value!r}" for name, value in self._given.items())
            raise ValueError(
                f"budget={budget!r} cannot be given beside {others}: it finds its own threshold "
                "and need not know how long the training is. Give the one or the other."
            )
        return kind(share)


@register_method("erm", label="ERM", settings=())
class ERM(SharpnessAware):
    """The base optimizer alone, to compare with: no second gradient ever.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, or None, the default; nothing is done to it.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: accepted as by all methods, and of no effect; False by default.
        compensate: accepted too, and of no effect; None by default.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> ERM(torch.optim.SGD([w], lr=0.1)).policy
    Never()
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        nonfinite: Literal["skip", "raise"] = "skip",
        replay: bool = False,
        max_norm: float | None = None,
        local_ascent: bool = False,
        compensate: float | None = None,
        **_others: NoReturn,
    ) -> None:
        construction.refuse_parameters(type(self), base, model, _others)
        construction.refuse_unknown(type(self), _others)
        super().__init__(
            base,
            model,
            policy=Never(),
            nonfinite=nonfinite,
            replay=replay,
            max_norm=max_norm,
            local_ascent=local_ascent,
            compensate=compensate,
        )


@register_method("sam", label="SAM", settings=(RHO, NORMALIZE), paper="Foret et al. 2021")
class SAM(SharpnessAware):
    """Sharpness-aware minimization (Foret et al. 2021): two gradients on every step.

    ``d = ∇L(B; w + ε)`` with ``ε = ρ g/‖g‖`` (Eq. 2).

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> SAM(torch.optim.SGD([w], lr=0.1), rho=0.05).policy
    Always()
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Always(), **common)


@register_method(
    "esam", label="ESAM", settings=(RHO, BETA, GAMMA, NORMALIZE), paper="Du et al. 2022"
)
class ESAM(SharpnessAware):
    """ESAM (Du et al. 2022): SAM's ascent on random tensors, its gradient on selected rows.

    Each tensor takes part in ``ε`` with probability ``β``; the second gradient is of the
    ``γ b`` rows whose loss rose most. ``step`` takes a function of per-sample losses.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        beta: probability β of each tensor to take part in the ascent, above 0 and at most 1; 0.6 by
            default.
        gamma: share γ of the rows in the second gradient, above 0 and at most 1; 0.5 by default.
        seed: of the draws, a whole number from 0, the default.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

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
        **common: "Unpack[Common]",
    ) -> None:
        ascent, samples = RandomSubset(beta, seed), LargestRise(gamma)
        super().__init__(base, model, policy=Always(), ascent=ascent, samples=samples, **common)


@register_method(
    "ss-sam", label="SS-SAM", settings=(RHO, P, NORMALIZE, COMPENSATE), paper="Zhao et al. 2022"
)
class SSSAM(SharpnessAware):
    """SS-SAM (Zhao et al. 2022): SAM with probability ``p`` on each step, else the plain step.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        p: probability of a second gradient, from 0 to 1; 0.5 by default.
        seed: of the draws, a whole number from 0, the default.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

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
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Bernoulli(p, seed), **common)


@register_method(
    "looksam",
    label="LookSAM",
    settings=(RHO, ALPHA, K, NORMALIZE, COMPENSATE),
    paper="Liu et al. 2022",
)
class LookSAM(SharpnessAware):
    """LookSAM (Liu et al. 2022): SAM on every ``k``-th step, its direction reused in between.

    Between, ``d = g + α (‖g‖/‖g_v‖) g_v``; see :class:`aesam.parts.between.Reuse`.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        k: steps from one second gradient to the next, a whole number from 1; 5 by default.
        alpha: weight α of the reused direction, any finite number; 0.5 by default.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

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
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Periodic(k), between=Reuse(alpha), **common)


@register_method(
    "ae-sam",
    label="AE-SAM",
    settings=(RHO, *HALF, DELTA, BUDGET, NORMALIZE, INITIAL_VARIANCE, COMPENSATE),
    paper="Jiang et al. 2023",
)
class AESAM(SharpnessAware):
    """AE-SAM (Jiang et al. 2023, Algorithm 1): SAM where the loss is sharp, else the plain step.

    Sharp is ``‖g‖² ≥ μ_t + c_t σ_t``; see :class:`aesam.parts.policies.Adaptive`. The defaults take
    the second gradient on about half of the steps.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        total_steps: optimizer steps of the whole training, ``epochs * len(loader)``. Left out
            (None, the default), it must be told by ``set_total_steps`` before the first step.
        lambda1: c_t at the end of training, in standard deviations above the mean, at most
            ``lambda2``; left out (None) -1, so that most steps take the second gradient by then.
        lambda2: c_t at its start, at least ``lambda1``; left out 1, so that few do.
        delta: how much of the running mean μ and variance σ² is kept from step to step, above 0
            and below 1; left out 0.9.
        initial_variance: σ² before the first step, above 0, left out ``e⁻¹⁰``; lower it where
            ‖g‖² is tiny.
        budget: share of the steps that may take a second gradient, from 0 to 1, instead of all
            five above: 0.2 spends at most 20 % extra. See :class:`aesam.parts.budget.Budget`. None,
            the default, for the paper's thresholds.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> AESAM(torch.optim.SGD([w], lr=0.1), total_steps=1000).policy.lambda1
    -1.0
    >>> AESAM(torch.optim.SGD([w], lr=0.1), budget=0.2).policy
    Budget(share=0.2, late=0.0, total_steps=None)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        total_steps: int | None = None,
        lambda1: float | None = None,
        lambda2: float | None = None,
        delta: float | None = None,
        initial_variance: float | None = None,
        budget: float | None = None,
        **common: "Unpack[Common]",
    ) -> None:
        given = Thresholds(total_steps, lambda1, lambda2, delta, initial_variance)
        policy = given.policy(Adaptive, HALF) if budget is None else given.instead(Budget, budget)
        super().__init__(base, model, policy=policy, **common)


@register_method(
    "ae-looksam",
    label="AE-LookSAM",
    settings=(RHO, ALPHA, *FIFTH, DELTA, BUDGET, NORMALIZE, INITIAL_VARIANCE, COMPENSATE),
    paper="Jiang et al. 2023",
)
class AELookSAM(SharpnessAware):
    """AE-LookSAM (Jiang et al. 2023): SAM where the loss is sharp, its direction reused elsewhere.

    The defaults take the second gradient on about a fifth of the steps; under label noise the
    paper uses ``lambda1=-1, lambda2=1``.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        alpha: weight α of the reused direction, any finite number; 0.5 by default.
        total_steps: optimizer steps of the whole training, a whole number from 1. Left out (None,
            the default), it must be told by ``set_total_steps`` before the first step.
        lambda1: threshold factor λ1 at the end of training, at most ``lambda2``; left out (None) 0.
        lambda2: threshold factor λ2 at its start; left out 2.
        delta: forgetting rate δ of mean and variance, above 0 and below 1; left out 0.9.
        initial_variance: σ² before the first step, above 0; left out ``e⁻¹⁰``.
        budget: share of the steps that may take a second gradient, from 0 to 1, instead of these
            four and ``total_steps``. None, the default, for the paper's thresholds.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

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
        lambda1: float | None = None,
        lambda2: float | None = None,
        delta: float | None = None,
        initial_variance: float | None = None,
        budget: float | None = None,
        alpha: float = 0.5,
        **common: "Unpack[Common]",
    ) -> None:
        given = Thresholds(total_steps, lambda1, lambda2, delta, initial_variance)
        policy = given.policy(Adaptive, FIFTH) if budget is None else given.instead(Budget, budget)
        super().__init__(base, model, policy=policy, between=Reuse(alpha), **common)


# Controls: what the paper's methods should be set against ------------------------------------


def matched(
    base: torch.optim.Optimizer,
    model: nn.Module | None = None,
    *,
    total_steps: int | None = None,
    seed: int = 0,
    lambda1: float = -1.0,
    lambda2: float = 1.0,
    alpha: float | None = None,
    **common: "Unpack[Common]",
) -> SharpnessAware:
    """A coin with the adaptive schedule's expected rate at every time, blind to the loss."""
    policy = MatchedRate(lambda1, lambda2, total_steps=total_steps, seed=seed)
    return SharpnessAware(base, model, policy=policy, between=_between(alpha), **common)


def inverted(
    base: torch.optim.Optimizer,
    model: nn.Module | None = None,
    *,
    total_steps: int | None = None,
    lambda1: float | None = None,
    lambda2: float | None = None,
    delta: float | None = None,
    budget: float | None = None,
    alpha: float | None = None,
    **common: "Unpack[Common]",
) -> SharpnessAware:
    """The adaptive policy upside down: the second gradient where the loss is flattest, as often."""
    given = Thresholds(total_steps, lambda1, lambda2, delta)
    if budget is None:
        policy = given.policy(Inverted, HALF)
    else:
        policy = given.instead(InvertedBudget, budget)
    return SharpnessAware(base, model, policy=policy, between=_between(alpha), **common)


def late(
    base: torch.optim.Optimizer,
    model: nn.Module | None = None,
    *,
    total_steps: int | None = None,
    after: float = 0.75,
    **common: "Unpack[Common]",
) -> SharpnessAware:
    """No second gradient at first, then one on every step until the end."""
    return SharpnessAware(base, model, policy=Late(after, total_steps), **common)


def _between(alpha: float | None) -> Between:
    return Plain() if alpha is None else Reuse(alpha)


_COIN = {"budget": "a coin of a budget's rate is ss-sam with p=budget"}

register_method(
    "matched-sam", label="matched coin", settings=(RHO, *HALF, NORMALIZE, COMPENSATE), instead=_COIN
)(matched)
register_method(
    "inverted-sam", label="inverted", settings=(RHO, *HALF, DELTA, BUDGET, NORMALIZE, COMPENSATE)
)(inverted)
register_method(
    "matched-looksam",
    label="matched coin, reuse",
    settings=(RHO, ALPHA, *FIFTH, NORMALIZE, COMPENSATE),
    instead=_COIN,
)(matched)
register_method(
    "inverted-looksam",
    label="inverted, reuse",
    settings=(RHO, ALPHA, *FIFTH, DELTA, BUDGET, NORMALIZE, COMPENSATE),
)(inverted)
register_method("late-sam", label="SAM at the end", settings=(RHO, AFTER, NORMALIZE, COMPENSATE))(
    late
)
