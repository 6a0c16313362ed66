"""Training forwards whose outputs are compared with those of other weights on the same inputs.

Before a training forward of the model the other weights run, without gradient and without a trace:
buffers, random numbers and weights are as if they had not. The loss's gradient then has that of a
difference between both outputs added to it, in one of two ways. Where the model returns the loss
beside its logits, the difference is added to the loss itself, and whatever is done to that is done
to both. Where it returns logits, its gradient joins what arrives at them; that is right if the loss
is backpropagated as it is, or with the factor that was announced.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

import sys
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aesam._core import messages, model_hooks, tensors, trees
from aesam._core.backwards import Backwards, current_task
from aesam._core.blocks import Block, Blocks
from aesam._core.bystanders import Bystanders, Watch
from aesam._core.guards import Displacement, RandomState, seeds_in

#: Asks an optimizer for the way to the other weights; None where nothing is compared now.
Ask = Callable[[], Displacement | None]

#: What is added to the loss, from the outputs now and those of the other weights.
Difference = Callable[[Tensor, Tensor], Tensor]

#: The gradient arrived at the loss that the model returned, whatever its factor.
_INSIDE = -1.0


class ComparedForwards:
    """Runs a model's other weights before its training forwards, and adds the difference."""

    def __init__(
        self,
        model: nn.Module,
        backwards: Backwards,
        blocks: Blocks,
        watch: Watch,
        ask: Ask,
        difference: Difference,
    ) -> None:
        self._ask, self._difference = weakref.WeakMethod(ask), difference
        self._backwards, self._blocks, self._watch = backwards, blocks, watch
        self._sharded = any(hasattr(p, "to_local") for p in model.parameters())
        self._depth = 0
        self._running = False  # whether the other weights run
        self._other: Tensor | None = None
        self._items: Any = None  # what the model divides a sum of losses by, where it is told
        self._through: dict[int, list[float]] = {}  # by backward: the factor of each forward
        #: What the loss is multiplied by before it is backpropagated, where that is known.
        self.announced = 1.0
        model_hooks.listen(model, self)

    # While the model runs ------------------------------------------------------------------

    def before(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._running or self._depth > 1 or current_task() != -1:
            return  # of a model that calls itself, or a checkpoint's inside a backward
        self._other = None
        if not (model.training and torch.is_grad_enabled()):
            return
        self._backwards.none_is_running()
        self._items = kwargs.get("num_items_in_batch")
        self._other = self._blocks.safely(self._run_other, model, args, kwargs)

    def _run_other(self, model: nn.Module, args: Any, kwargs: Any) -> Tensor | None:
        ask = self._ask()
        displacement = None if ask is None else ask()
        if displacement is None:
            return None
        given = trees.tensors_in((args, kwargs))
        versions = list(map(tensors.version, given))
        block = self._blocks.push(Block("the forward of the averaged weights"))
        block.will(self._is_over)
        devices = {p.device for p in model.parameters()}
        block.will(RandomState(devices, seeds_in(model)).restore)
        bystanders = Bystanders(model, self._watch)
        block.will(bystanders.restore)
        block.is_displaced = True
        block.will(displacement.restore)
        self._running = True
        # Graphs of earlier forwards hold weights and buffers: theirs again to the bit, afterwards.
        every = (*model.parameters(), *model.buffers())
        held = tuple(t for t in every if tensors.are_plain([t]))
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(held):
            displacement.move()
            logits, _ = _logits_and_loss(model(*args, **kwargs))
            self._blocks.close(block)
        bystanders.refuse_lost()
        if versions != list(map(tensors.version, given)):
            raise RuntimeError(messages.INPUT_WRITTEN)
        return logits.clone()

    def _is_over(self) -> None:
        self._running = False

    def after(self, output: Any) -> Any:
        self._depth -= 1
        if self._running or self._depth > 0 or current_task() != -1:
            return None
        other, self._other = self._other, None
        failed = output is None and sys.exc_info()[1] is not None
        if other is None or failed:
            return None
        logits, loss = _logits_and_loss(output)
        if logits.shape != other.shape:
            raise RuntimeError(messages.OTHER_SHAPE.format(shapes=(logits.shape, other.shape)))
        put = self._beside_loss(logits, loss, other) if loss is not None else None
        return self._at_logits(output, logits, other) if put is None else _with(output, loss, put)

    def _beside_loss(self, logits: Tensor, loss: Tensor, other: Tensor) -> Tensor | None:
        """The loss with the difference in it; None where it is not what is backpropagated."""
        if not loss.requires_grad:
            return None
        if self._items is not None and float(self._items) != len(logits):
            raise RuntimeError(
                messages.OTHER_ITEMS.format(rows=len(logits), items=float(self._items))
            )
        whole = loss + self._difference(logits, other).to(loss.dtype)
        whole.register_hook(partial(_arrived, weakref.ref(self), _INSIDE))
        return whole

    def _at_logits(self, output: Any, logits: Tensor, other: Tensor) -> Any:
        """The outputs with logits that add the difference's gradient to what arrives at them."""
        if not logits.requires_grad:
            return None
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self._difference(leaf, other), leaf)
        handed_out = logits.clone()  # what is done to it in place comes after the hook
        handed_out.register_hook(partial(_joined, weakref.ref(self), self.announced, slope))
        return _with(output, logits, handed_out)

    # When gradients arrive -------------------------------------------------------------------

    def arrived(self, factor: float) -> None:
        """A gradient came to a forward that was compared."""
        if torch.is_grad_enabled():
            raise RuntimeError(messages.COMPARED_TWICE_DIFFERENTIATED)
        task = current_task()
        if task not in self._through:
            known = {t: f for t, f in self._through.items() if t in self._backwards.tasks}
            self._through = {**known, task: []}
        self._through[task].append(factor)
        self._backwards.at_root(task, self._sharded)

    def check(self, scale: float) -> None:
        """Refuse gradients in which the difference has another weight than it should.

        ``scale`` is the factor that was on the loss.
        """
        found = [self._through.get(task, []) for task in self._backwards.tasks]
        if not found or not all(found):
            raise RuntimeError(messages.NOT_COMPARED)
        if len(found) > 1 or len(found[0]) > 1:
            raise RuntimeError(messages.COMPARED_SEVERAL.format(found=sum(map(len, found))))
        (factor,) = found[0]
        if factor not in (_INSIDE, scale):
            raise RuntimeError(messages.COMPARED_UNSCALED.format(scale=scale))

    def no_forward_is_running(self) -> None:
        """One that an interrupt ended has no end of its own."""
        self._depth, self._other = 0, None


def _arrived(own: "weakref.ref[ComparedForwards]", factor: float, _: Tensor) -> None:
    compared = own()
    if compared is not None:
        compared.arrived(factor)


def _joined(
    own: "weakref.ref[ComparedForwards]", factor: float, slope: Tensor, gradient: Tensor
) -> Tensor:
    _arrived(own, factor, gradient)
    return gradient + (slope * factor).to(gradient.dtype)


def _logits_and_loss(output: Any) -> tuple[Tensor, Tensor | None]:
    """The rows of logits that a model returned, and the loss if it returned one beside them."""
    logits: Any = output
    loss: Any = None
    if not isinstance(output, Tensor):
        logits, loss = (_named(output, name) for name in ("logits", "loss"))
    rows = isinstance(logits, Tensor) and logits.dim() == 2 and logits.shape[1] > 1
    if not rows or not (loss is None or (isinstance(loss, Tensor) and loss.numel() == 1)):
        shown = tuple(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
        raise RuntimeError(messages.NO_LOGITS.format(found=shown))
    return logits, loss


def _named(output: Any, name: str) -> Any:
    found: Any = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return found


def _with(output: Any, old: Tensor | None, new: Tensor) -> Any:
    return trees.mapped(output, lambda tensor: new if tensor is old else tensor)
