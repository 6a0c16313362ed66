"""Hugging Face Accelerate: one call that owns both passes over the micro-batches of a step."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportPrivateUsage=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# Accelerate is typed in part, and keeps what it has prepared in lists with an underscore.

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType
from torch import Tensor, nn

from aesam.inspection import unwrap
from aesam.integrations.whole_step import Calls, LossFunction, refuse, take_step
from aesam.optimizer import SharpnessAware

_UNMEASURABLE = (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA)


def step(
    accelerator: Accelerator,
    optimizer: torch.optim.Optimizer,
    micro_batches: Iterable[Any],
    loss_fn: LossFunction,
    *,
    model: nn.Module | None = None,
    max_norm: float | None = None,
    weights: Iterable[float] | None = None,
) -> Tensor:
    """Take one step over micro-batches: both passes see all of them, with the same dropout masks.

    The gradient is that of the mean loss. Call it in place of ``accumulate``, ``backward``,
    ``clip_grad_norm_``, ``optimizer.step`` and ``zero_grad``; the scheduler stays yours. After an
    overflow under a loss scaler ``accelerator.optimizer_step_was_skipped`` says so, as always.

    Args:
        accelerator: whose ``prepare`` the model has been through.
        optimizer: one of ours, prepared; the one inside it may be given as well.
        micro_batches: any number of batches, from 1; ``[batch]`` without accumulation.
        loss_fn: of a micro-batch, the mean loss over it; called twice on each where a second
            gradient is taken.
        model: as ``prepare`` returned it; None (default) is right as well, but unless the optimizer
            was made with it gradients travel with every micro-batch, not with the last one only.
        max_norm: clip the final direction to this norm, above 0; None (default) does not clip.
        weights: how much each micro-batch counts in the mean, such as its number of rows or tokens,
            over all processes; None (default) lets all count the same.

    Returns:
        The mean loss at ``w`` over this process's micro-batches, detached.

    >>> import aesam
    >>> w = torch.nn.Linear(1, 1, bias=False)
    >>> opt = aesam.SAM(torch.optim.SGD(w.parameters(), lr=0.1), w)
    >>> accelerator = Accelerator(cpu=True)
    >>> w, opt = accelerator.prepare(w, opt)
    >>> loss = step(accelerator, opt, torch.ones(8, 1).chunk(4), lambda x: w(x).square().mean())
    >>> loss.requires_grad, aesam.unwrap(opt).last_step.used_sam
    (False, True)
    """
    opt = unwrap(optimizer)
    _refuse_what_cannot_be_measured(accelerator.distributed_type, accelerator.is_fsdp2)
    if not accelerator.sync_gradients:
        raise RuntimeError(
            "step() takes all micro-batches of a step at once: call it outside of "
            "accelerator.accumulate(...), with a list of them"
        )
    if accelerator.use_distributed:
        _refuse_unprepared(accelerator, opt)
    calls = Calls(
        backward=partial(_backward, accelerator),
        without_sync=partial(_without_sync, accelerator, opt.model if model is None else model),
        update=_prepared(accelerator, optimizer, opt).step,
        scaler=accelerator.scaler,
        processes=accelerator.num_processes,
        add_up=partial(_add_up, accelerator),
    )
    return take_step(opt, micro_batches, loss_fn, calls, max_norm, weights)


def _refuse_what_cannot_be_measured(kind: DistributedType, fsdp2: bool) -> None:
    if kind in _UNMEASURABLE or (kind == DistributedType.FSDP and not fsdp2):
        raise refuse("FSDP of version 1" if kind == DistributedType.FSDP else kind.value)


def _backward(accelerator: Accelerator, loss: Tensor) -> None:
    """Undo that Accelerate divides by a number of steps which it counts itself."""
    accelerator.backward(loss * accelerator.gradient_accumulation_steps)


def _without_sync(accelerator: Accelerator, model: nn.Module | None) -> AbstractContextManager[Any]:
    """Gradients stay at home inside, if the model is one that can keep them there."""
    keeps = "set_requires_gradient_sync" if accelerator.is_fsdp2 else "no_sync"
    return accelerator.no_sync(model) if hasattr(model, keeps) else nullcontext()


def _refuse_unprepared(accelerator: Accelerator, opt: SharpnessAware) -> None:
    trained = {id(p) for group in opt.param_groups for p in group["params"]}
    if not any(id(p) in trained for model in accelerator._models for p in model.parameters()):
        raise RuntimeError(
            "no model that was prepared has the optimizer's parameters, so their gradients would "
            "not be averaged over processes: model, optimizer = accelerator.prepare(model, "
            "optimizer)"
        )


def _prepared(
    accelerator: Accelerator, optimizer: torch.optim.Optimizer, opt: SharpnessAware
) -> torch.optim.Optimizer:
    """Accelerate's wrapper, which tells it of skipped steps; ours itself where there is none."""
    if isinstance(optimizer, AcceleratedOptimizer):
        return optimizer
    for known in accelerator._optimizers:
        if _inside(known) is opt:
            return known
    if accelerator.scaler is not None:
        raise RuntimeError(
            "under a loss scaler the optimizer must be prepared, so that Accelerate unscales what "
            "it applies: optimizer = accelerator.prepare(optimizer)"
        )
    return opt


def _inside(wrapper: Any) -> object:
    while isinstance(wrapper, AcceleratedOptimizer):
        wrapper = wrapper.optimizer
    return wrapper


def _add_up(accelerator: Accelerator, number: float) -> float:
    here = torch.tensor(number, device=accelerator.device, dtype=torch.float32)
    total: Any = accelerator.reduce(here, "sum")
    return total.item()
