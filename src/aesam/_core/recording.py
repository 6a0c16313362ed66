"""A model's forwards as they happened, to be run again at other weights.

A bare ``step()`` knows neither the loss nor the batch. So the forwards of the model are recorded
(inputs, random state, autocast), and so are the gradients that arrive at their outputs: run again
at ``w + ε``, with the recorded gradients sent back, they give the second gradient. Where an output
is the loss this is SAM's; where the loss is made outside it is functional SAM's, ``J(w+ε)ᵀ ∂L/∂f``
with ``∂L/∂f`` at ``w``.
"""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportPrivateImportUsage=false

import contextlib
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from aesam._core import messages, model_hooks, tensors, trees
from aesam._core.backwards import Backwards, current_task
from aesam._core.blocks import Block
from aesam._core.guards import Autocast, Buffers, RandomState, seeds_in

#: Of the second passes by replay, the first and then one in so many is checked against the first.
REPLAYS_PER_CHECK = 1000


class Forward:
    """One call of the model: what it was given, and what came back to its outputs.

    The graph holds it until a gradient arrives, so that it goes with a graph nobody uses.
    """

    def __init__(self, recording: "Recording", args: Any, kwargs: Any, through: nn.Module) -> None:
        self.recording = weakref.ref(recording)
        self.generation = recording.generation
        self.args, self.kwargs = trees.mapped((args, kwargs), lambda t: t)
        self.versions = [tensors.version(t) for t in trees.tensors_in((args, kwargs))]
        self.random = RandomState(recording.devices, seeds_in(through))
        self.autocast = Autocast({"cpu", *(d.type for d in recording.devices)})
        self.through = through
        self.is_whole = True  # whether that wraps the model itself, not a module around it
        self.synchronised = bool(getattr(through, "require_backward_grad_sync", True))
        self.modes = [m.training for m in through.modules()]
        trained = [p for p in through.parameters() if p.requires_grad and not is_lazy(p)]
        self.weights = [(p, tensors.version(p)) for p in trained]
        self.buffers = Buffers(through.modules()) if recording.check_is_due else None
        self.was_differentiated = False  # its backward, by a backward with create_graph
        self.aliases: list[weakref.ref[Tensor] | None] = []
        self.written: list[int | None] = []  # each view's version when it was handed out
        self.gradients: dict[int, dict[int, Tensor]] = {}  # by backward, then by output

    def alias(self, output: Tensor) -> Tensor:
        """What the caller is given in the output's place: gradients of the caller's doing only."""
        index = len(self.aliases)
        if not output.requires_grad:
            self.aliases.append(None)
            self.written.append(None)
            return output
        # Transformers' Trainer scales the loss in place: a hook on a copy still gets the gradient
        # of before that, one on a view would be cut off.
        is_loss = output.numel() == 1
        copied = is_loss or output.layout is not torch.strided
        handed_out = output.clone() if copied else output.view_as(output)
        handed_out.register_hook(partial(self._arrived, index))
        self.aliases.append(weakref.ref(handed_out))
        self.written.append(None if copied else tensors.version(handed_out))
        return handed_out

    def _arrived(self, index: int, gradient: Tensor) -> None:
        recording = self.recording()
        if recording is not None:
            recording.arrived(self, index, gradient)

    def arrived_in(self, tasks: Iterable[int]) -> dict[int, Tensor]:
        """The gradient at each output, summed over these backwards."""
        total: dict[int, Tensor] = {}
        for task in tasks:
            for index, gradient in self.gradients.get(task, {}).items():
                total[index] = total[index] + gradient if index in total else gradient
        return total

    @property
    def was_written_to(self) -> bool:
        """Whether an output was changed in place, which cuts the gradient's way to us."""
        alive = [(a() if a else None, v) for a, v in zip(self.aliases, self.written, strict=True)]
        return any(a is not None and v is not None and tensors.version(a) != v for a, v in alive)


#: The forwards of one backward, each with what arrived at its outputs.
Group = list[tuple[Forward, dict[int, Tensor]]]


class Recording:
    """The forwards of a model whose gradients are in ``p.grad`` now.

    Without ``keep`` only the backward passes through its output are told to ``backwards``. With
    ``outside`` the loss must be made outside of the model.
    """

    def __init__(
        self, model: nn.Module, backwards: Backwards, keep: bool, outside: bool = False
    ) -> None:
        self.backwards = backwards
        self._keep = keep
        self._outside = outside
        self._more_than_one = False  # whether an output has ever had more than one number
        self.generation = 0
        self.devices: set[torch.device] = set()
        self.forwards: list[Forward] = []
        self._plan: list[Group] = []
        self._of_others: list[Tensor] = []
        self.loss_inside: bool | None = None  # not known before the first backward
        self.fired = 0  # second passes so far
        self._checked: set[object] = set()  # the shapes of steps that were compared with p.grad
        self._sharded = any(hasattr(p, "to_local") for p in model.parameters())
        self._lazy = [p for p in model.parameters() if is_lazy(p)]
        self._depth = 0
        self._opened: Forward | None = None
        self._captured: list[Tensor] | None = None
        self._replaying = False
        model_hooks.listen(model, self)
        backwards.on_end = weakref.WeakMethod(self._forget_unused)

    # While the model runs ------------------------------------------------------------------

    def before(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += 1
        unused = self._replaying or not self._keep or not torch.is_grad_enabled()
        if unused or self._depth > 1 or current_task() != -1:
            return  # a forward inside a backward is a checkpoint's, which replays by itself
        self.backwards.none_is_running()
        self.devices = {p.device for p in model.parameters()}
        self._opened = Forward(self, args, kwargs, through := _wrapper_of(model))
        self._opened.is_whole = model in (through, getattr(through, "module", model))

    def after(self, output: Any) -> Any:
        self._depth -= 1
        if self._lazy:  # made by now
            self.backwards.follow(self._lazy)
            self._lazy = []
        if self._depth > 0:
            return None  # of a model that calls itself the outermost call is recorded
        if self._replaying:
            if current_task() == -1:
                self._captured = trees.tensors_in(output)
            return None
        if not self._keep:
            self._only_count(output)
            return None
        forward, self._opened = self._opened, None
        if forward is None or current_task() != -1:
            return None
        return trees.mapped(output, forward.alias)

    def _only_count(self, output: Any) -> None:
        own = weakref.ref(self.backwards)

        def passed(_: Tensor) -> None:
            backwards = own()
            if backwards is not None:
                backwards.at_root(current_task(), sharded=True)

        for tensor in trees.tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(passed)

    def arrived(self, forward: Forward, index: int, gradient: Tensor) -> None:
        task = current_task()
        self.backwards.at_root(task, self._sharded)
        if self._replaying:
            return
        forward.was_differentiated |= torch.is_grad_enabled()
        if not forward.gradients:
            self.forwards.append(forward)
        forward.gradients.setdefault(task, {})[index] = gradient.detach()

    @property
    def is_coarse(self) -> bool:
        """Whether any of it was computed in 16 bits, where parameters need not be."""
        return any(forward.autocast.is_enabled for forward in self.forwards)

    def __repr__(self) -> str:
        if self.loss_inside is None:
            return "True"
        inside = "SAM: the model returns the loss, which is at most scaled"
        return f"True ({inside if self.loss_inside else 'functional SAM: the loss is outside'})"

    # When to look whether the recording makes the gradient ------------------------------------

    @property
    def check_is_due(self) -> bool:
        """Whether the next second pass is one of those that are always checked."""
        return self.fired % REPLAYS_PER_CHECK == 0

    def wants_check(self) -> bool:
        """Whether this second pass is checked: by its number, or since something is new in it.

        New are other numbers of forwards and backwards, other outputs or parameters with gradients
        than in the steps that were checked, and weights that somebody has written to.
        """
        planned = [(f, tuple(arrived)) for group in self._plan for f, arrived in group]
        moved = any(tensors.version(p) != v for f, _ in planned for p, v in f.weights)
        with_gradient = [p.grad is not None for f, _ in planned[:1] for p, _ in f.weights]
        shape = (tuple(map(len, self._plan)), tuple(o for _, o in planned), tuple(with_gradient))
        due = self.check_is_due or moved or shape not in self._checked
        self._checked.add(shape)
        self.fired += 1
        return due

    def _forget_unused(self) -> None:
        """Forwards whose backward reached no parameter, an attack's, are no part of a step."""
        if self._sharded or self._replaying:
            return
        tasks = set(self.backwards.tasks)
        for forward in self.forwards:
            for task in forward.gradients.keys() - tasks:
                del forward.gradients[task]
        self.forwards = [forward for forward in self.forwards if forward.gradients]

    # Between steps ---------------------------------------------------------------------------

    def drop_finished(self) -> None:
        """The gradients are cleared: forwards whose backward has run are over."""
        self._depth, self._opened = 0, None  # an interrupted forward never ends
        for forward in self.forwards:
            forward.gradients.clear()
        self.forwards.clear()
        self._plan = []

    def drop_all(self) -> None:
        """The weights moved: a backward of an earlier forward is of other weights."""
        self.drop_finished()
        self.generation += 1

    # Running again ---------------------------------------------------------------------------

    def prepare(self, trained: Iterable[Tensor]) -> None:
        """Refuse what is known to be wrong, and say what is to be run again."""
        tasks = set(self.backwards.tasks)
        seen = {task for forward in self.forwards for task in forward.gradients}
        if not tasks or tasks - seen:
            raise self.refusal(messages.NOT_RECORDED)
        params = list(trained)
        if self.backwards.lost_any(p for p in params if p.grad is not None):
            raise self.refusal(messages.LOST_GRADIENTS)
        own = {id(p) for p in params}
        reached = [p for f in self.forwards for p in f.through.parameters() if p.requires_grad]
        self._of_others = [p for p in dict.fromkeys(reached) if id(p) not in own]
        for forward in self.forwards:
            stale = forward.generation != self.generation
            wrong = messages.STALE_FORWARD if stale else _what_is_wrong(forward, own)
            if wrong is not None:
                raise self.refusal(wrong)
        self._plan = self._by_backward()
        if self._outside and self._returns_loss():
            raise RuntimeError(messages.LOSS_INSIDE)
        if self._plan and not any(forward.synchronised for forward, _ in self._plan[-1]):
            raise RuntimeError(messages.UNSYNCHRONISED)

    def refusal(self, text: str) -> RuntimeError:
        """An error with this text, in words for who asked for the recording."""
        return RuntimeError(messages.of_functional_sam(text) if self._outside else text)

    def _returns_loss(self) -> bool:
        """Whether all that gradients arrived at is a loss; an output of one row is not.

        A number without dimension is one. A vector of one is, unless there were longer ones.
        """
        arrived = [g for group in self._plan for _, found in group for g in found.values()]
        self._more_than_one |= any(g.numel() > 1 for g in arrived)
        least = 0 if self._more_than_one else 1
        return bool(arrived) and all(g.numel() == 1 and g.dim() <= least for g in arrived)

    def run(self, block: Block, with_buffers: bool = False) -> None:
        """Forward and backward again, at the weights as they are now, within the block.

        Gradients of parameters that others train are as before when it ends. ``with_buffers`` puts
        the buffers of before each forward in place, where they were kept.
        """
        block.will(self._over)
        for undo in (
            RandomState(self.devices, [s for f in self.forwards for s in f.random.seeds]).restore,
            Autocast({"cpu", *(d.type for d in self.devices)}).restore,
            partial(_set_gradients, [(p, p.grad) for p in self._of_others]),
        ):
            block.will(undo)
        self._replaying = True
        _set_gradients([(p, None) for p in self._of_others])
        for group in self._plan:
            with contextlib.ExitStack() as stack:
                if not any(forward.synchronised for forward, _ in group):
                    stack.enter_context(group[0][0].through.no_sync())  # pyright: ignore
                outputs: list[Tensor] = []
                gradients: list[Tensor] = []
                for forward, arrived in group:
                    if with_buffers and forward.buffers is not None:
                        forward.buffers.restore()
                    found = self._again(forward)
                    changed = _changed_output(found, arrived)
                    if changed is not None:
                        raise self.refusal(changed)
                    outputs += [found[i] for i in arrived]
                    gradients += list(arrived.values())
                torch.autograd.backward(outputs, gradients)

    def _over(self) -> None:
        self._replaying = False
        self._captured = None

    def _by_backward(self) -> list[Group]:
        """The forwards of each backward together, as they were, with their outputs' gradients."""
        tasks = self.backwards.tasks
        groups: dict[int, Group] = {}
        for forward in self.forwards:
            reached = [task for task in tasks if task in forward.gradients]
            if reached:
                groups.setdefault(reached[-1], []).append((forward, forward.arrived_in(reached)))
        scalars = [
            g.numel() == 1 for group in groups.values() for _, a in group for g in a.values()
        ]
        self.loss_inside = bool(scalars) and all(scalars)
        return [groups[task] for task in tasks if task in groups]

    def _again(self, forward: Forward) -> list[Tensor]:
        forward.random.restore()
        args, kwargs = trees.mapped((forward.args, forward.kwargs), _as_input)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for context in forward.autocast.contexts():
                stack.enter_context(context)
            try:
                forward.through(*args, **kwargs)
            except TypeError as error:
                if forward.is_whole:
                    raise
                raise self.refusal(messages.INSIDE_DDP) from error
        found, self._captured = self._captured, None
        if found is None:
            raise self.refusal(messages.NOT_RECORDED)
        return found


def _wrapper_of(model: nn.Module) -> nn.Module:
    """The module to call: DDP's, which is running the model right now, or the model itself."""
    active = DistributedDataParallel._get_active_ddp_module()
    if active is None or active is model:
        return model
    if active.static_graph:
        raise RuntimeError(
            "replay=True with DDP's static_graph needs DDP's module: pass that as model"
        )
    return active


def _what_is_wrong(forward: Forward, trained: set[int]) -> str | None:
    """Why a forward cannot be run again, None if it can."""
    found = trees.tensors_in((forward.args, forward.kwargs))
    if [tensors.version(t) for t in found] != forward.versions:
        return messages.CHANGED_INPUT
    if forward.was_written_to:
        return messages.CHANGED_OUTPUT
    if forward.was_differentiated:
        return messages.DOUBLE_BACKWARD
    if forward.modes != [m.training for m in forward.through.modules()]:
        return messages.CHANGED_MODE
    if any(_reaches(t, trained) for t in found):
        return messages.CHAINED_FORWARDS
    return None


def _reaches(tensor: Tensor, params: set[int]) -> bool:
    """Whether a tensor was made of any of these parameters."""
    waiting: list[Any] = [tensor.grad_fn]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in params:
            return True
        waiting += [following for following, _ in node.next_functions]
    return False


def _set_gradients(pairs: Iterable[tuple[Tensor, Tensor | None]]) -> None:
    for p, gradient in pairs:
        p.grad = gradient


def _as_input(tensor: Tensor) -> Tensor:
    """An input for the second time: gradients go to the parameters and no further."""
    if isinstance(tensor, nn.Parameter) or not tensor.requires_grad:
        return tensor
    return tensor.detach().requires_grad_()


def _changed_output(found: list[Tensor], arrived: dict[int, Tensor]) -> str | None:
    """Why gradients cannot be sent back to these outputs, None if they can."""
    for index, gradient in arrived.items():
        if index >= len(found) or found[index].shape != gradient.shape:
            now = tuple(found[index].shape) if index < len(found) else "missing"
            return (
                f"output {index} of the model has shape {tuple(gradient.shape)} at w and is {now} "
                "at w + ε: replay=True needs outputs whose shape does not depend on the weights. "
                "Use step(closure)."
            )
    return None
