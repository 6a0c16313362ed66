"""What a user hands in: checked, told apart, and moved to where the model is."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from aesam._core import tensors

Loss = Callable[[Any, Tensor], Tensor]
Batches = Iterable[Any]  # of pairs (inputs, targets)
Mode = Literal["eval", "train"]
MODES = get_args(Mode)


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that require gradients, each once."""
    found = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not found:
        raise ValueError("model must have parameters that require gradients, got none")
    for name, p in found:
        if not p.is_floating_point() or not tensors.are_plain([p]):
            raise TypeError(
                "model must have real parameters that this process holds whole, got "
                f"{name} of {p.dtype} as {type(p).__name__}"
            )
    return found


def check(model: object, loss: object, batches: object, mode: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not callable(loss):
        raise TypeError(f"loss must be a function of (outputs, targets), got {type(loss).__name__}")
    again = isinstance(batches, Iterable) and not isinstance(batches, Iterator | Tensor)
    if not again:
        raise TypeError(
            "batches must give (inputs, targets) each time it is gone through, like a list or a "
            f"DataLoader, got {batches!r}"
        )
    if mode not in MODES:
        raise ValueError(f"mode must be 'eval' or 'train', got {mode!r}")


def check_scalar(value: object) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"loss must return one number, the mean over the batch's samples, got {shape}"
        )


def check_depends(value: Tensor) -> None:
    if not value.requires_grad:
        raise ValueError(
            "loss must depend on the model's trainable parameters, got one that does not"
        )


def pair(batch: Any) -> tuple[Any, Tensor]:
    is_pair = isinstance(batch, tuple | list) and len(cast(list[Any], batch)) == 2
    if not is_pair:
        raise TypeError(
            "batches must give pairs (inputs, targets), got a "
            f"{type(cast(Any, batch)).__name__}; a single batch is [(inputs, targets)]"
        )
    inputs, targets = cast(tuple[Any, Any], batch)
    if not isinstance(targets, Tensor) or targets.dim() == 0:
        raise TypeError(
            f"targets must be a tensor with one row for each sample, got {type(targets).__name__}"
        )
    return inputs, targets


def moved(value: Any, device: torch.device) -> Any:
    """Tensors on the model's device, also inside lists, tuples and dicts."""
    if hasattr(value, "to"):  # a tensor, or a batch of a library that knows how
        return value.to(device)
    if isinstance(value, list | tuple):
        rows = [moved(v, device) for v in cast(list[Any], value)]
        return rows if isinstance(value, list) else tuple(rows)
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value)
        return {k: moved(v, device) for k, v in items.items()}
    return value


def length(batches: Batches) -> int:
    """How many batches there are; 0 where that is not known."""
    try:
        return len(cast(Any, batches))
    except TypeError:
        return 0
