"""Transformers' Trainer and all that are made of it, TRL's among them: both passes of a step.

The Trainer calls ``optimizer.step()`` bare, after clipping. Before that it calls its
``training_step`` for each micro-batch: there both gradients can be taken.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# A mixin over a class that is not imported here: what `super()` and `self` have is the Trainer's.

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from aesam.inspection import metrics, unwrap
from aesam.integrations._micro_batches import KeptMicroBatches, MicroBatch
from aesam.integrations._once import counted_once
from aesam.optimizer import SharpnessAware
from aesam.registry import create

_Trainer: Any = object

#: A method's name, its name with settings, or what makes it around a base optimizer and a model.
Method: TypeAlias = (
    str | Mapping[str, Any] | Callable[[torch.optim.Optimizer, nn.Module], SharpnessAware]
)

NO_METHOD = """\
{trainer} has SharpnessAwareMixin, but its optimizer {optimizer} is not sharpness-aware. Give
    {trainer}(..., sharpness_aware="ae-sam")    # around the optimizer that the Trainer makes
or  {trainer}(..., optimizers=(AESAM(AdamW(model.parameters(), lr=...), model), None))"""

STEPS_IN_BACKWARD = """\
optim={name!r} changes the weights during backward(), before anything can be decided: use another
optimizer, such as optim="adamw_torch"."""


class SharpnessAwareMixin(_Trainer):  # pyright: ignore[reportUntypedBaseClass]
    """Both passes of a step in Transformers' ``Trainer``, TRL's ``SFTTrainer`` and their like.

    It comes first::

        class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):
            pass

        SharpnessAwareTrainer(model, args, train_dataset=data, sharpness_aware="ae-sam").train()

    The second pass sees every micro-batch of an accumulation, with the inputs and the dropout masks
    of the first. The decision is on the unclipped, unscaled gradient; ``max_grad_norm`` then clips
    the final direction. Losses, tokens and metrics are counted once; for what you count in
    ``compute_loss`` in an object of your own there is :attr:`in_second_pass`. Logs have
    what :func:`aesam.metrics` tells beside the loss: ``percent_sam``, ``squared_norm``, …

    Args:
        args: those of the Trainer. Its ``optimizers`` may hold a sharpness-aware optimizer.
        sharpness_aware: the method to put around the optimizer that ``args.optim``,
            ``optimizer_cls_and_kwargs`` or ``optimizers`` give: a name of
            :func:`aesam.list_methods`; a dict with the name as ``"method"`` and settings; or a
            function of the optimizer and the model. None, the default, takes the class attribute of
            this name, which is None where ``optimizers`` holds a sharpness-aware optimizer.
            ``total_steps`` is the Trainer's number of steps where it is left out.
        kwargs: those of the Trainer.

    >>> SharpnessAwareMixin.sharpness_aware is None
    True
    """

    sharpness_aware: Method | None = None
    optimizer: Any  # the Trainer's: ours, Accelerate's wrapper around it, or None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        before = cls.__mro__[: cls.__mro__.index(SharpnessAwareMixin)]
        for other in before:
            if hasattr(other, "create_scheduler") and not issubclass(other, SharpnessAwareMixin):
                raise TypeError(
                    f"SharpnessAwareMixin must come first: "
                    f"class {cls.__name__}(SharpnessAwareMixin, {other.__name__})"
                )

    def __init__(self, *args: Any, sharpness_aware: Method | None = None, **kwargs: Any) -> None:
        if sharpness_aware is not None:
            self.sharpness_aware = sharpness_aware
        self._kept = KeptMicroBatches(type(self).__name__)
        self._wrapped: SharpnessAware | None = None  # the one that was made here
        self._told: SharpnessAware | None = None  # the one that was told the number of steps
        super().__init__(*args, **kwargs)

    @property
    def in_second_pass(self) -> bool:
        """Whether ``compute_loss`` runs for the second gradient, where nothing is to be counted."""
        return self._kept.second is not None

    # The optimizer -----------------------------------------------------------------------

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own, made sharpness-aware."""
        self._refuse_other_engines()
        made = super().create_optimizer(*args, **kwargs)
        found = _ours_in(made)
        if found is None:
            model = [*args, *kwargs.values(), None][0]
            found = self._around(made, self.model if model is None else model)
            self.optimizer = self._wrapped = found
        elif self.sharpness_aware is not None and found is not self._wrapped:
            raise ValueError(
                f"the optimizer is a {type(found).__name__} already, and sharpness_aware="
                f"{self.sharpness_aware!r} was given too: give one of them"
            )
        if found.parts.needs_losses and not found.needs_no_pass:
            raise ValueError(
                f"{type(found).__name__} selects samples by their losses, which a Trainer does not "
                "tell: use another method, such as AESAM, or SubSAM with replay=True"
            )
        if found.model is None:
            found.model = self.model  # whose buffers a second pass must not change
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own; here it is known how many steps there will be."""
        found = _ours_in(self.optimizer)
        if found is not None and (found.needs_total_steps or self._told is found):
            if found.last_step is None:  # again where auto_find_batch_size starts anew
                found.set_total_steps(num_training_steps)
            self._told = found
        return super().create_scheduler(num_training_steps, *args, **kwargs)

    def _around(self, base: torch.optim.Optimizer, model: nn.Module) -> SharpnessAware:
        given = self.sharpness_aware
        if given is None:
            raise ValueError(
                NO_METHOD.format(trainer=type(self).__name__, optimizer=type(base).__name__)
            )
        if isinstance(given, str):
            return create(given, model, optimizer=base)
        if isinstance(given, Mapping) and "method" in given:
            settings = {name: value for name, value in given.items() if name != "method"}
            return create(given["method"], model, optimizer=base, **settings)
        made = given(base, model) if callable(given) else None
        if not isinstance(made, SharpnessAware):
            raise TypeError(
                "sharpness_aware must be the name of a method, a dict with it as 'method', or a "
                f"function (base, model) that returns a sharpness-aware optimizer, got {given!r}"
            )
        return made

    def _refuse_other_engines(self) -> None:
        """Those that leave no gradients to decide on, or no inputs for a second pass."""
        name = str(getattr(self.args.optim, "value", self.args.optim))
        if "lomo" in name or "layerwise" in name:
            raise ValueError(STEPS_IN_BACKWARD.format(name=name))
        if self.is_deepspeed_enabled:
            raise RuntimeError(
                "DeepSpeed keeps the gradients to itself, so there is nothing to decide on: use "
                "DDP or FSDP with SharpnessAwareMixin"
            )
        if self.get_cp_size() > 1:
            raise RuntimeError(
                "context parallelism cuts the inputs in place, so a second pass would see other "
                "ones: use SharpnessAwareMixin without it"
            )

    # The passes --------------------------------------------------------------------------

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None, *args: Any
    ) -> Tensor:
        """The Trainer's own; after the last micro-batch all of them again, if so decided."""
        opt, passes = unwrap(self.optimizer), self._kept
        if opt.parts.always_pass_twice:  # in the model's own forward
            return super().training_step(model, inputs, num_items_in_batch, *args)
        if not _has_gradients(opt):
            passes.begin()  # what an interrupted step left behind
        steps = self.current_gradient_accumulation_steps
        micro = MicroBatch(copy.copy(inputs), num_items_in_batch, steps)
        kept = passes.in_first(micro, model) if opt.parts.replays else nullcontext()
        with opt.first_pass(), kept:
            loss = super().training_step(model, inputs, num_items_in_batch, *args)
        passes.loss = passes.loss + loss
        if self.accelerator.sync_gradients:
            micro_batches, loss_at_w = passes.micro_batches, passes.loss
            passes.begin()
            if opt.needs_second_pass(grad_scale=self._scale(), loss=loss_at_w):
                with opt.perturbed(), counted_once(self):
                    self._second_pass(model, micro_batches, args)
        return loss

    def _scale(self) -> float:
        scaler = self.accelerator.scaler
        return 1.0 if scaler is None else scaler.get_scale()

    def _second_pass(
        self, model: nn.Module, micro_batches: list[MicroBatch], args: tuple[Any, ...]
    ) -> None:
        state = self.accelerator.gradient_state
        try:
            for micro in micro_batches:
                last = micro is micro_batches[-1]
                state._set_sync_gradients(last)
                self.current_gradient_accumulation_steps = micro.accumulation
                without_sync = nullcontext() if last else self._without_sync(model)
                with without_sync, self._kept.in_second(micro, model):
                    super().training_step(model, micro.given, micro.num_items, *args)
            self._kept.end_of_second()
        finally:
            state._set_sync_gradients(True)

    def _without_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Gradients travel with the last micro-batch only, unless they are asked to with each."""
        each = self.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)
        return nullcontext() if each else self.accelerator.no_sync(model)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Once for both passes."""
        prepare = partial(super()._prepare_inputs, inputs)
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return self._kept.prepared(prepare, (p for group in groups for p in group["params"]))

    # Logs --------------------------------------------------------------------------------

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """The Trainer's own, with what the last step saw beside the training loss."""
        if self.in_second_pass:
            return
        found = _ours_in(self.optimizer)
        if found is not None and found.last_step is not None and {"loss", "train_loss"} & {*logs}:
            logs.update(metrics(found))
        super().log(logs, *args, **kwargs)


def _ours_in(optimizer: object) -> SharpnessAware | None:
    try:
        return unwrap(optimizer)
    except TypeError:
        return None


def _has_gradients(opt: SharpnessAware) -> bool:
    return any(p.grad is not None for group in opt.param_groups for p in group["params"])
