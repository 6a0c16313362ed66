"""Named methods of one gradient a step, taken elsewhere than at ``w``: no closure, no second pass.

What the keywords of all methods mean is said at :class:`aesam.SharpnessAware`.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from aesam.methods import NORMALIZE, RHO, WithoutRadius
from aesam.optimizer import SharpnessAware
from aesam.parts import checks
from aesam.parts.ascents import AlongGradient, Ascent
from aesam.parts.chosen_ascents import NormLayers
from aesam.parts.policies import Never
from aesam.parts.scaled_ascents import WithWeights
from aesam.parts.single_pass import AlongLastGradient, AlongMomentum
from aesam.registry import Setting, register_method

if TYPE_CHECKING:
    from typing_extensions import Unpack

ONE = "1 gradient a step"

UPHILL = Setting("uphill", False, "along the momentum, else against it", allowed="yes or no")
ELEMENTWISE = Setting(
    "elementwise", False, "large weights go farther, as ASAM's", allowed="yes or no", implied=True
)
NORM_LAYERS = Setting(
    "norm_layers",
    False,
    "normalisation layers alone move, as SAM-ON's",
    allowed="yes or no",
    implied=True,
)


def _like(elementwise: bool, norm_layers: bool) -> Ascent:
    """The ascent by whose rule something is gone along that is not this step's gradient."""
    elementwise = checks.flag("elementwise", elementwise)
    norm_layers = checks.flag("norm_layers", norm_layers)
    if elementwise and norm_layers:
        raise ValueError(
            "elementwise=True and norm_layers=True cannot be given together: parameters of "
            "normalisation layers have one dimension, where elementwise changes nothing. Give one."
        )
    if elementwise:
        return WithWeights()
    return NormLayers() if norm_layers else AlongGradient()


@register_method(
    "msam",
    label="MSAM",
    settings=(RHO.but(1.0, grid=(0.3, 1.0, 3.0)), UPHILL, ELEMENTWISE, NORM_LAYERS, NORMALIZE),
    paper="Becker et al. 2024",
    rule="d = ∇L(w + s ρ v/‖v‖), v the base's momentum, s = −1 or 1",
    cost=ONE,
)
class MSAM(SharpnessAware):
    """MSAM (Becker et al. 2024): one gradient a step, taken along the momentum from ``w``.

    ``d = ∇L(B; w + s ρ v/‖v‖)`` with ``v`` the base's momentum and ``s = −1``, or 1 uphill. Given
    the model, a bare ``step()`` works in every loop and trainer.

    Args:
        base: the optimizer to wrap; it must have a momentum.
        model: the model that is trained: its training forwards move the weights, and the end of the
            backward brings them back.
        rho: radius ρ ≥ 0, 1 by default; its authors use 0.3 to 3. A parameter group may have its
            own.
        uphill: ``s = 1``, along the momentum (True), or ``s = −1`` as its authors print it (False,
            the default).
        elementwise: large weights go farther, ``w + s ρ T²v/‖Tv‖`` with ``T`` as ASAM's,
            ``|w| + 0.01`` and 1 for one-dimensional parameters; False by default.
        norm_layers: the parameters of normalisation layers alone move, the norm is over those, as
            SAM-ON's; needs the model. False by default.
        normalize: divide by ‖v‖ (True, the default), or ``w + s ρ v``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: accepted as by all methods, and of no effect; False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: accepted as by all methods, and of no effect; False by default.
        compensate: accepted as by all methods, and of no effect; None by default.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> MSAM(torch.optim.SGD([w], lr=0.1, momentum=0.9)).parts.ascent
    AlongMomentum(like=AlongGradient(), uphill=False, key='')
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rho: float = 1.0,
        uphill: bool = False,
        elementwise: bool = False,
        norm_layers: bool = False,
        **common: "Unpack[WithoutRadius]",
    ) -> None:
        ascent = AlongMomentum(uphill, like=_like(elementwise, norm_layers))
        super().__init__(base, model, policy=Never(), ascent=ascent, rho=rho, **common)


@register_method(
    "stale-sam",
    label="stale SAM",
    settings=(RHO.but(1.0, grid=(0.25, 0.5, 1.0, 2.0)), ELEMENTWISE, NORM_LAYERS, NORMALIZE),
    rule="d = ∇L(w + ρ g/‖g‖), g of the step before",
    cost=ONE,
)
class StaleSAM(SharpnessAware):
    """Stale ascent: one gradient a step, taken along the gradient of the step before from ``w``.

    ``d = ∇L(B_t; w + ρ g/‖g‖)`` with ``g`` the gradient of the step before, at the memory of one
    more gradient. Given the model, a bare ``step()`` works in every loop and trainer.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained: its training forwards move the weights, and the end of the
            backward brings them back.
        rho: radius ρ ≥ 0, 1 by default; the right one is narrow. A parameter group may have its
            own.
        elementwise: large weights go farther, ``w + ρ T²g/‖Tg‖``, as in :class:`MSAM`; False by
            default.
        norm_layers: the parameters of normalisation layers alone move, as in :class:`MSAM`; False
            by default.
        normalize: divide by ‖g‖ (True, the default), or ``w + ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: accepted as by all methods, and of no effect; False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: refused where True: the gradient that is kept is the averaged one. False by
            default.
        compensate: accepted as by all methods, and of no effect; None by default.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> StaleSAM(torch.optim.SGD([w], lr=0.1), rho=0.5).policy
    Never()
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rho: float = 1.0,
        elementwise: bool = False,
        norm_layers: bool = False,
        **common: "Unpack[WithoutRadius]",
    ) -> None:
        ascent = AlongLastGradient(like=_like(elementwise, norm_layers))
        super().__init__(base, model, policy=Never(), ascent=ascent, rho=rho, **common)
