"""Both passes over the micro-batches of one step: what the helpers for trainers have in common."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aesam.optimizer import SharpnessAware
from aesam.parts import checks

#: A batch as the user has it, and the mean loss over it.
LossFunction = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Calls:
    """What a trainer does in its own way.

    Args:
        backward: of a loss that is to be backpropagated as it is, times the scaler's scale.
        without_sync: a block in which gradients do not travel between processes.
        update: the optimizer's step, through the scaler where there is one.
        scaler: of the losses, or None.
        processes: how many train together.
        add_up: a number, over all processes.
    """

    backward: Callable[[Tensor], None]
    without_sync: Callable[[], AbstractContextManager[Any]]
    update: Callable[[], object]
    scaler: torch.amp.GradScaler | None
    processes: int
    add_up: Callable[[float], float]


def take_step(
    opt: SharpnessAware,
    micro_batches: Iterable[Any],
    loss_fn: LossFunction,
    calls: Calls,
    max_norm: float | None,
    weights: Iterable[float] | None,
) -> Tensor:
    """Decide on the gradient of all micro-batches, take the second one of all, clip and update."""
    if opt.parts.needs_losses:
        raise TypeError(
            f"{type(opt).__name__} selects samples of one batch, so micro-batches are not for it: "
            "give its optimizer a function of per-sample losses, optimizer.step(losses). SubSAM "
            "with replay=True works in a trainer's own loop"
        )
    limit = None if max_norm is None else checks.positive("max_norm", max_norm)
    batches = _as_list(micro_batches)
    factors = _factors(weights, len(batches), calls)
    scaler = calls.scaler if calls.scaler is not None and calls.scaler.is_enabled() else None

    opt.zero_grad()
    with opt.first_pass(), torch.enable_grad():
        loss = _backpropagate(batches, factors, loss_fn, calls)
    scale = 1.0 if scaler is None else scaler.get_scale()
    if opt.needs_second_pass(grad_scale=scale, loss=loss):
        with opt.perturbed(), torch.enable_grad():
            _backpropagate(batches, factors, loss_fn, calls)
    if limit is not None:
        _clip(opt, limit, scaler)
    calls.update()
    opt._ledger.discard()  # pyright: ignore[reportPrivateUsage]  # where an overflow kept it away
    return loss


def _as_list(micro_batches: Any) -> list[Any]:
    """The micro-batches, kept for a second pass over the same ones."""
    if isinstance(micro_batches, Tensor | Mapping | str) or not hasattr(micro_batches, "__iter__"):
        kind: str = type(micro_batches).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError(f"micro_batches must be a list of batches, [batch] for one, got a {kind}")
    batches = list(micro_batches)
    if not batches:
        raise ValueError("micro_batches must have at least one batch, got none")
    return batches


def _factors(weights: Iterable[float] | None, count: int, calls: Calls) -> list[float]:
    """What each loss is multiplied by, so that their sum is the mean.

    Trainers average over processes: with weights, the mean over the rows of all of them has the sum
    of all weights below the line, and their number above it.
    """
    if weights is None:
        return [1.0 / count] * count
    given = [checks.at_least_zero("a weight of a micro-batch", weight) for weight in weights]
    if len(given) != count:
        raise ValueError(
            f"weights must have one number for each micro-batch, got {len(given)} for {count}"
        )
    total = sum(given)
    if calls.processes > 1:
        total = calls.add_up(total)
    if total <= 0.0:
        raise ValueError(f"weights must have a sum above 0, got {given}")
    return [weight * calls.processes / total for weight in given]


def _backpropagate(
    batches: list[Any], factors: list[float], loss_fn: LossFunction, calls: Calls
) -> Tensor:
    """All micro-batches; gradients travel between processes with the last one only."""
    losses: list[Tensor] = []
    for place, (batch, factor) in enumerate(zip(batches, factors, strict=True), start=1):
        with nullcontext() if place == len(batches) else calls.without_sync():
            loss = loss_fn(batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    "loss_fn must return the mean loss over its micro-batch, a tensor with one "
                    f"number, got {found}"
                )
            share = loss * factor
            calls.backward(share)
        losses.append(share.detach().reshape(()))
    return torch.stack(losses).sum()


def _clip(opt: SharpnessAware, limit: float, scaler: torch.amp.GradScaler | None) -> None:
    """Scale the final direction down to ``limit``; the decision has seen the unclipped norm."""
    if scaler is not None:
        scaler.unscale_(opt)
    params = dict.fromkeys(p for group in opt.param_groups for p in group["params"])
    torch.nn.utils.clip_grad_norm_([p for p in params if p.grad is not None], limit)


def refuse(engine: str) -> RuntimeError:
    """An error for what shards or sums gradients in a way that a decision cannot see."""
    return RuntimeError(
        f"{engine} keeps gradients where a step cannot measure them whole before it decides: use "
        "one process, DDP or FSDP2"
    )
