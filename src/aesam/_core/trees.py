"""Tensors inside whatever a module takes and returns: containers, dataclasses, model outputs."""

import copy
from collections.abc import Callable, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from torch import Tensor


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor changed; containers are new, other objects the same.

    Order is that of the containers, so the n-th tensor of two calls is the same one.
    """
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, MutableMapping):
        return _mapping(cast(MutableMapping[Any, Any], tree), change)
    if isinstance(tree, tuple | list):
        return _sequence(cast("tuple[Any, ...] | list[Any]", tree), change)
    if is_dataclass(tree) and not isinstance(tree, type):
        changed = copy.copy(tree)
        for name in (f.name for f in fields(tree) if hasattr(tree, f.name)):
            object.__setattr__(changed, name, mapped(getattr(tree, name), change))
        return changed
    return tree


def _mapping(tree: MutableMapping[Any, Any], change: Callable[[Tensor], Tensor]) -> Any:
    changed = copy.copy(tree)
    for key, value in tree.items():
        found = mapped(value, change)
        if found is not value:
            changed[key] = found
    return changed


def _sequence(tree: "tuple[Any, ...] | list[Any]", change: Callable[[Tensor], Tensor]) -> Any:
    values = [mapped(value, change) for value in tree]
    if all(new is old for new, old in zip(values, tree, strict=True)) and isinstance(tree, tuple):
        return tree
    if hasattr(tree, "_fields"):  # a named tuple takes its values one by one
        return type(tree)(*values)
    return type(tree)(values)


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors, in the order of :func:`mapped`."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(tree, note)
    return found
