"""Lightning: both passes over all micro-batches, decided before unscaling and clipping.

Works with ``lightning`` and with ``pytorch_lightning``. The trainer's automatic optimization calls
``optimizer.step(closure)`` once, with the last micro-batch only, and clips inside the closure; the
callback keeps the micro-batches and runs them again as soon as the first gradient is whole.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# Either package may be the user's, so that no types of theirs can be named.

import copy
import importlib
import inspect
import math
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from aesam._core import trees
from aesam._core.guards import RandomState
from aesam._core.unnoticed import PACKAGES, unnoticed
from aesam.inspection import metrics
from aesam.optimizer import SharpnessAware
from aesam.parts import checks


def _callback_classes() -> tuple[Any, ...]:
    """``Callback`` of every Lightning that is installed: trainers ask for their own."""
    installed = [name for name in PACKAGES if find_spec(name.partition(".")[0]) is not None]
    if not installed:
        raise ModuleNotFoundError(
            "aesam.integrations.lightning needs Lightning: pip install 'aesam[lightning]'"
        )
    return tuple(importlib.import_module(name).Callback for name in installed)


class SharpnessAwareCallback(*_callback_classes()):  # pyright: ignore[reportUntypedBaseClass]
    """Makes a sharpness-aware optimizer at home in Lightning's automatic optimization.

    Give it to the trainer, and return the optimizer from ``configure_optimizers`` as any other.
    Accumulation, clipping, loss scaling and DDP are then what they are in a plain loop; what pass 2
    does is neither logged nor counted by metrics, and no hook is called for it. ``total_steps``,
    where it was left out, is filled in with the number of steps that the trainer will take, and
    schedule-free bases are switched to their other weights for validation and at the end.

    In manual optimization it logs, and leaves the passes to ``training_step``.

    Args:
        log: log what :func:`aesam.metrics` tells of every step (``aesam/percent_sam``,
            ``aesam/squared_norm``, ``aesam/threshold``, …); True by default.

    >>> import lightning
    >>> trainer = lightning.Trainer(
    ...     callbacks=[SharpnessAwareCallback()], accumulate_grad_batches=4, gradient_clip_val=1.0,
    ...     accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
    ... )
    """

    def __init__(self, *, log: bool = True) -> None:
        super().__init__()
        self.log_steps = checks.flag("log", log)
        self._passes: _Passes | None = None
        self._logged: dict[int, int] = {}

    # Before training ---------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Go first: what others do to the gradients in their hooks is done to the direction."""
        others = [callback for callback in trainer.callbacks if callback is not self]
        if any(isinstance(callback, SharpnessAwareCallback) for callback in others):
            raise ValueError("the trainer has two SharpnessAwareCallbacks: give it one")
        trainer.callbacks = [self, *others]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse what cannot be right; fill in ``total_steps`` before a checkpoint is loaded."""
        found = _optimizers(trainer)
        if pl_module.automatic_optimization:
            if not found[0].needs_no_pass:
                _refuse_what_cannot_be_run_again(trainer, pl_module, found[0])
            _fill_total_steps(trainer, found[0])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        for opt in _optimizers(trainer):
            opt.train()
        if pl_module.automatic_optimization:
            (opt,) = _optimizers(trainer)
            _fill_total_steps(trainer, opt)  # again: looking for a learning rate makes new ones
            self._passes = None if opt.needs_no_pass else _Passes(trainer, pl_module, opt)
        self._logged = {id(opt): _index(opt) for opt in _optimizers(trainer)}

    # In training -------------------------------------------------------------------------

    def on_before_zero_grad(self, *_: Any) -> None:
        if self._passes is not None:
            self._passes.forget()

    def on_after_backward(self, *_: Any) -> None:
        if self._passes is not None:
            self._passes.after_backward()

    def on_before_optimizer_step(self, *_: Any) -> None:
        if self._passes is not None:
            self._passes.before_step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self.log_steps and not trainer.barebones:
            self._log(trainer, pl_module)

    def _log(self, trainer: Any, pl_module: Any) -> None:
        found = _optimizers(trainer)
        for place, opt in enumerate(found):
            if _index(opt) == self._logged.get(id(opt)):
                continue
            self._logged[id(opt)] = _index(opt)
            prefix = "aesam/" if len(found) == 1 else f"aesam/{place}/"
            shown = metrics(opt, prefix=prefix)
            pl_module.log_dict(shown, on_step=True, on_epoch=False, batch_size=1)

    # Bases with two sets of weights ------------------------------------------------------

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Schedule-free bases are evaluated at other weights than they are trained at."""
        if trainer.state.fn == "fit":
            for opt in _optimizers(trainer):
                opt.eval()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if trainer.state.fn == "fit":
            for opt in _optimizers(trainer):
                opt.train()

    # After training ----------------------------------------------------------------------

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._stop()
        for opt in _optimizers(trainer):
            opt.eval()

    def on_exception(self, *_: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        passes, self._passes = self._passes, None
        if passes is not None:
            passes.stop()


def _optimizers(trainer: Any) -> list[SharpnessAware]:
    """Those of the trainer that are ours; without one the callback would be for nothing."""
    inside = [getattr(opt, "_optimizer", opt) for opt in trainer.optimizers]
    ours = [opt for opt in inside if isinstance(opt, SharpnessAware)]
    if not ours:
        found = ", ".join(type(opt).__name__ for opt in inside) or "none"
        raise TypeError(
            "SharpnessAwareCallback needs a sharpness-aware optimizer, configure_optimizers gave "
            f"{found}: return aesam.AESAM(base, model) from it"
        )
    return ours


def _index(opt: SharpnessAware) -> int:
    return -1 if opt.last_step is None else opt.last_step.index


def _refuse_what_cannot_be_run_again(trainer: Any, pl_module: Any, opt: SharpnessAware) -> None:
    if trainer.strategy.handles_gradient_accumulation:
        raise RuntimeError(
            f"{type(trainer.strategy).__name__} accumulates and steps by itself, so that no second "
            "pass can come between: use strategy='ddp'"
        )
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in trainer.model.modules()):
        raise RuntimeError(
            "FSDPStrategy shards parameters where norms over all processes cannot be taken: use "
            "strategy='ddp', or ModelParallelStrategy with fully_shard (FSDP2)"
        )
    if "dataloader_iter" in inspect.signature(pl_module.training_step).parameters:
        raise RuntimeError(
            "training_step(self, dataloader_iter) takes its batches from an iterator, which cannot "
            "be run again: use training_step(self, batch, batch_idx)"
        )
    if opt.parts.move_before_pass:
        raise RuntimeError(
            f"{type(opt).__name__} moves the weights before the first pass and takes a second one, "
            "which the callback does not: leave it out, with one batch for each step"
        )
    if opt.parts.needs_losses:
        raise RuntimeError(
            f"{type(opt).__name__} selects samples and needs their losses, of which training_step "
            "returns the mean: use manual optimization with optimizer.step(losses); SubSAM takes "
            "replay=True and a model that returns the loss"
        )


def _fill_total_steps(trainer: Any, opt: SharpnessAware) -> None:
    if not opt.needs_total_steps:
        return
    steps = _steps_of(trainer)
    if not 0 < steps < math.inf:
        raise ValueError(
            "total_steps was left out, and the trainer does not know how many steps it will take: "
            f"give {type(opt).__name__}(..., total_steps=...), or max_steps= to the trainer"
        )
    opt.set_total_steps(int(steps))


def _steps_of(trainer: Any) -> float:
    """The steps of the whole training, with an accumulation that changes on the way too."""
    estimated = trainer.estimated_stepping_batches
    schedules = [c for c in trainer.callbacks if hasattr(c, "get_accumulate_grad_batches")]
    if not schedules or not math.isfinite(trainer.num_training_batches) or trainer.max_epochs < 0:
        return estimated
    per_epoch = map(schedules[0].get_accumulate_grad_batches, range(trainer.max_epochs))
    steps = sum(math.ceil(trainer.num_training_batches / together) for together in per_epoch)
    return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)


class _MicroBatch:
    """What ``training_step`` was given, by reference, and the random state it began with."""

    def __init__(self, arguments: tuple[Any, ...], opt: SharpnessAware) -> None:
        self.arguments = tuple(map(_copy_of_containers, arguments))
        held = [vars(a) if hasattr(a, "__dict__") else a for a in self.arguments]
        tracked = [t for t in trees.tensors_in(held) if not t.is_inference()]
        self._versions = [(t, t._version) for t in tracked]  # pyright: ignore[reportPrivateUsage]
        devices = {p.device for group in opt.param_groups for p in group["params"]}
        self._random = RandomState(devices) if opt.parts.replays else None

    def rewind(self) -> None:
        """Draw what was drawn for it; refuse it if its tensors have been written to since."""
        if any(t._version != version for t, version in self._versions):  # pyright: ignore[reportPrivateUsage]
            raise RuntimeError(
                "a batch was written to in place since training_step was given it (by itself, or "
                "by a loader that uses its memory again), so that the second pass would see "
                "another one: change a copy (x = x + noise for x += noise)"
            )
        if self._random is not None:
            self._random.restore()


def _copy_of_containers(argument: Any) -> Any:
    """The same tensors: what is popped from a batch, or set in it, is not so in pass 2."""
    copied = trees.mapped(argument, lambda tensor: tensor)
    return copy.copy(argument) if copied is argument and hasattr(argument, "__dict__") else copied


class _Passes:
    """Both passes of automatic optimization, from the first ``training_step`` to the last.

    The strategy's ``training_step`` is the one place that sees a micro-batch as the module does,
    after all hooks, with the random state that the forward begins with.
    """

    def __init__(self, trainer: Any, pl_module: Any, opt: SharpnessAware) -> None:
        self._trainer, self._module, self._opt = trainer, pl_module, opt
        self._strategy = trainer.strategy
        self._training_step = trainer.strategy.training_step
        self._kept: list[_MicroBatch] = []
        self._current: tuple[_MicroBatch, Tensor] | None = None
        self._loss: Tensor | None = None
        self._left: list[tuple[int, int]] = []
        trainer.strategy.training_step = self._first_pass

    def stop(self) -> None:
        self.forget()
        self._current = None
        vars(self._strategy).pop("training_step", None)

    def forget(self) -> None:
        """The gradients are cleared: what was accumulated is not part of this step."""
        self._kept, self._loss, self._left = [], None, []

    # Pass 1 ------------------------------------------------------------------------------

    def _first_pass(self, *arguments: Any) -> Any:
        self._current = None
        if self._left and self._gradients() != self._left:
            self.forget()
            raise RuntimeError(_EDITED_BETWEEN)
        with self._opt.first_pass():
            pass  # a step that a scaler did not take is discarded, the random state noted
        micro_batch = _MicroBatch(arguments, self._opt)
        output = self._training_step(*arguments)
        loss = self._loss_of(output)
        if loss is not None:  # None is for "skip this one"
            self._current = (micro_batch, loss.detach())
        return output

    def _loss_of(self, output: Any) -> Tensor | None:
        """As Lightning takes it: a part of the mean over the micro-batches of a step."""
        loss = output.get("loss") if isinstance(output, Mapping) else output
        return loss / self._trainer.accumulate_grad_batches if isinstance(loss, Tensor) else None

    def after_backward(self) -> None:
        """The gradient of one more micro-batch is there; of the last one: decide."""
        if self._current is not None:
            micro_batch, loss = self._current
            self._kept.append(micro_batch)
            self._loss = loss if self._loss is None else self._loss + loss
            self._current = None
        if self._trainer.fit_loop._should_accumulate():
            self._left = self._gradients()
        else:
            self._decide()

    def _gradients(self) -> list[tuple[int, int]]:
        """Counts up whenever a gradient is written to."""
        params = (p for group in self._opt.param_groups for p in group["params"])
        return [(id(p.grad), p.grad._version) for p in params if p.grad is not None]

    def before_step(self) -> None:
        """A last micro-batch that was skipped had no backward: the others make the step."""
        if self._scaler() is None:
            self._decide()
        self.forget()  # with a scaler Lightning takes no step

    # Pass 2 ------------------------------------------------------------------------------

    def _decide(self) -> None:
        kept, loss, scaler = self._kept, self._loss, self._scaler()
        self.forget()
        if not kept:
            return
        scale = 1.0 if scaler is None else scaler.get_scale()
        if self._opt.needs_second_pass(grad_scale=scale, loss=loss):
            with self._opt.perturbed(), unnoticed(self._module), torch.enable_grad():
                for micro_batch in kept:
                    self._run_again(micro_batch, last=micro_batch is kept[-1])

    def _scaler(self) -> Any:
        scaler = getattr(self._trainer.precision_plugin, "scaler", None)
        return scaler if scaler is not None and scaler.is_enabled() else None

    def _run_again(self, micro_batch: _MicroBatch, last: bool) -> None:
        micro_batch.rewind()
        block = getattr(self._strategy, "block_backward_sync", nullcontext)
        with nullcontext() if last else block():
            loss = self._loss_of(self._training_step(*micro_batch.arguments))
            if loss is None:
                loss = self._loss_that_is_no_number()
            self._strategy.backward(loss, self._trainer.optimizers[0])

    def _loss_that_is_no_number(self) -> Tensor:
        """There was a loss at w: it was given up for what it is at w + ε, and so is the step."""
        if self._trainer.world_size > 1:
            raise RuntimeError(_NOT_IN_PARALLEL)
        params = (p for group in self._opt.param_groups for p in group["params"])
        return math.nan * next(p for p in params if p.requires_grad).sum()


_EDITED_BETWEEN = """\
the gradients were changed between two micro-batches of a step, in on_after_backward perhaps, which
the second pass would not see: change them in on_before_optimizer_step, where they are whole"""
_NOT_IN_PARALLEL = """\
training_step returned None at w + ε where it had returned a loss at w: with several processes no
batch can be skipped, let it return the loss"""
