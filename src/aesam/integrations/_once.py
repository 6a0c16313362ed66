"""What a trainer counts in its attributes, and in objects there: once, for both passes."""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# Attributes of trainers can be anything.

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_DICTS = (dict, defaultdict, OrderedDict, Counter)
_LARGEST = 65_536  # entries and numbers: nobody counts in more
_LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "peft", "aesam")


@contextmanager
def counted_once(trainer: object) -> Generator[None]:
    """Put a trainer's attributes back after the block, and what those hold that count.

    Those are lists, dicts and small tensors, torchmetrics, and objects of other packages than the
    trainer's own (a running mean, say) with what is in their attributes.
    """
    holders = [trainer, *(c for value in vars(trainer).values() for c in _counters_in(value))]
    ways_back = [_way_back(vars(holder)) for holder in holders]
    try:
        yield
    finally:
        for way_back in ways_back:
            way_back()


def _counters_in(value: Any) -> Iterable[Any]:
    """Objects with attributes that something may be counted in."""
    if type(value) in _DICTS and len(value) <= _LARGEST:
        return [found for held in value.values() for found in _counters_in(held)]
    if isinstance(value, nn.Module):
        kind = getattr(sys.modules.get("torchmetrics"), "Metric", None)
        return [module for module in value.modules() if kind and isinstance(module, kind)]
    library = type(value).__module__.partition(".")[0] in (*_LIBRARIES, "builtins")
    is_data = isinstance(value, torch.utils.data.Dataset)
    counts = hasattr(value, "__dict__") and not (library or is_data or callable(value))
    return [value] if counts else []


def _way_back(value: Any) -> Callable[[], Any]:
    """A function that gives this very object with what it holds now."""
    if type(value) in _DICTS:
        inside = {key: _way_back(held) for key, held in value.items()}
        return lambda: _refilled(value, {key: back() for key, back in inside.items()})
    if type(value) in (list, set, deque) and len(value) <= _LARGEST:
        content = value.copy()
        return lambda: _refilled(value, content)
    if isinstance(value, Tensor) and not value.requires_grad and value.numel() <= _LARGEST:
        numbers = value.clone()
        return lambda: _rewritten(value, numbers)
    return lambda: value


def _refilled(container: Any, content: Any) -> Any:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.extend(content) if isinstance(container, deque) else container.update(content)
    return container


@torch.no_grad()
def _rewritten(tensor: Tensor, numbers: Tensor) -> Tensor:
    return tensor.copy_(numbers)
