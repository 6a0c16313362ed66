"""MESA: outputs that are held near those of averaged weights, instead of a second gradient.

What the keywords of all methods mean is said at :class:`aesam.SharpnessAware`.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from aesam.methods import WithoutRadius
from aesam.optimizer import SharpnessAware
from aesam.parts import checks
from aesam.parts.policies import Never
from aesam.parts.trajectory import TowardAverage
from aesam.registry import Setting, register_method

if TYPE_CHECKING:
    from typing_extensions import Unpack

WEIGHT = Setting(
    "weight",
    0.8,
    "weight of the difference to the average's outputs",
    symbol="λ",
    allowed="≥ 0",
    least=0.0,
    grid=(0.1, 0.3, 0.8, 2.0),
)
TEMPERATURE = Setting(
    "temperature",
    5.0,
    "what logits are divided by before they are compared",
    symbol="τ",
    allowed="> 0",
    least=0.0,
    is_open=True,
)
DECAY = Setting(
    "decay",
    0.9995,
    "what is kept of the averaged weights",
    symbol="β",
    allowed="between 0 and 1",
    least=0.0,
    most=1.0,
    is_open=True,
    grid=(0.9, 0.99, 0.9995),
)
START = Setting("start", 0, "steps before the difference is added", allowed="≥ 0", least=0)


@register_method(
    "mesa",
    label="MESA",
    settings=(WEIGHT, DECAY, TEMPERATURE, START),
    paper="Du et al. 2022",
    rule="d = ∇(L + λ τ² KL(p_e ‖ p_w)), e ← β e + (1−β) w the averaged weights",
    cost="1 gradient and a forward a step",
)
class MESA(SharpnessAware):
    """MESA (Du et al. 2022): outputs are held near those of averaged weights.

    ``d = ∇(L + λ τ² KL(p_e ‖ p_w))`` with ``p_e`` the outputs of averaged weights on the same
    inputs; see :class:`aesam.parts.trajectory.TowardAverage`. The model's own training forward runs
    both, so a bare ``step()`` works; the loss that is returned or logged is L alone where it is
    made outside the model. Steps in which the term's weight is not known for sure are refused:
    several backward passes, or a loss scaler in a bare loop around a model that returns logits.

    Args:
        base: the optimizer to wrap.
        model: the model that is trained, which returns a row of logits for each sample, alone or by
            the name ``logits`` beside its loss; not to be left out.
        weight: λ ≥ 0 of the term, 0.8 by default.
        decay: β of the averaged weights, strictly between 0 and 1; 0.9995 by default. For some
            hundred steps choose less: 0.9 to 0.99.
        temperature: τ above 0, 5 by default.
        start: steps before the term is added, a whole number from 0, the default; its authors wait
            for five epochs.
        rho: accepted as by all methods, and of no effect; 0 by default.
        normalize: accepted as by all methods, and of no effect; True by default.
        nonfinite: ``"skip"`` (the default) or ``"raise"`` on infinite or NaN gradients.
        replay: accepted as by all methods, and of no effect; False by default.
        max_norm: clip the final direction to this norm, above 0; None, the default, for not.
        local_ascent: accepted as by all methods, and of no effect; False by default.
        compensate: accepted as by all methods, and of no effect; None by default.

    >>> model = nn.Linear(3, 2)
    >>> opt = MESA(torch.optim.SGD(model.parameters(), lr=0.1), model, decay=0.9)
    >>> x, y = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])
    >>> for _ in range(2):
    ...     opt.zero_grad()
    ...     nn.functional.cross_entropy(model(x), y).backward()
    ...     opt.step()
    >>> opt.last_step.index
    1
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        weight: float = 0.8,
        decay: float = 0.9995,
        temperature: float = 5.0,
        start: int = 0,
        rho: float = 0.0,
        **common: "Unpack[WithoutRadius]",
    ) -> None:
        ascent = TowardAverage(
            weight, temperature, decay, wait=checks.whole("start", start, least=0)
        )
        super().__init__(base, model, policy=Never(), ascent=ascent, rho=rho, **common)
