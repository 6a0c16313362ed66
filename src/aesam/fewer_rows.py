"""Named methods that take a gradient of some rows only.

What the keywords of all methods mean is said at :class:`aesam.SharpnessAware`; all of these take a
function of per-sample losses, ``opt.step(losses)``. Sub-batch ascent also works in bare loops.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from aesam.methods import NORMALIZE, RHO, Common
from aesam.optimizer import SharpnessAware
from aesam.parts.policies import Always
from aesam.parts.samples import LargestLoss, SubBatch
from aesam.registry import Setting, register_method

if TYPE_CHECKING:
    from typing_extensions import Unpack

SHARE = Setting("share", 0.125, "share of the rows in the ascent", allowed="1 over a whole number")
HARD_SHARE = Setting("share", 0.5, "share of the rows in both gradients", allowed="> 0, ≤ 1")


@register_method(
    "sub-sam",
    label="sub-batch SAM",
    settings=(RHO, SHARE, NORMALIZE),
    rule="ε = ρ g_S/‖g_S‖, g_S of every m-th row, m = 1/share",
    cost="1 + share gradients a step",
)
class SubSAM(SharpnessAware):
    """Sub-batch ascent: SAM whose ascent is along the gradient of some rows, at 1 + share.

    ``ε = ρ g_S/‖g_S‖`` with ``g_S`` of every m-th row, ``d = ∇L(B; w + ε)``; see
    :class:`aesam.parts.samples.SubBatch`. Its best ρ is not SAM's. ``step`` takes a function of
    per-sample losses, and returns the mean loss of those rows at ``w``. With ``replay`` a bare
    ``step()`` works where the model returns the loss.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers the first pass must not change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        share: of the rows in the ascent, 1 over a whole number from 2; 1/8 by default.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: True makes a bare ``step()`` and a plain closure, which runs once, work with a model
            that returns the loss: its training forward takes ``g_S`` of some rows of its arguments
            first, and is then itself the second pass. Needs ``model``; False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP, refused beside
            ``replay``; False by default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> SubSAM(torch.optim.SGD([w], lr=0.1)).parts.samples
    SubBatch(share=0.125)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        share: float = 0.125,
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Always(), samples=SubBatch(share), **common)


@register_method(
    "k-sam",
    label="K-SAM",
    settings=(RHO, HARD_SHARE, NORMALIZE),
    paper="Ni et al. 2022",
    rule="both gradients of the rows with the largest loss",
    cost="a forward and 2 · share gradients a step",
)
class KSAM(SharpnessAware):
    """K-SAM (Ni et al. 2022): SAM on the rows with the largest loss, found by a look at all.

    A step costs a forward and ``2 · share`` gradients; see
    :class:`aesam.parts.samples.LargestLoss`. ``step`` takes a function of per-sample losses, and
    returns the mean of all of them at ``w``.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, whose buffers neither pass may change.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        share: of the rows in both gradients, above 0 and at most 1; 0.5 by default.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: refused where True: a bare ``step()`` does not know rows. False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> KSAM(torch.optim.SGD([w], lr=0.1), share=0.25).parts.samples
    LargestLoss(share=0.25)
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        share: float = 0.5,
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Always(), samples=LargestLoss(share), **common)
