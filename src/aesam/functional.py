"""Functional SAM: the second gradient of the model alone, with the loss's slope as at ``w``.

What the keywords of all methods mean is said at :class:`aesam.SharpnessAware`.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from aesam.methods import NORMALIZE, RHO, Common
from aesam.optimizer import SharpnessAware
from aesam.parts.policies import Always
from aesam.parts.samples import KeptOutputGradients
from aesam.registry import register_method

if TYPE_CHECKING:
    from typing_extensions import Unpack


@register_method(
    "functional-sam",
    label="functional SAM",
    settings=(RHO, NORMALIZE),
    paper="Singh et al. 2025",
    rule="d = J(w+ε)ᵀ ∂L/∂f with ∂L/∂f at w, J that of the model's outputs f",
    cost="2 gradients a step",
)
class FunctionalSAM(SharpnessAware):
    """Functional SAM (Singh et al. 2025): SAM of what the model computes, not of the loss on it.

    ``d = J(w+ε)ᵀ ∂L/∂f`` with ``∂L/∂f`` at ``w``; see
    :class:`aesam.parts.samples.KeptOutputGradients`. The model's forwards are recorded and run
    again: a closure runs once, a bare ``step()`` works in every loop and trainer, and
    ``needs_second_pass()`` returns False, since it has made the direction.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, which returns what the loss is made of (logits), and not
            the loss; not to be left out.
        rho: radius ρ ≥ 0 of the ascent, 0.05 by default; a parameter group may have its own.
        normalize: ``ε = ρ g/‖g‖`` (True, the default), or ``ε = ρ g``.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: accepted as by all methods, and of no effect: forwards are always run again; False
            by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: True for an ascent along each process's own gradient under DDP; False by
            default.
        compensate: multiply ρ by one over the share of steps with a second gradient so far, at most
            by this factor, 1 or more; None, the default, for not.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> opt = FunctionalSAM(torch.optim.SGD(model.parameters(), lr=0.1), model, rho=0.5)
    >>> model(torch.ones(4, 2)).square().mean().backward()
    >>> opt.step()
    >>> opt.last_step.used_sam
    True
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        **common: "Unpack[Common]",
    ) -> None:
        super().__init__(base, model, policy=Always(), samples=KeptOutputGradients(), **common)
