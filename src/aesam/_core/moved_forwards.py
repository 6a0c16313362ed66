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
from aesam._core.some_rows import loss_in
from aesam.parts.part import Excursion

#: Asks an optimizer where a pass is made, from its forward's module and arguments: None inside one
#: of its blocks, which moves by itself; a displacement that moves nothing where there is no
#: direction yet.
Ask = Callable[[nn.Module, Any, Any], Excursion | None]

#: Is shown where the weights were at the end of a backward, when they are about to come back.
Look = Callable[[Excursion], None]


class MovedForwards:
    """Moves a model's weights for its training forwards, and brings them back.

    A training forward is one of a model in training mode with gradients enabled. All those of a
    step go to the same place; with ``look`` each goes to a place of its own, a step has one, and
    its backward must begin at the loss that the model returns.
    """

    def __init__(
        self, model: nn.Module, backwards: Backwards, ask: Ask, look: Look | None = None
    ) -> None:
        self._ask = weakref.WeakMethod(ask)
        self._look = None if look is None else weakref.WeakMethod(look)
        self._backwards = backwards
        self._sharded = any(hasattr(p, "to_local") for p in model.parameters())
        self._away: Excursion | None = None
        self._journeys = 0  # how often the weights have come back
        self._depth = 0
        self._is_there = False  # an interrupt may cut a journey short, there or back
        self._is_aside = False
        model_hooks.listen(model, self)
        handle = model.register_state_dict_pre_hook(_AtHome(self))
        weakref.finalize(self, handle.remove)
        backwards.on_end = weakref.WeakMethod(self._backward_ended)

    @property
    def is_away(self) -> bool:
        """Whether a training forward waits for its backward."""
        return self._away is not None

    def before(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._depth > 1 or current_task() != -1:
            return  # of a model that calls itself, or a checkpoint's inside a backward
        if not (model.training and torch.is_grad_enabled()):
            self._step_aside()
        elif not self._is_there or self._look is not None:
            if getattr(model, "_is_replica", False):
                raise RuntimeError(messages.REPLICATED)
            self.bring_back()
            self._backwards.none_is_running()
            _with_gradients_as_now(partial(self._depart, model, args, kwargs))

    def _depart(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        ask = self._ask()
        excursion = None if ask is None else ask(model, args, kwargs)
        if excursion is not None:
            self._away = excursion  # noted before it is done
            excursion.move()
            self._is_there = True

    def after(self, output: Any) -> Any:
        self._depth -= 1
        if self._depth > 0 or current_task() != -1 or self._away is None:
            return None
        if self._is_aside:
            self._is_aside = False
            self._away.move()
            self._is_there = True
            return None
        if sys.exc_info()[1] is not None and output is None:
            self.bring_back()  # the forward failed
            return None
        arrived = partial(_arrived, weakref.ref(self), self._journeys)
        if self._look is not None:
            loss = loss_in(output)
            loss.register_hook(arrived)
            return trees.mapped(output, lambda t: t if t is loss else _refusing(t))
        for tensor in trees.tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(arrived)
        return None

    def _step_aside(self) -> None:
        """For a forward at ``w``: for good where the weights are away, else until it ends."""
        if self._away is None or self._away.is_in_weights:
            self.bring_back()
        else:
            self._is_aside, self._is_there = True, False
            self._away.restore()

    def arrived(self, journey: int) -> None:
        """A gradient came to the output of a forward that was moved for."""
        if journey != self._journeys:
            raise RuntimeError(messages.BROUGHT_BACK)
        task = current_task()
        self._backwards.is_of_moved_weights(task)
        self._backwards.at_root(task, self._sharded)

    def _backward_ended(self) -> None:
        look = None if self._look is None else self._look()
        if look is not None and self._away is not None:
            look(self._away)
        self.bring_back()

    def bring_back(self) -> None:
        """To ``w``, to the bit; harmless if they are there, or cut short and done again."""
        if self._away is not None:
            self._is_there = False
            _with_gradients_as_now(self._away.restore)
            self._away, self._is_aside = None, False
            self._journeys += 1

    def no_forward_is_running(self) -> None:
        """One that an interrupt ended has no end of its own."""
        self._depth = 0

    def check(self) -> None:
        """Refuse gradients that were not taken where they should have been."""
        backwards = self._backwards
        if not (backwards.count and backwards.are_of_moved_weights):
            raise RuntimeError(messages.NOT_MOVED_FOR)
        if self._look is not None and backwards.count > 1:
            raise RuntimeError(messages.SEVERAL_FORWARDS)


def _with_gradients_as_now(work: Callable[[], None]) -> None:
    """An interrupt may leave a ``torch.no_grad()`` before its end, and gradients off for good."""
    enabled = torch.is_grad_enabled()
    try:
        work()
    except BaseException:
        torch.set_grad_enabled(enabled)
        raise


def _arrived(own: "weakref.ref[MovedForwards]", journey: int, _: Tensor) -> None:
    moved = own()
    if moved is not None:
        moved.arrived(journey)


def _refusing(output: Tensor) -> Tensor:
    """What the caller is given in the place of an output that no backward may begin at.

    The loss is made of the output itself, and its gradient passes there.
    """
    if not output.requires_grad:
        return output
    handed_out = output.view_as(output)
    handed_out.register_hook(_refuse)
    return handed_out


def _refuse(_: Tensor) -> None:
    raise RuntimeError(messages.LOSS_OUTSIDE)


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
