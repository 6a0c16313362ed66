"""Outputs that are held near those of earlier weights: no second gradient.

A loss that falls suddenly falls into a sharp place; so a difference to what the model said some
time ago is added to it (Du et al. 2022, "Sharpness-aware training for free").
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from aesam._core import pieces, tensors
from aesam._core.tensors import Workspace
from aesam.parts import checks
from aesam.parts.ascents import Ascent
from aesam.parts.part import Direction, Draws, Memory, Tensors, trained


def trajectory_loss(now: Tensor, past: Tensor, temperature: float = 5.0) -> Tensor:
    """``τ² KL(p_past ‖ p_now)``, the mean over rows, with ``p = softmax(logits / τ)``.

    Args:
        now: logits of the present weights, a row for each sample.
        past: logits of earlier weights for the same samples; no gradient goes to them.
        temperature: ``τ`` above 0; 5 by default, as its authors'.

    >>> same = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    >>> trajectory_loss(same, same).item()
    0.0
    >>> round(trajectory_loss(same, same.flip(1), temperature=1.0).item(), 3)
    1.589
    """
    kind = torch.promote_types(now.dtype, torch.float32)
    here = log_softmax(now.to(kind) / temperature, dim=1)
    there = log_softmax(past.detach().to(kind) / temperature, dim=1)
    divergence = kl_div(here, there, reduction="batchmean", log_target=True)
    return divergence * temperature * temperature  # a square may leave the range of numbers


@dataclass(frozen=True)
class TowardAverage(Ascent):
    """MESA's (Du et al. 2022): ``λ τ² KL(p_avg ‖ p_now)`` is added to the loss.

    ``p_avg`` are the outputs, for the same inputs, of averaged weights ``e_t = β e_{t−1} + (1−β)
    w_t`` with ``e_0 = w_0``. They run as the model does, in training mode with its dropout masks
    and the batch's own statistics, and leave no trace in buffers or random numbers. (Its authors'
    average is in evaluation mode, with averaged buffers.)

    It goes with policies that never fire. The term's weight is exact or the step is refused: one
    forward and one backward a step, the loss backpropagated as it is; a loss scaler is known to
    ``step(closure, scaler=scaler)``, and does not matter where the model returns the loss beside
    its logits.

    Args:
        weight: ``λ`` of the term, 0 or more; 0.8 by default, and its authors also use 0.3.
        temperature: ``τ`` above 0; 5 by default.
        decay: ``β``, strictly between 0 and 1; 0.9995 by default, an average over some 2,000 steps.
        wait: steps before the term is added, a whole number from 0, the default; its authors wait
            for five epochs. The average is of all steps.

    >>> toward = TowardAverage(weight=1.0, temperature=1.0)
    >>> now, average = torch.zeros(1, 2), torch.tensor([[0.0, 50.0]])
    >>> round(toward.difference(now, average).item(), 4)  # log 2
    0.6931
    """

    weight: float = 0.8
    temperature: float = 5.0
    decay: float = 0.9995
    wait: int = 0
    has_second_gradient = False
    remembers = ("steps",)

    def __post_init__(self) -> None:
        self._keep(
            weight=checks.at_least_zero("weight", self.weight),
            temperature=checks.positive("temperature", self.temperature),
            decay=checks.decay("decay", self.decay),
            wait=checks.whole("wait", self.wait, least=0),
        )

    def check_model(self, model: nn.Module | None, base: torch.optim.Optimizer) -> None:
        kinds = {p.dtype for group in base.param_groups for p in group["params"]}
        if kinds & tensors.HALF:
            raise ValueError(
                f"an average with decay={self.decay} needs more than the 16 bits of the weights: "
                "keep them in float32, and use autocast for speed"
            )

    def check_memory(self, memory: Memory) -> None:
        checks.at_least_zero("steps", memory.number("steps"))

    def compares_now(self, memory: Memory) -> bool:
        return bool(memory.tensors) and memory.number("steps") >= self.wait

    def other_weights(self, base: torch.optim.Optimizer, memory: Memory) -> Direction | None:
        params = [p for p in trained(base.param_groups) if p in memory.tensors]

        def from_here(vectors: Tensors) -> None:
            tensors.assign(vectors, [memory.tensors[p] for p in params])
            tensors.add(vectors, params, -1.0)

        return Direction(params, [], [self.decay] * len(params), length=1.0, fill=from_here)

    def difference(self, now: Tensor, other: Tensor) -> Tensor:
        return self.weight * trajectory_loss(now, other, self.temperature)

    def before_base_step(
        self,
        base: torch.optim.Optimizer,
        memory: Memory,
        generator: Draws,
        workspace: Workspace,
    ) -> tuple[None, Memory]:
        owners = list(trained(base.param_groups))
        averages = workspace.take(owners, owners)
        last = [memory.tensors.get(p, p) for p in owners]
        pieces.blend(averages, last, owners, self.decay, 1.0 - self.decay)
        after = {"steps": memory.number("steps") + 1.0}
        return None, Memory(after, dict(zip(owners, averages, strict=True)))
