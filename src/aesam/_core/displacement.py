"""Weights moved away from where they belong, and brought back to the bit."""

from typing import Any

import torch
from torch import Tensor, nn

from aesam._core import tensors
from aesam.parts.part import Direction


class Displacement:
    """Keeps a copy of the weights that a direction moves: subtracting ε again would drift."""

    def __init__(
        self, direction: Direction, normalize: bool, model: nn.Module | None, room: tensors.Room
    ) -> None:
        self._direction: Direction | None = direction
        self._params = direction.params
        self._normalize = normalize
        self._room = room
        self._sharded = _sharded_modules(model, direction.params)
        self._saved = room.take(self._params, self._params)
        with torch.no_grad():
            tensors.assign(self._saved, self._params)

    def move(self) -> None:
        direction, self._direction = self._direction, None  # lets go of the gradient
        if direction is None:
            return
        factors = direction.factors(self._normalize)
        if any(factors):
            with torch.no_grad():
                tensors.add_each(direction.params, direction.vectors, factors)
            self._forget_copies()

    def restore(self) -> None:
        """Bring the weights back; harmless if done already or cut short and done again."""
        with torch.no_grad():
            tensors.assign(self._params, self._saved)
        self._forget_copies()
        params, self._params, saved, self._saved = self._params, [], self._saved, []
        self._room.give(params, saved)

    def _forget_copies(self) -> None:
        """Copies of the weights from before the move must not be used: cast or gathered ones.

        An autocast region around both passes keeps the weights that it has cast; FSDP2 may keep
        those that it has gathered.
        """
        torch.clear_autocast_cache()
        for module in self._sharded:
            module.reshard()


def _sharded_modules(model: nn.Module | None, params: list[Tensor]) -> list[Any]:
    if model is None or tensors.are_plain(params):
        return []
    return [m for m in model.modules() if hasattr(m, "reshard")]
