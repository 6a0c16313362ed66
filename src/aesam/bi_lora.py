"""Bi-LoRA: sharpness-aware fine-tuning of LoRA adapters, at one gradient a step.

What the keywords of all methods mean is said at :class:`aesam.SharpnessAware`.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from aesam._core import construction
from aesam.methods import RHO, WithoutLength
from aesam.optimizer import SharpnessAware
from aesam.parts.low_rank import AscentAdapters
from aesam.parts.policies import Never
from aesam.registry import Setting, register_method

if TYPE_CHECKING:
    from typing_extensions import Unpack

LR_RATIO = Setting(
    "lr_ratio",
    1.0,
    "learning rate of the ascent over that of the descent",
    symbol="η₂/η₁",
    allowed="≥ 0",
    least=0.0,
)


@register_method(
    "bi-lora",
    label="Bi-LoRA",
    settings=(RHO, LR_RATIO),
    paper="Liu et al. 2025",
    rule="W₀ + s B₁A₁ + B₂A₂: descend on A₁, B₁ and ascend on A₂, B₂; ‖B₂A₂‖ ≤ ρ",
    cost="1 gradient a step",
    only_for="PEFT models with LoRA adapters",
)
class BiLoRA(SharpnessAware):
    """Bi-LoRA (Liu et al. 2025): descend on LoRA adapters and ascend on others beside them.

    Of ``W₀ + s B₁A₁ + B₂A₂`` the base descends on A₁ and B₁, which are the model's, and the method
    ascends on A₂ and B₂, which are its own: ``A₂ ← A₂ + η₂ ∂L/∂A₂``, the same for B₂, then both
    shrink to ``‖B₂A₂‖ ≤ ρ`` over all layers; see :class:`aesam.parts.low_rank.AscentAdapters` for
    all of it. One backward brings all gradients, and a bare ``step()`` works in every loop and
    trainer. A₂ and B₂ act in training forwards only: evaluation, ``state_dict``,
    ``save_pretrained`` and ``merge_and_unload`` of the model never see them, and they are saved
    with the optimizer.

    Args:
        base: the optimizer to wrap, over the adapters; what else it trains descends as always.
        model: a PEFT model with LoRA adapters on linear layers; not to be left out.
        rho: radius ρ ≥ 0 of the ball that B₂A₂ stay in, 0.05 by default; the same in all groups
            of adapters.
        lr_ratio: η₂ over the learning rate of the adapter's group, 0 or more; 1, the default, as
            its authors have it. The ascent is plain whatever the base: with an Adam, whose rates
            are small, see in :meth:`ascent_norm` whether it reaches ρ.
        seed: of A₂ at the start, a whole number from 0, the default.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: accepted as by all methods, and of no effect; False by default.
        max_norm: clip what the base steps along to this norm, above 0; None, the default, for not.
            The ascent is not clipped.
        local_ascent: refused where True: processes share A₂ and B₂. False by default.
        compensate: accepted as by all methods, and of no effect; None by default.

    >>> model = nn.Linear(2, 1)
    >>> BiLoRA(torch.optim.SGD(model.parameters(), lr=0.1), model)
    Traceback (most recent call last):
    ValueError: Bi-LoRA needs a model with LoRA adapters of PEFT that are trained, got Linear: ...
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        rho: float = 0.05,
        lr_ratio: float = 1.0,
        seed: int = 0,
        **common: "Unpack[WithoutLength]",
    ) -> None:
        unknown = {name: value for name, value in common.items() if name == "normalize"}
        construction.refuse_unknown(type(self), unknown)
        ascent = AscentAdapters(model, lr_ratio, seed)
        super().__init__(base, model, policy=Never(), ascent=ascent, rho=rho, **common)

    def ascent_norm(self) -> float:
        """``‖B₂A₂‖`` over all layers now: how much of ρ the ascent has used so far."""
        ascent, memory = self.parts.ascent, self._ledger.committed.memory("ascent")
        return ascent.norm_in(memory) if isinstance(ascent, AscentAdapters) else 0.0
