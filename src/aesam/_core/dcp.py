"""What ``torch.distributed.checkpoint`` (DCP) does to an optimizer beside its state dict.

It makes a fresh optimizer's state by a step of its own, and asks ``state`` and ``param_groups``
for the names to look up in a flattened state dict.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from aesam._core.layout import KEY, names


def make_state(base: torch.optim.Optimizer, caller: FrameType) -> None:
    """Let the base make its state; where it refuses, ``lr`` and gradients are as before.

    DCP gives learning rates back only after a step that worked.
    """
    try:
        base.step()
    except BaseException:
        groups = [group for group in base.param_groups if "lr" in group]
        for group, rate in zip(groups, caller.f_locals.get("lrs", ()), strict=False):
            group["lr"] = rate
        base.zero_grad()
        raise


class NamedState(Mapping[Any, Any]):
    """The base's ``state``, with the names of our memories in that of each parameter."""

    def __init__(self, state: Mapping[Any, Any], parts: Sequence[str]) -> None:
        self._state = state
        self._ours = dict.fromkeys(name for part in parts for name in names(part))

    def __getitem__(self, param: Tensor) -> dict[str, Any]:
        return {**self._state.get(param, {}), **self._ours}

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def named_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups, with the name of our text in each."""
    return [{**group, KEY: None} for group in groups]
