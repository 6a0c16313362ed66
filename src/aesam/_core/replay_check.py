"""Does the recording make the gradient that is in ``p.grad``? Run again at ``w`` and compared."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from aesam._core import messages, step, tensors
from aesam._core.blocks import Block
from aesam._core.bystanders import Bystanders
from aesam._core.ledger import Ledger
from aesam._core.recording import Recording

#: Of the gradients' own size, what rounding may make: of nondeterministic kernels at most.
_ROUNDING = {torch.float64: 1e-8, torch.float32: 2e-3}
_COARSE = 5e-2  # of 16-bit numbers
_FLOOR = 1e-2  # of the whole gradient's share of it: a tensor of rounding errors alone is no news


def refuse_other(
    recording: Recording,
    ledger: Ledger,
    model: nn.Module | None,
    params: Sequence[Tensor],
    scale: float,
) -> None:
    """Now and then, refuse a recording that does not make the gradient that was decided on.

    ``scale`` is the factor on the recorded gradients.
    """
    pending = ledger.pending
    if pending is None or model is None:
        return
    pending.backwards = None  # a forward is replayed once, however many backwards it had
    if not recording.wants_check() or not step.may_compare(pending):
        return
    block = ledger.blocks.push(Block("opt.step()"))
    bystanders = Bystanders(model, ledger.watch)
    block.will(bystanders.restore)
    ledger.local.silence(block)
    again = partial(recording.run, block, with_buffers=True)
    differing = _names_of_others(params, again, scale, recording.is_coarse, model, block)
    if differing is not None:
        raise recording.refusal(messages.BYPASSED.format(names=differing))
    ledger.blocks.close(block)
    bystanders.refuse_lost()
    if pending.ahead is not None:
        now = step.versions_of(pending.ahead.gradient)
        pending.ahead = replace(pending.ahead, versions=now)


@torch.no_grad()
def _names_of_others(
    params: Sequence[Tensor],
    run: Callable[[], None],
    scale: float,
    coarse: bool,
    model: nn.Module,
    block: Block,
) -> str | None:
    """Run again at ``w`` and name the parameters whose gradient is another; None if all agree.

    The gradients in ``p.grad`` are the same after the block, to the bit and in the same tensors,
    though DDP may have used their memory.
    """
    held = [p.grad for p in params]
    kept = [None if g is None else g.clone() for g in held]
    block.will(partial(_put_back, params, held, kept))
    for p in params:
        p.grad = None
    run()
    differing = _differing(kept, [p.grad for p in params], scale, coarse)
    if not differing:
        return None
    names = {id(p): name for name, p in model.named_parameters()}
    named = [names.get(id(params[i]), "one outside the model") for i in differing]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")


@torch.no_grad()
def _put_back(
    params: Sequence[Tensor], held: Sequence[Tensor | None], kept: Sequence[Tensor | None]
) -> None:
    for p, g, copy in zip(params, held, kept, strict=True):
        p.grad = g
        if g is not None and copy is not None:
            tensors.assign([g], [copy])


def _differing(
    first: Sequence[Tensor | None], again: Sequence[Tensor | None], scale: float, coarse: bool
) -> list[int]:
    """Which gradients differ beyond rounding; one that is missing is one of zeros."""
    there = [i for i, pair in enumerate(zip(first, again, strict=True)) if _any_of(*pair)]
    lefts = [_or_zeros(first[i], again[i]) for i in there]
    rights = [_or_zeros(again[i], first[i]) for i in there]
    errors = [left - right / scale for left, right in zip(lefts, rights, strict=True)]
    sizes, gaps = tensors.norms(lefts), tensors.norms(errors)
    whole = sum(size * size for size in sizes) ** 0.5
    found: list[int] = []
    for i, left, size, gap in zip(there, lefts, sizes, gaps, strict=True):
        rounding = _COARSE if coarse else _ROUNDING.get(left.dtype, _COARSE)
        if not gap <= rounding * (size + _FLOOR * whole):
            found.append(i)
    return found


def _any_of(left: Tensor | None, right: Tensor | None) -> bool:
    return left is not None or right is not None


def _or_zeros(one: Tensor | None, like: Tensor | None) -> Tensor:
    if one is not None:
        return one
    return torch.zeros_like(like) if like is not None else torch.zeros(())
