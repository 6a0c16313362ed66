"""Named methods of one gradient a step with random noise on the weights: no second pass.

What the keywords of all methods mean is said at :class:`aesam.SharpnessAware`.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from aesam.methods import WithoutRadius
from aesam.optimizer import SharpnessAware
from aesam.parts.noise import AnticorrelatedNoise, FilterNoise
from aesam.parts.policies import Never
from aesam.parts.samples import Splits
from aesam.registry import Setting, register_method

if TYPE_CHECKING:
    from typing_extensions import Unpack

ONE = "1 gradient a step"

DEVIATION = Setting(
    "rho",
    0.01,
    "standard deviation of the noise",
    symbol="σ",
    allowed="≥ 0",
    least=0.0,
    grid=(0.001, 0.003, 0.01, 0.03),
)
STOP = Setting(
    "stop",
    1.0,
    "share of training after which there is no noise",
    allowed="> 0, ≤ 1",
    least=0.0,
    most=1.0,
)

FILTERS = Setting(
    "rho",
    0.002,
    "noise as a share of a filter's norm",
    symbol="γ",
    allowed="≥ 0",
    least=0.0,
    grid=(0.0005, 0.001, 0.002, 0.005, 0.01),
)
GROWTH = Setting(
    "growth",
    0.0,
    "added to the noise until the end, as a multiple",
    symbol="α",
    allowed="≥ 0",
    least=0.0,
)
SPLITS = Setting(
    "splits",
    1,
    "splits of the batch, each with noise of its own",
    symbol="M",
    allowed="≥ 1",
    least=1,
)


@register_method(
    "lpf-sgd",
    label="LPF-SGD",
    settings=(FILTERS, GROWTH, SPLITS),
    paper="Bisla et al. 2022",
    rule="d = mean of ∇L_m(w + ξ_m) over M splits m, ξ ~ N(0, (γ‖filter‖)²)",
    cost=f"{ONE}, and a random number for each weight and split",
)
class LPFSGD(SharpnessAware):
    """LPF-SGD (Bisla et al. 2022): one gradient a step, at weights with random noise on them.

    ``d = ∇L(B; w + ξ)`` with ``ξ ~ N(0, (γ‖w_f‖)²)`` for each number of the filter ``w_f``, or the
    mean of such gradients over M splits of the batch; see :class:`aesam.parts.noise.FilterNoise`.
    Given the model, a bare ``step()`` works in every loop and trainer, and M micro-batches of a
    step have M different ``ξ``.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained: its training forwards move the weights, and the end of the
            backward brings them back.
        rho: the noise γ ≥ 0 as a share of a filter's norm, 0.002 by default; its authors use 0.0005
            to 0.002. A parameter group may have its own, and may change it at any time.
        growth: what is added to γ until the end of training along half a cosine, as a multiple of
            it, 0 or more; 0 by default.
        splits: splits M of the batch, a whole number from 1, the default. More than one take a
            function of per-sample losses, ``opt.step(losses)``, or M micro-batches.
        total_steps: optimizer steps of the whole training, a whole number from 1, which a growth
            needs; None by default.
        seed: of the noise, a whole number from 0, the default.
        normalize: accepted as by all methods, and of no effect; True by default.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: accepted as by all methods with one split, and of no effect; False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: accepted as by all methods, and of no effect; False by default.
        compensate: accepted as by all methods, and of no effect; None by default.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> LPFSGD(torch.optim.SGD([w], lr=0.1), rho=0.01).parts.ascent
    FilterNoise(growth=0.0, total_steps=None, seed=0)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rho: float = 0.002,
        growth: float = 0.0,
        splits: int = 1,
        total_steps: int | None = None,
        seed: int = 0,
        **common: "Unpack[WithoutRadius]",
    ) -> None:
        ascent = FilterNoise(growth, total_steps, seed)
        samples = Splits(splits)
        super().__init__(
            base, model, policy=Never(), ascent=ascent, samples=samples, rho=rho, **common
        )


@register_method(
    "anti-pgd",
    label="Anti-PGD",
    settings=(DEVIATION, STOP),
    paper="Orvieto et al. 2022",
    rule="d = g, then w ← w + (ξ_{t+1} − ξ_t) with ξ ~ N(0, σ²)",
    cost=f"{ONE}, and a random number for each weight",
)
class AntiPGD(SharpnessAware):
    """Anti-PGD (Orvieto et al. 2022): noise after every update that takes the last one's place.

    ``w ← w − lr·g + (ξ_{t+1} − ξ_t)`` with ``ξ ~ N(0, σ²)``; see
    :class:`aesam.parts.noise.AnticorrelatedNoise`. No closure and no model are needed: a bare
    ``step()`` works in every loop and trainer. What is evaluated has the noise of the last step;
    ``stop`` takes it away for the last part of training, and so does ``rho`` of the groups set to
    0.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, or None, the default; nothing is done to it.
        rho: the noise's standard deviation σ ≥ 0, 0.01 by default. A parameter group may have its
            own, and may change it at any time.
        stop: share of training after which there is no noise, above 0 and at most 1; 1, the
            default, for noise to the end.
        total_steps: optimizer steps of the whole training, a whole number from 1, which ``stop``
            below 1 needs; None by default.
        seed: of the noise, a whole number from 0, the default.
        normalize: accepted as by all methods, and of no effect; True by default.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: accepted as by all methods, and of no effect; False by default.
        max_norm: clip the gradient, not the noise, to this norm, above 0; None, the default, for
            not.
        local_ascent: accepted as by all methods, and of no effect; False by default.
        compensate: accepted as by all methods, and of no effect; None by default.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> opt = AntiPGD(torch.optim.SGD([w], lr=0.1), rho=0.1)
    >>> w.square().sum().backward()
    >>> opt.step()
    >>> opt.last_step.index, opt.policy
    (0, Never())
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rho: float = 0.01,
        stop: float = 1.0,
        total_steps: int | None = None,
        seed: int = 0,
        **common: "Unpack[WithoutRadius]",
    ) -> None:
        noise = AnticorrelatedNoise(stop, total_steps, seed)
        super().__init__(base, model, policy=Never(), combine=noise, rho=rho, **common)
