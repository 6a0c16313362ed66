"""Lightning Fabric: one call that owns both passes over the micro-batches of a step."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Fabric is typed in part.

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric, is_wrapped
from torch import Tensor, nn

from aesam.inspection import unwrap
from aesam.integrations.whole_step import Calls, LossFunction, refuse, take_step
from aesam.optimizer import SharpnessAware

#: By name: some of these cannot be imported where what they are made for is not installed.
_UNMEASURABLE = ("DeepSpeedStrategy", "FSDPStrategy", "XLAStrategy", "XLAFSDPStrategy")


def step(
    fabric: Fabric,
    optimizer: torch.optim.Optimizer,
    micro_batches: Iterable[Any],
    loss_fn: LossFunction,
    *,
    model: nn.Module | None = None,
    max_norm: float | None = None,
    weights: Iterable[float] | None = None,
) -> Tensor:
    """Take one step over micro-batches: both passes see all of them, with the same dropout masks.

    The gradient is that of the mean loss. Call it in place of ``backward``, ``clip_gradients``,
    ``optimizer.step`` and ``zero_grad``; the scheduler stays yours. An overflow under a loss scaler
    is counted in ``skipped_steps`` of the optimizer.

    Args:
        fabric: whose ``setup`` the model has been through.
        optimizer: one of ours as ``fabric.setup`` returned it; the one inside it may be given too.
        micro_batches: any number of batches, from 1; ``[batch]`` without accumulation.
        loss_fn: of a micro-batch, the mean loss over it; called twice on each where a second
            gradient is taken.
        model: as ``setup`` returned it; None (default) is right as well, but unless the optimizer
            was made with it gradients travel with every micro-batch, not with the last one only.
        max_norm: clip the final direction to this norm, above 0; None (default) does not clip.
        weights: how much each micro-batch counts in the mean, such as its number of rows or tokens,
            over all processes; None (default) lets all count the same.

    Returns:
        The mean loss at ``w`` over this process's micro-batches, detached.

    >>> import aesam
    >>> fabric = Fabric(accelerator="cpu", devices=1)
    >>> w = torch.nn.Linear(1, 1, bias=False)
    >>> opt = aesam.SAM(torch.optim.SGD(w.parameters(), lr=0.1), w)
    >>> w, opt = fabric.setup(w, opt)
    >>> loss = step(fabric, opt, torch.ones(8, 1).chunk(4), lambda x: w(x).square().mean())
    >>> loss.requires_grad, opt.last_step.used_sam
    (False, True)
    """
    opt = unwrap(optimizer)
    _refuse_what_cannot_be_measured(fabric.strategy)
    update = partial(fabric.strategy.optimizer_step, opt)  # pyright: ignore[reportArgumentType]
    calls = Calls(
        backward=fabric.backward,
        without_sync=partial(_without_sync, fabric, model, opt),
        update=update if optimizer is opt else optimizer.step,
        scaler=getattr(fabric.strategy.precision, "scaler", None),
        processes=fabric.world_size,
        add_up=partial(_add_up, fabric),
    )
    return take_step(opt, micro_batches, loss_fn, calls, max_norm, weights)


def _refuse_what_cannot_be_measured(strategy: object) -> None:
    found = [kind.__name__ for kind in type(strategy).mro() if kind.__name__ in _UNMEASURABLE]
    if found:
        raise refuse(found[0])


def _without_sync(
    fabric: Fabric, model: nn.Module | None, opt: SharpnessAware
) -> AbstractContextManager[Any]:
    wrapped: Any = opt.model if model is None else model
    if model is None and not is_wrapped(wrapped):
        return nullcontext()
    return fabric.no_backward_sync(wrapped)


def _add_up(fabric: Fabric, number: float) -> float:
    here = torch.tensor(number, device=fabric.device, dtype=torch.float32)
    total: Any = fabric.all_reduce(here, reduce_op="sum")
    return total.item()
