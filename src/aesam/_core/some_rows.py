"""The gradient of some rows of a batch, taken by a model's own forward before it runs on all.

A bare loop shows its batch once, as what the model is given, and the loss once, as what the model
returns. So that is where sub-batch ascent looks: the forward of the whole batch is then the second
pass, and its backward leaves the direction in ``p.grad``.
"""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import PackedSequence

from aesam._core import messages, tensors, trees
from aesam._core.backwards import Backwards
from aesam._core.blocks import Block
from aesam._core.guards import RandomState, seeds_in

#: Factors on the loss under an autocast to float16, where small gradients would be zero: the loop's
#: scaler is not known in a forward. The next one is tried where gradients are infinite.
_SCALES = (2.0**16, 2.0**10, 2.0**4, 1.0)


def called_module(model: nn.Module) -> nn.Module:
    """The module to listen to: DDP's own forward must not run inside of itself."""
    wraps = isinstance(model, DistributedDataParallel)
    return cast(nn.Module, model.module) if wraps else model


def backward(
    model: nn.Module,
    args: Any,
    kwargs: Any,
    rows: slice,
    trained: Sequence[Tensor],
    backwards: Backwards,
    block: Block,
) -> Tensor:
    """Forward and backward of some rows; their gradient is in ``p.grad`` until the block ends.

    After the block gradients and random numbers are as if nothing had been. Gives the loss.
    """
    around = DistributedDataParallel._get_active_ddp_module()
    if not (around.require_backward_grad_sync if around is not None else _reduces(model)):
        raise RuntimeError(messages.SEVERAL_FORWARDS)
    params = list(dict.fromkeys([*trained, *model.parameters()]))
    devices = {p.device for p in params}
    block.will(RandomState(devices, seeds_in(model)).restore)
    block.will(partial(_set_gradients, [(p, p.grad) for p in params]))
    backwards.ignore(block)
    _set_gradients((p, None) for p in params)
    some_args, some_kwargs = _of_rows(args, kwargs, rows)
    try:
        loss = loss_in(model(*some_args, **some_kwargs))
        _differentiate_in_range(loss, trained, around, {"cpu", *(d.type for d in devices)})
    except Exception as error:
        add_note = getattr(error, "add_note", None)  # Python 3.10 has none
        if add_note is not None and str(error) != messages.NO_LOSS_RETURNED:
            add_note(messages.OF_SOME_ROWS)
        raise
    torch.clear_autocast_cache()  # which holds weights that this graph has cast
    return loss.detach()


def _reduces(model: nn.Module) -> bool:
    """Whether FSDP2, if it shards the model, averages gradients now: else it would keep these."""
    sharded: list[Any] = [m for m in model.modules() if hasattr(m, "set_requires_gradient_sync")]
    states = [getattr(m, "_get_fsdp_state", object)() for m in sharded]
    groups = [
        group
        for state in states  # earlier versions of torch have one group each
        for group in getattr(
            state, "_fsdp_param_groups", [getattr(state, "_fsdp_param_group", None)]
        )
    ]
    return all(getattr(group, "reduce_grads", True) for group in groups)


def _differentiate_in_range(
    loss: Tensor,
    trained: Sequence[Tensor],
    around: DistributedDataParallel | None,
    kinds: set[str],
) -> None:
    """The gradient into ``p.grad``, also where float16 is too narrow for it."""
    scales = _SCALES if any(map(_casts_to_float16, kinds)) else (1.0,)
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        for scale in scales:
            _differentiate(loss, scale, trained, around)
            if scale == 1.0 or _unscale(trained, scale):
                return
            _set_gradients((p, None) for p in trained)


def _casts_to_float16(kind: str) -> bool:
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.float16


def _unscale(trained: Sequence[Tensor], scale: float) -> bool:
    """Take a factor from the gradients in ``p.grad``; False where they are infinite or NaN."""
    gradients = [p.grad for p in trained if p.grad is not None]
    with torch.no_grad():
        tensors.scale(gradients, 1.0 / scale)
        return math.isfinite(tensors.norm_on_host(gradients))


def _differentiate(
    loss: Tensor, scale: float, trained: Sequence[Tensor], around: DistributedDataParallel | None
) -> None:
    """The gradient into ``p.grad``; of DDP's processes, which it does not see, their mean."""
    loss, again = loss * scale, scale != 1.0
    if around is None:
        loss.backward(retain_graph=again)
        return
    params = [p for p in trained if p.requires_grad]
    if around.static_graph:  # counts the hooks that backward() runs
        found = torch.autograd.grad(loss, params, allow_unused=True, retain_graph=again)
        _set_gradients(zip(params, found, strict=True))
    else:
        loss.backward(retain_graph=again)
    with torch.no_grad():
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        tensors.average([p.grad for p in params if p.grad is not None], around.process_group)


def loss_in(output: Any) -> Tensor:
    """The loss that a model returned: a number, or what an output calls ``loss``."""
    named = output
    if isinstance(output, Mapping):
        named = cast(Mapping[str, Any], output).get("loss")
    elif not isinstance(output, Tensor):
        named = getattr(output, "loss", None)
    if not (isinstance(named, Tensor) and named.numel() == 1 and named.requires_grad):
        raise RuntimeError(messages.NO_LOSS_RETURNED)
    return named


def _of_rows(args: Any, kwargs: Any, rows: slice) -> tuple[Any, Any]:
    """The same arguments with these rows of every tensor that has the batch's rows.

    Those are as many as most tensors have; where two numbers are as common, nobody knows which.
    """
    if any(isinstance(each, PackedSequence) for each in (*args, *kwargs.values())):
        raise TypeError(messages.NO_ROWS)
    lengths = Counter(len(t) for t in trees.tensors_in((args, kwargs)) if t.dim())
    if not lengths:
        raise TypeError(messages.NO_ROWS)
    (batch, count), *others = lengths.most_common(2)
    if others and others[0][1] == count:
        raise TypeError(messages.WHICH_ROWS.format(one=batch, other=others[0][0]))

    def some(tensor: Tensor) -> Tensor:
        # A copy, as dense as all rows are: models flatten what they are given by view().
        found = tensor[rows].clone() if tensor.dim() and len(tensor) == batch else tensor
        if isinstance(tensor, nn.Parameter) or not tensor.requires_grad:
            return found
        return found.detach().requires_grad_()  # gradients go to the parameters and no further

    return trees.mapped((args, kwargs), some)


def _set_gradients(pairs: Iterable[tuple[Tensor, Tensor | None]]) -> None:
    for p, gradient in pairs:
        p.grad = gradient
