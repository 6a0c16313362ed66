"""Methods beyond the paper, each a part or two in the place of SAM's.

All take their second gradient on every step, as their papers do; the parts go with every policy:
``SharpnessAware(base, model, policy=Adaptive(...), ascent=WithWeights())`` is an adaptive ASAM.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from aesam.methods import NORMALIZE, RHO, Common, WithoutRadius
from aesam.optimizer import SharpnessAware
from aesam.parts import checks
from aesam.parts.averaged_ascents import AlongAverage, AwayFromAverage
from aesam.parts.chosen_ascents import NormLayers
from aesam.parts.combine import Mix, SurrogateGap, WeightedSharpness
from aesam.parts.policies import Always
from aesam.parts.radii import FollowingRate, WithinRise
from aesam.parts.scaled_ascents import WithFisher, WithWeights
from aesam.registry import Setting, register_method

if TYPE_CHECKING:
    from typing_extensions import Unpack

TWO = "2 gradients a step"

WIDE_RHO = RHO.but(0.5, grid=(0.1, 0.2, 0.5, 1.0, 2.0))
ETA = Setting("eta", 0.01, "added to |w|", symbol="η", allowed="≥ 0")
ADAPT_ALL = Setting(
    "adapt_all", False, "scale biases and normalisation too, as the paper", allowed="yes or no"
)
FISHER_ETA = Setting(
    "eta",
    1.0,
    "weight of g² in the Fisher matrix",
    symbol="η",
    allowed="≥ 0",
    grid=(0.1, 1, 10),
    least=0.0,
)
MIXED = Setting(
    "alpha",
    0.8,
    "weight of the second gradient",
    symbol="α",
    allowed="any finite number",
    grid=(0.5, 0.7, 0.8, 0.9),
)
GAP = Setting(
    "alpha",
    0.1,
    "weight of the surrogate gap",
    symbol="α",
    allowed="any finite number",
    grid=(0.01, 0.03, 0.1, 0.3),
)
RHO_MIN = Setting(
    "rho_min",
    0.0,
    "radius where the learning rate is lowest",
    symbol="ρ_min",
    allowed="0 to ρ",
    least=0.0,
)
LR_MIN = Setting(
    "lr_min", 0.0, "learning rate that has the lowest radius", allowed="≥ 0", least=0.0
)
GAMMA = Setting(
    "gamma",
    0.9,
    "weight of the sharpness",
    symbol="γ",
    allowed="≥ 0, < 1",
    grid=(0.5, 0.8, 0.9, 0.95),
    most=1.0,
    is_open=True,
)
LARGEST_RHO = RHO.but(0.5, grid=())
RISE = Setting(
    "rise",
    0.05,
    "by how much the loss may rise, to first order",
    symbol="σ",
    allowed="≥ 0",
    grid=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    least=0.0,
)
SIGMA = Setting(
    "sigma",
    1.0,
    "share of the averaged gradient that is taken away",
    symbol="σ",
    allowed="any finite number",
)
DECAY = Setting(
    "decay",
    0.9,
    "what is kept of the averaged gradient",
    symbol="λ",
    allowed="between 0 and 1",
    grid=(0.6, 0.8, 0.9, 0.95),
    least=0.0,
    most=1.0,
    is_open=True,
)
THETA = Setting(
    "theta",
    0.9,
    "weight of the present gradient in the average",
    symbol="θ",
    allowed="> 0, ≤ 1",
    grid=(0.2, 0.4, 0.9),
    least=0.0,
    most=1.0,
)


@register_method(
    "asam",
    label="ASAM",
    settings=(WIDE_RHO, ETA, ADAPT_ALL, NORMALIZE),
    paper="Kwon et al. 2021",
    rule="ε = ρ T²g / ‖T g‖ with T = |w| + η; 1 for biases",
    cost=TWO,
)
class ASAM(SharpnessAware):
    """ASAM (Kwon et al. 2021): SAM in units of each weight, so that rescaling layers is harmless.

    ``ε = ρ T² g/‖T g‖`` with ``T = |w| + η``, elementwise; see
    :class:`aesam.parts.scaled_ascents.WithWeights`.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, about ten times SAM's, 0.5 by default; a parameter group
            may have its own.
        eta: η ≥ 0, what a weight of zero may move by; 0.01 by default.
        adapt_all: True scales biases and other one-dimensional parameters too, as the paper does;
            False, the default, does not, as its authors' code.
        normalize: divide by ``‖T g‖`` (True, the default), or ``ε = ρ T² g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2, 2))
    >>> ASAM(torch.optim.SGD([w], lr=0.1)).parts.ascent
    WithWeights(eta=0.01, adapt_all=False)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rho: float = 0.5,
        eta: float = 0.01,
        adapt_all: bool = False,
        **common: "Unpack[WithoutRadius]",
    ) -> None:
        ascent = WithWeights(eta, adapt_all)
        super().__init__(base, model, policy=Always(), ascent=ascent, rho=rho, **common)


@register_method(
    "fisher-sam",
    label="FisherSAM",
    settings=(RHO, FISHER_ETA, NORMALIZE),
    paper="Kim et al. 2022",
    rule="ε = ρ F⁻¹g / √(gᵀF⁻¹g) with F = 1 + η g²",
    cost=TWO,
)
class FisherSAM(SharpnessAware):
    """FisherSAM (Kim et al. 2022): SAM in an ellipsoid that the squared gradient gives.

    ``ε = ρ F⁻¹g/√(gᵀF⁻¹g)`` with ``F = 1 + η g²``, elementwise; see
    :class:`aesam.parts.scaled_ascents.WithFisher`.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        eta: weight η ≥ 0 of ``g²``; 1 by default, and 0 is SAM.
        normalize: divide by ``√(gᵀF⁻¹g)`` (True, the default), or ``ε = ρ F⁻¹g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> FisherSAM(torch.optim.SGD([w], lr=0.1)).parts.ascent
    WithFisher(eta=1.0)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        eta: float = 1.0,
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Always(), ascent=WithFisher(eta), **common)


@register_method(
    "gnp",
    label="GNP",
    settings=(RHO, MIXED, NORMALIZE),
    paper="Zhao, Zhang and Hu 2022",
    rule="d = (1−α) g + α g_s",
    cost=TWO,
)
class GNP(SharpnessAware):
    """GNP (Zhao, Zhang and Hu 2022): the gradient's norm is penalised, by mixing both gradients.

    ``d = (1−α) g + α g_s``; see :class:`aesam.parts.combine.Mix`.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        alpha: weight α of the second gradient, any finite number; 0.8 by default, and 1 is SAM.
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
    >>> GNP(torch.optim.SGD([w], lr=0.1)).parts.combine
    Mix(alpha=0.8)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        alpha: float = 0.8,
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Always(), combine=Mix(alpha), **common)


@register_method(
    "f-sam",
    label="F-SAM",
    settings=(RHO, DECAY, SIGMA, NORMALIZE),
    paper="Li et al. 2024",
    rule="ε along g − σ m; m ← λ m + (1−λ) g on every step",
    cost=TWO,
)
class FSAM(SharpnessAware):
    """Friendly SAM (Li et al. 2024): an ascent along what only this batch says, ``g − σ m``.

    ``m ← λ m + (1−λ) g`` on every step; see
    :class:`aesam.parts.averaged_ascents.AwayFromAverage`.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        sigma: share σ of the averaged gradient that is taken away, any finite number; 1 by default,
            and 0 is SAM.
        decay: what λ is kept of the average from step to step, above 0 and below 1; 0.9 by default.
        normalize: ``ε = ρ (g − σ m)/‖g − σ m‖`` (True, the default), or not divided.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: refused if True, since a checkpoint has one average; False by default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> FSAM(torch.optim.SGD([w], lr=0.1)).parts.ascent
    AwayFromAverage(sigma=1.0, decay=0.9)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        sigma: float = 1.0,
        decay: float = 0.9,
        **common: "Unpack[Common]",
    ) -> None:
        ascent = AwayFromAverage(sigma, decay)
        super().__init__(base, model, policy=Always(), ascent=ascent, **common)


@register_method(
    "vasso",
    label="VaSSO",
    settings=(RHO, THETA, NORMALIZE),
    paper="Li and Giannakis 2023",
    rule="ε along m; m ← (1−θ) m + θ g on every step",
    cost=TWO,
)
class VaSSO(SharpnessAware):
    """VaSSO (Li and Giannakis 2023): an ascent along a running average of the gradients.

    ``m ← (1−θ) m + θ g`` on every step, and ``ε = ρ m/‖m‖``; see
    :class:`aesam.parts.averaged_ascents.AlongAverage`.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        theta: weight θ of the present gradient, above 0 and at most 1, which is SAM; 0.9 by
            default.
        normalize: ``ε = ρ m/‖m‖`` (True, the default), or ``ε = ρ m``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: refused if True, since a checkpoint has one average; False by default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> VaSSO(torch.optim.SGD([w], lr=0.1)).parts.ascent
    AlongAverage(theta=0.9)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        theta: float = 0.9,
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Always(), ascent=AlongAverage(theta), **common)


@register_method(
    "gsam",
    label="GSAM",
    settings=(RHO, GAP, RHO_MIN, LR_MIN, NORMALIZE),
    paper="Zhuang et al. 2022",
    rule="d = g_s − α g_⊥ with g_⊥ = g − (g·g_s/‖g_s‖²) g_s; ρ follows lr from ρ_min to ρ",
    cost=TWO,
)
class GSAM(SharpnessAware):
    """GSAM (Zhuang et al. 2022): also lowers how much the loss rises; its radius follows lr.

    ``d = g_s − α g_⊥``; see :class:`aesam.parts.combine.SurrogateGap`. ``ρ`` goes linearly from
    ``rho_min`` to ``rho`` with the group's learning rate; see
    :class:`aesam.parts.radii.FollowingRate`.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 at the highest learning rate, 0.05 by default; a parameter group may have
            its own.
        alpha: weight α of the surrogate gap, any finite number; 0.1 by default.
        rho_min: radius at the lowest learning rate, from 0, the default, to ``rho``.
        lr_min: the learning rate that has that radius, 0 or more; 0 by default.
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
    >>> GSAM(torch.optim.SGD([w], lr=0.1), alpha=0.3).parts.combine
    SurrogateGap(alpha=0.3)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rho: float = 0.05,
        alpha: float = 0.1,
        rho_min: float = 0.0,
        lr_min: float = 0.0,
        **common: "Unpack[WithoutRadius]",
    ) -> None:
        ascent, combine = FollowingRate(rho_min, lr_min), SurrogateGap(alpha)
        if checks.at_least_zero("rho", rho) < ascent.rho_min:
            raise ValueError(f"rho_min must be at most rho = {rho!r}, got {rho_min!r}")
        super().__init__(
            base, model, policy=Always(), ascent=ascent, combine=combine, rho=rho, **common
        )


@register_method(
    "wsam",
    label="WSAM",
    settings=(RHO, GAMMA, NORMALIZE),
    paper="Yue et al. 2023",
    rule="d = g, then w ← w − lr · γ/(1−γ) · (g_s − g)",
    cost=TWO,
)
class WSAM(SharpnessAware):
    """WSAM (Yue et al. 2023): the base steps along ``g``, weighted sharpness is applied after it.

    ``w ← w − lr · γ/(1−γ) · (g_s − g)``, decoupled from the base's momentum and preconditioning;
    see :class:`aesam.parts.combine.WeightedSharpness`. The coupled form is :class:`GNP` with
    ``alpha=γ/(1−γ)``.

    Args:
        base: the optimizer to wrap; its groups have an ``lr``.
        model: the model that is trained, whose buffers the second pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        gamma: weight γ of the sharpness, from 0 and below 1; 0.9 by default.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip ``g`` to this norm, above 0, not the sharpness; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> WSAM(torch.optim.SGD([w], lr=0.1)).parts.combine
    WeightedSharpness(gamma=0.9)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        gamma: float = 0.9,
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Always(), combine=WeightedSharpness(gamma), **common)


@register_method(
    "sam-on",
    label="SAM-ON",
    settings=(WIDE_RHO, NORMALIZE),
    paper="Müller et al. 2023",
    rule="ε = ρ g / ‖g‖ over scales and shifts of normalisation layers; 0 elsewhere",
    cost=TWO,
)
class SAMON(SharpnessAware):
    """SAM-ON (Müller et al. 2023): an ascent of normalisation layers only.

    The norm is taken over their scales and shifts; the second gradient is of all parameters. Others
    may be chosen by name: see :class:`aesam.parts.chosen_ascents.Named`.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, which must be given: it says what is a normalisation
            layer. One without any is refused.
        rho: radius ρ ≥ 0 of the ascent, larger than SAM's, 0.5 by default; a parameter group may
            have its own.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again. False by
            default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    >>> SAMON(torch.optim.SGD(model.parameters(), lr=0.1), model).parts.ascent
    NormLayers()
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rho: float = 0.5,
        **common: "Unpack[WithoutRadius]",
    ) -> None:
        super().__init__(base, model, policy=Always(), ascent=NormLayers(), rho=rho, **common)


@register_method(
    "le-sam",
    label="LE-SAM",
    settings=(RISE, LARGEST_RHO, NORMALIZE),
    paper="Wang et al. 2026",
    rule="ε = ρ_t g / ‖g‖ with ρ_t = min(σ/‖g‖, ρ_max)",
    cost=TWO,
)
class LESAM(SharpnessAware):
    """LE-SAM (Wang et al. 2026): a budget of how much the loss may rise instead of a radius.

    ``ρ_t = min(σ/‖g‖, ρ_max)``; see :class:`aesam.parts.radii.WithinRise`. ``σ`` is constant; the
    authors let it fall to zero at the end.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the second pass must not change.
        rise: σ ≥ 0, by how much the loss may rise to first order; 0.05 by default.
        rho: largest radius ρ_max ≥ 0, where the gradient is small; 0.5 by default. A parameter
            group may have its own.
        normalize: ``ε = ρ_t g/‖g‖`` (True, the default), or ``ε = ρ_t g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` work by running recorded forwards again; needs
            ``model``. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> LESAM(torch.optim.SGD([w], lr=0.1)).parts.ascent
    WithinRise(rise=0.05)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rise: float = 0.05,
        rho: float = 0.5,
        **common: "Unpack[WithoutRadius]",
    ) -> None:
        super().__init__(base, model, policy=Always(), ascent=WithinRise(rise), rho=rho, **common)
