"""Weights that are elsewhere from a training forward to the end of its backward.

Methods of one gradient a step that take it away from ``w`` need no closure: the model's own
forward moves the weights. Everything else sees them at ``w``: evaluation, ``state_dict``, the base
optimizer, and whatever a loop does between a backward and the step.
"""

# pyright: reportUnknownMemberType=false

import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aesam._core import messages, model_hooks, trees
from aesam._core.backwards import Backwards, current_task
from aesam.parts.part import Excursion

#: Asks an optimizer where its next pass is made: None inside one of its blocks, which moves by
#: itself; a displacement that moves nothing where there is no direction yet.
Ask = Callable[[], Excursion | None]


class MovedForwards:
    """Moves a model's weights for its training forwards, and brings them back.

    A training forward is one of a model in training mode with gradients enabled.
    """

    def __init__(self, model: nn.Module, backwards: Backwards, ask: Ask) -> None:
        self._ask = weakref.WeakMethod(ask)
        self._backwards = backwards
        self._sharded = any(hasattr(p, "to_local") for p in model.parameters())
        self._away: Excursion | None = None
        self._journeys = 0  # how often the weights have come back
        self._depth = 0
        self._through: set[int] = set()  # backwards of forwards that were moved for
        model_hooks.listen(model, self)
        handle = model.register_state_dict_pre_hook(_AtHome(self))
        weakref.finalize(self, handle.remove)
        backwards.on_end = weakref.WeakMethod(self.bring_back)

    @property
    def is_away(self) -> bool:
        """Whether a training forward waits for its backward."""
        return self._away is not None

    def before(self, model: nn.Module, _args: Any, _kwargs: Any) -> None:
        self._depth += 1
        if self._depth > 1 or current_task() != -1:
            return  # of a model that calls itself, or a checkpoint's inside a backward
        if not (model.training and torch.is_grad_enabled()):
            self.bring_back()
        elif self._away is None:
            self._backwards.none_is_running()
            ask = self._ask()
            excursion = None if ask is None else ask()
            if excursion is not None:
                self._away = excursion  # noted before it is done
                excursion.move()

    def after(self, output: Any) -> None:
        self._depth -= 1
        if self._depth > 0 or current_task() != -1 or self._away is None:
            return
        if sys.exc_info()[1] is not None and output is None:
            self.bring_back()  # the forward failed
            return
        arrived = partial(_arrived, weakref.ref(self), self._journeys)
        for tensor in trees.tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(arrived)

    def arrived(self, journey: int) -> None:
        """A gradient came to the output of a forward that was moved for."""
        if journey != self._journeys:
            raise RuntimeError(messages.BROUGHT_BACK)
        task = current_task()
        if task not in self._through:
            self._through = {*self._through.intersection(self._backwards.tasks), task}
        self._backwards.at_root(task, self._sharded)

    def bring_back(self) -> None:
        """To ``w``, to the bit; harmless if they are there, or cut short and done again."""
        if self._away is not None:
            self._away.restore()
            self._away = None
            self._journeys += 1

    def no_forward_is_running(self) -> None:
        """One that an interrupt ended has no end of its own."""
        self._depth = 0

    def check(self) -> None:
        """Refuse gradients that were not taken where they should have been."""
        tasks = set(self._backwards.tasks)
        if not tasks or tasks - self._through:
            raise RuntimeError(messages.NOT_MOVED_FOR)


def _arrived(own: "weakref.ref[MovedForwards]", journey: int, _: Tensor) -> None:
    moved = own()
    if moved is not None:
        moved.arrived(journey)


class _AtHome:
    """What the model holds to be saved at ``w``; a copy or a pickle of it does nothing."""

    def __init__(self, moved: MovedForwards | None = None) -> None:
        self._moved: Callable[[], MovedForwards | None] = (
            (lambda: None) if moved is None else weakref.ref(moved)
        )

    def __reduce__(self) -> Any:
        return type(self), ()

    def __call__(self, *_: object) -> None:
        moved = self._moved()
        if moved is not None:
            moved.bring_back()
