"""The optimizer that users see: decide → ascend → second gradient → restore → base step."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from aesam._core import (
    callers,
    closures,
    construction,
    dcp,
    messages,
    replay_check,
    some_rows,
    step,
    tensors,
)
from aesam._core.around_base import NOWHERE, AroundBase
from aesam._core.blocks import Block, Within
from aesam._core.bystanders import Bystanders
from aesam._core.guards import Displacement, RandomState, replay_random, seeds_in
from aesam._core.health import Health
from aesam._core.ledger import CLOSURE, Complete, Ledger, Pending, start
from aesam._core.unnoticed import Batch, takes_no_step, unnoticed_by_caller
from aesam.parts import checks
from aesam.parts.ascents import AlongGradient, Ascent
from aesam.parts.between import Between, Plain
from aesam.parts.combine import Combine, Replace
from aesam.parts.part import Excursion, Gradient, with_gradient
from aesam.parts.policies import Policy
from aesam.parts.samples import Samples, WholeBatch


class NonFiniteGradient(FloatingPointError, RuntimeError):
    """A gradient was infinite or NaN, and ``nonfinite="raise"`` was asked for.

    Python's name for it is FloatingPointError; torch raises RuntimeError where it checks gradients.

    >>> issubclass(NonFiniteGradient, FloatingPointError)
    True
    """


class SharpnessAware(AroundBase):
    """Any base optimizer, made sharpness-aware by five independent parts.

    With ``g`` the gradient at ``w``, one step is: the ``policy`` decides on ``‖g‖²`` whether to
    take a second gradient; if so, the ``ascent`` says where (``w + ε``, ``ε = ρ g/‖g‖``, Eq. 2),
    ``samples`` on which rows, and ``combine`` makes the direction ``d`` of both; if not,
    ``between`` makes ``d`` of ``g``. The base optimizer then steps along ``d``.

    Args:
        base: the optimizer to wrap; parameter groups and state are shared with it.
        model: given, no buffer (BatchNorm's statistics) is changed by the second pass.
        policy: when; see :mod:`aesam.parts.policies`.
        ascent: where; see :mod:`aesam.parts.ascents`.
        samples: on which rows; see :mod:`aesam.parts.samples`.
        between: what a step without a second gradient does; see :mod:`aesam.parts.between`.
        combine: how two gradients become one; see :mod:`aesam.parts.combine`.
        rho: radius ρ ≥ 0; a parameter group may have its own as ``group["rho"]``, at any time.
        normalize: ``ε = ρ g/‖g‖`` (Eq. 2); False for ``ε = ρ g`` (Algorithm 1 to the letter).
        nonfinite: what ``step`` does about infinite or NaN gradients: ``"skip"`` the update (a
            warning, once) or ``"raise"`` :class:`NonFiniteGradient`.
        replay: True for loops and trainers that call ``step()`` without a closure: the model's
            forwards are recorded and run again for the second gradient. Where the model returns
            the loss this is the same step; where the loss is made outside of it, it is functional
            SAM, ``J(w+ε)ᵀ ∂L/∂f`` with ``∂L/∂f`` at ``w``. Sub-batch ascent records nothing: there
            the model must return the loss. Needs ``model``; False by default.
        max_norm: clip the final direction ``d`` to this norm, above 0; None, the default, for not.
            The decision is always on the unclipped gradient.
        local_ascent: True for an ``ε`` of each process's own gradient under DDP (m-sharpness),
            at the memory of one more gradient; all else is of the averaged one, which False (the
            default) ascends along too. Of one process both are the same.
        compensate: multiply ρ by one over the share of steps that took a second gradient so far,
            so that the share times ρ stays the same; at most by this factor, 1 or more. The step
            itself counts: the first one has the factor 1, and a share that is not yet known never
            makes more of ρ than this bound. ``last_step.radius_factor`` shows it. None, the
            default, for not.

    >>> from aesam.parts.policies import Periodic
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = SharpnessAware(torch.optim.SGD([w], lr=0.1), policy=Periodic(k=2), rho=0.5)
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = w.square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> opt.step(closure).item(), opt.last_step.used_sam
    (12.5, True)
    >>> w.data  # w − 0.1 (w + 0.5 w/‖w‖)
    tensor([2.6700, 3.5600])
    """

    #: Its name in :func:`aesam.list_methods`; empty for a class that is not registered.
    registered_as: ClassVar[str] = ""

    def __init__(
        self,
        base: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        policy: Policy,
        ascent: Ascent | None = None,
        samples: Samples | None = None,
        between: Between | None = None,
        combine: Combine | None = None,
        rho: float = 0.05,
        normalize: bool = True,
        nonfinite: Literal["skip", "raise"] = "skip",
        replay: bool = False,
        max_norm: float | None = None,
        local_ascent: bool = False,
        compensate: float | None = None,
        **_others: object,
    ) -> None:
        given = {"rho": rho, "total_steps": getattr(policy, "total_steps", None)}
        given |= {"replay": replay, "max_norm": max_norm, **_others}
        construction.refuse_parameters(type(self), base, model, given)
        construction.refuse_unknown(type(self), _others)
        self.base = construction.check_base(base, SharpnessAware)
        self.model = construction.check_model(model, base)
        construction.refuse_flat_shards(self.model, base)
        parts = construction.Parts(
            policy=construction.check_part("policy", policy, Policy),
            ascent=construction.check_part("ascent", _or(ascent, AlongGradient()), Ascent),
            samples=construction.check_part("samples", _or(samples, WholeBatch()), Samples),
            between=construction.check_part("between", _or(between, Plain()), Between),
            combine=construction.check_part("combine", _or(combine, Replace()), Combine),
        )
        construction.check_parts(parts, self.model, base)
        self.normalize = checks.flag("normalize", normalize)
        if nonfinite not in ("skip", "raise"):
            raise ValueError(f'nonfinite must be "skip" or "raise", got {nonfinite!r}')
        self.nonfinite = nonfinite
        self.replay = construction.check_replay(replay, self.model, parts)
        self.max_norm = None if max_norm is None else checks.positive("max_norm", max_norm)
        self.local_ascent = construction.check_local_ascent(local_ascent, self.replay, parts, base)
        self.compensate = construction.check_compensate(compensate)
        construction.set_default_radius(base, checks.at_least_zero("rho", rho))
        construction.keep_radius_on_load(base)
        # All that changes in training is in here: wrappers of trainers share it by reference.
        self._ledger = Ledger(parts, start(parts.policy.start(), parts.by_name))
        # torch's own constructor would copy the groups; this is what is wanted of it.
        torch.optim.Optimizer.__setstate__(self, {})
        self._watch()
        self._ledger.watch.start(self.model)

    # The passes --------------------------------------------------------------------------

    def first_pass(self) -> AbstractContextManager[None]:
        """Around the first forward and backward: lets pass 2 draw the same dropout masks.

        May be entered several times before a decision, once for each micro-batch. A pending
        decision is discarded.
        """
        return self._pass_at("opt.first_pass()", lambda: self._ledger.begin("first_pass()"))

    def _pass_at(
        self, name: str, begin: Callable[[], None] = lambda: None
    ) -> AbstractContextManager[None]:
        """The random state is noted, and weights are moved that a part wants moved."""
        ledger = self._ledger

        def enter(_: None) -> tuple[Block, None]:
            if self.parts.replays and (ledger.random is None or not self._has_gradients()):
                ledger.random = RandomState(self._devices(), seeds_in(self.model))
                ledger.watch.begin(self.model)
            self._hear_own_gradients()
            moved = None
            if self.parts.move_before_pass:
                moved = step.excursion_before_pass(
                    self.parts, self.base, self.normalize, self.model, ledger
                )
            block = ledger.blocks.push(Block(name if moved is None else "opt.first_pass()"))
            self._backwards.at_moved_weights(block)
            if self.parts.guard_first_pass:
                block.will(Bystanders(self.model, ledger.watch).restore)
            step.displace(block, moved)
            return block, None

        return Within(ledger.blocks, begin, enter)

    def needs_second_pass(
        self,
        *,
        grad_scale: float | Tensor = 1.0,
        losses: Tensor | None = None,
        loss: float | Tensor | None = None,
        edited: bool = False,
    ) -> bool:
        """Decide, from the gradients in ``p.grad``, whether this step takes a second gradient.

        If not, the direction ``d`` is in ``p.grad`` already and ``step()`` is next; if so, run the
        second pass inside ``with opt.perturbed():``. A method whose second gradient is of recorded
        forwards (functional SAM) makes it here, and needs none of the caller's. Nothing is
        committed before ``step()``; a pending decision is discarded.

        Args:
            grad_scale: the factor on the gradients, ``scaler.get_scale()`` under a loss scaler.
            losses: the per-sample losses at ``w``, for methods that select samples.
            loss: the loss at ``w`` without that factor, for policies that look at it. Of several
                processes all give it or none.
            edited: True where gradients were changed on purpose after backward(), averaged by hand
                for instance; do the same in the second pass. Clipped ones are refused without it.
        """
        self._ledger.begin("needs_second_pass()")
        if isinstance(grad_scale, Tensor) and grad_scale.numel() != 1:
            shape = tuple(grad_scale.shape)
            raise ValueError(f"grad_scale must be one number, got a tensor of shape {shape}")
        scale = grad_scale.item() if isinstance(grad_scale, Tensor) else grad_scale
        scale = checks.positive("grad_scale", scale)
        self._check_compared(scale)
        by_record = self.parts.keep_output_gradients
        decide = self._decide_by_record if by_record else self._decide
        return self._ledger.blocks.safely(decide, scale, losses, loss, edited)

    def _decide(
        self,
        scale: float,
        losses: Tensor | None,
        loss: float | Tensor | None,
        edited: bool = False,
        unscaled_by: float | None = None,
    ) -> bool:
        ledger, backwards = self._ledger, self._backwards
        if not getattr(self.model, "require_backward_grad_sync", True):
            raise RuntimeError(messages.UNSYNCHRONISED)
        before = self._losses_before(losses)
        random, drawn = ledger.random, ledger.drawn
        ledger.forget_first_pass()
        step.check_splits(self.parts.samples.splits, backwards.count)
        if self.parts.move_before_pass or self._ascends_in_forward:
            self._check_moved(random)
        edited = edited or self.parts.take_one_gradient  # clipped: no second is at odds with it
        with torch.no_grad():
            seen = step.loss_for_policy(self.parts, loss, losses, self._devices, self.model)
            present = with_gradient(self.base.param_groups, self._default_radius())
            params, values = present.params, present.values
            if not edited and backwards.were_edited(params, values):
                idle = callers.idle_writes()
                if not idle or backwards.were_edited(params, values, idle):
                    raise RuntimeError(messages.EDITED_GRADIENTS)
            known = edited or unscaled_by is not None
            drift = None if known else backwards.drift(params, values)
            measured, numbers = step.measure(
                self.parts, present, scale, ledger, seen, drift, wait=self._ascends_locally
            )
            measured = measured.changed(unscaled_by=unscaled_by or 1.0)
            sound = not numbers.is_known or step.is_sound(numbers, scale)
            if self._ascends_locally:
                ledger.local.decide(measured)
            done = ledger.committed
            decided = sound and step.decide(
                self.parts, done, measured, numbers, random, before, self.compensate, drawn
            )
            if not decided or not step.may_go_on(decided[0], numbers):
                ledger.pending = Pending(after=None)
                ledger.local.forget()
                return False
            pending, decision = decided
            pending.backwards, pending.loss = backwards.count, step.one_loss(loss)
            if pending.ahead is None:
                ledger.local.forget()
                step.adjust(self.parts, done, measured, pending)
        backwards.follow(params)
        ledger.pending = pending
        if decision.notice is not None:
            self._warn_once(decision.notice)
        return pending.ahead is not None

    def _ascend_for_forward(self, model: nn.Module, args: Any, kwargs: Any) -> Displacement | None:
        if self._ledger.block is not None:
            return None  # whose passes are somebody else's
        self._ledger.discard()
        return self._ledger.blocks.safely(self._ascend_on_some_rows, model, args, kwargs)

    def _ascend_on_some_rows(self, model: nn.Module, args: Any, kwargs: Any) -> Displacement:
        """Take the gradient of some rows, decide on it, and say where all of them go."""
        ledger, params = self._ledger, self._parameters()
        sighting = ledger.sightings.begin(None)
        block = ledger.blocks.push(Block("the forward of some rows"))
        ledger.watch.begin(self.model)
        block.will(Bystanders(self.model, ledger.watch).restore)
        rows = self.parts.samples.first_rows or slice(None)
        loss = some_rows.backward(model, args, kwargs, rows, params, self._backwards, block)
        pending, displacement = self._decide_on_some_rows(loss)
        ledger.blocks.close(block)
        self._backwards.follow(params)
        if displacement is not None:
            ledger.sightings.end(sighting)
            pending.sighting = sighting
        ledger.pending = pending
        return displacement or Displacement(NOWHERE, self.normalize, None, ledger.workspace)

    @torch.no_grad()
    def _decide_on_some_rows(self, loss: Tensor) -> tuple[Pending, Displacement | None]:
        ledger, parts = self._ledger, self.parts
        present = with_gradient(self.base.param_groups, self._default_radius())
        seen = step.loss_for_policy(parts, loss, None, self._devices, self.model)
        measured, numbers = step.measure(parts, present, 1.0, ledger, seen, None, wait=True)
        if not step.is_sound(numbers, 1.0):
            return Pending(after=None), None
        pending, decision = step.decide(
            parts, ledger.committed, measured, numbers, None, None, self.compensate
        )
        if decision.notice is not None:
            self._warn_once(decision.notice)
        _, ahead = step.awaiting_second_pass(pending)
        pending.of_loop, displacement = step.ascend(
            parts, ledger, pending, ahead, self.normalize, self.model
        )
        pending.is_unscaled = True  # by whoever calls step()
        return pending, displacement

    @torch.no_grad()
    def _look_back(self, away: Excursion) -> None:
        pending, sightings = self._ledger.pending, self._ledger.sightings
        sighting = None if pending is None else pending.sighting
        if sighting is not None and isinstance(away, Displacement):
            step.look_back(sighting, away, sightings, self._parameters())

    def _end_second_pass_of_loop(self, pending: Pending, first: Gradient) -> None:
        """Make the direction of what a loop's own backward has left in ``p.grad``."""
        if not self._has_gradients():
            raise RuntimeError(messages.NO_GRADIENT)
        if self._ledger.moved_forwards is not None:
            self._ledger.moved_forwards.check()
        above = callers.scaler_above()
        if pending.sighting is not None and above is not None:
            pending.sighting.unscaled_by = above.scaler.get_scale()
        with torch.no_grad():
            params, second, *_ = with_gradient(self.base.param_groups, self._default_radius())
            step.finish_second_pass(self.parts, self._ledger, pending, first, params, second)
        pending.of_loop = None

    def _check_compared(self, scale: float) -> None:
        """Refuse a gradient that lacks the difference to other weights' outputs where it is due."""
        ledger, found = self._ledger, self.parts.compares
        if ledger.compared_forwards is None or found is None:
            return
        name, part = found
        if part.compares_now(ledger.committed.memory(name)):
            ledger.compared_forwards.check(scale)

    def _check_moved(self, random: RandomState | None) -> None:
        """Refuse a gradient that may have been taken at ``w``, where it should not have been."""
        moved = self._ledger.moved_forwards
        if random is None and self._ascends_in_forward:
            raise RuntimeError(messages.DECIDES_IN_FORWARD)
        if random is not None and self._backwards.are_of_moved_weights:
            return  # in blocks of ours, all of it
        if moved is None:
            raise RuntimeError(messages.MOVES_FIRST)
        moved.check()

    def perturbed(self) -> AbstractContextManager[closures.Perturbed]:
        """At ``w + ε`` inside, with cleared gradients; at ``w`` with ``d`` in ``p.grad`` after.

        Buffers and random state are as after pass 1 when the block is left. An exception inside
        restores the weights, clears the gradients and discards the step.
        """
        ledger = self._ledger
        made: list[step.SecondGradient] = []

        def check() -> list[step.Decided]:
            ledger.ready_for("perturbed()")
            return [step.awaiting_second_pass(ledger.pending)]

        def enter(
            decided: list[step.Decided],
        ) -> tuple[Block, closures.Perturbed]:
            pending, ahead = decided.pop()  # and with it the first gradient, when this returns
            block = ledger.blocks.push(Block("opt.perturbed()", self._clear_gradients))
            # Before the ascent, which may run the model too.
            bystanders = Bystanders(self.model, ledger.watch)
            if not self.parts.always_pass_twice:  # else this pass is the one that counts
                block.will(bystanders.restore)
            with torch.no_grad():
                first, displacement = step.ascend(
                    self.parts, ledger, pending, ahead, self.normalize, self.model
                )
            choose = partial(
                self.parts.samples.rows,
                memory=ledger.committed.memory("samples"),
                generator=pending.generators.get("samples"),
            )
            lasting = self.parts.always_pass_twice
            rewind = replay_random(ahead.random, None if lasting else block)
            ledger.local.silence(block)
            step.displace(block, displacement)
            self._clear_gradients()
            self._backwards.clear()
            at = closures.Perturbed(choose, ahead.losses, rewind)
            pending.sighting = ledger.sightings.begin(pending.loss) if ahead.ascends else None
            made.append(step.SecondGradient(pending, first, bystanders, displacement, at))
            return block, at

        def leave() -> None:
            self._finish_second_pass(made[0])

        @torch.no_grad()
        def look() -> None:
            made[0].look(ledger.sightings, comparable=not self.parts.needs_losses)

        return Within(ledger.blocks, check, enter, leave, look)

    def _finish_second_pass(self, made: step.SecondGradient) -> None:
        if not self.parts.always_pass_twice:
            made.bystanders.refuse_lost()
        with torch.no_grad():
            params, second, *_ = with_gradient(self.base.param_groups, self._default_radius())
            if made.first.params and not params:
                raise RuntimeError(messages.NO_SECOND_GRADIENT)
            step.check_micro_batches(made.pending.backwards, self._backwards.count)
            step.finish_second_pass(
                self.parts, self._ledger, made.pending, made.first, params, second
            )

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        closure: Callable[..., Any] | None = None,
        *,
        scaler: torch.amp.GradScaler | None = None,
        edited: bool = False,
    ) -> Any:
        """Take the step: all of it with a closure, the end of it without.

        Args:
            closure: clears the gradients, computes the loss, backpropagates and returns it; called
                once or twice. Or a function ``losses(rows=None)`` that returns per-sample losses,
                which methods that select samples need.
            scaler: a loss scaler; the closure backpropagates ``scaler.scale(loss)``. Call
                ``scaler.update()`` afterwards.
            edited: True where the closure changes the gradients after backward() on purpose, and
                in both passes alike: averages them by hand, for instance. Not for clipping.

        Returns:
            The loss at ``w`` with a closure, None without.
        """
        making_state = callers.making_state()
        if making_state is not None:
            return dcp.make_state(self.base, making_state)
        ledger = self._ledger
        ledger.ready_for("step()")
        if closure is None:
            self._finish(scaler)
            return None
        return ledger.blocks.safely(self._step_by_closure, closure, scaler, edited)

    def _step_by_closure(
        self, closure: Callable[..., Any], scaler: torch.amp.GradScaler | None, edited: bool
    ) -> Any:
        ledger = self._ledger
        if scaler is None and callers.scaler_above() is not None:
            raise RuntimeError(messages.CLOSURE_IN_SCALER)
        passes = closures.passes_of(
            closure,
            self.parts.samples,
            self.zero_grad,
            scaler,
            type(self).__name__,
            in_forward=self._ascends_in_forward,
        )
        decided = self._made_before()
        before, batch = closures.Traces(self._parameters(), self._backwards), Batch(closure)
        if passes is not None:
            passes.look()
        # In a block of ours the model's forward would leave the passes to us.
        by_forward = self._ascends_in_forward and passes is None
        loss, drawn = None, step.copied(ledger.drawn)
        ledger.announce(1.0 if scaler is None else scaler.get_scale())
        for run in [closure] if passes is None else passes.first_passes():
            with nullcontext() if by_forward else self._pass_at(CLOSURE), torch.enable_grad():
                loss = run()
        replaced = ledger.pending is not None and ledger.pending is not (
            decided and decided.pending
        )
        if decided is not None and not replaced and decided.was_touched(self._parameters()):
            ledger.discard()
            if decided.pending.after is not None:
                raise RuntimeError(messages.CLOSURE_AFTER_DECISION)
        if ledger.pending is None and before.are_left_by(self._parameters()):
            callers.refuse_accumulate(self._backwards.count)
            self._make_passes(closure, passes, scaler, loss, edited, batch)
        elif ledger.pending is None and not (self._steps_bare and self._has_gradients()):
            if takes_no_step(closure, loss, self._has_gradients()):
                ledger.forget_first_pass()
                return loss
            raise RuntimeError(messages.NO_BACKWARD)
        ledger.forget_first_pass()
        if ledger.pending is None:
            ledger.drawn = drawn  # by the passes before this call: the closure made none
        self._finish(scaler)
        return loss

    def _made_before(self) -> Complete | None:
        """A decision that waits for ``step()`` alone; one that waits for a pass is dropped."""
        pending = self._ledger.pending
        if pending is not None and pending.ahead is None:
            return Complete(pending, self._parameters())
        self._ledger.discard()
        return None

    def _make_passes(
        self,
        closure: Callable[..., Any],
        passes: closures.LossesClosure | None,
        scaler: torch.amp.GradScaler | None,
        loss: object,
        edited: bool,
        batch: Batch,
    ) -> None:
        """Decide on the gradient that a closure made, and call it again if so decided."""
        scale = 1.0 if scaler is None else scaler.get_scale()
        seen: Any = loss if isinstance(loss, Real | Tensor) else None
        losses = None if passes is None else passes.losses
        if self.needs_second_pass(grad_scale=scale, losses=losses, loss=seen, edited=edited):
            batch.refuse_changed()
            with self.perturbed() as at, torch.enable_grad(), unnoticed_by_caller(closure):
                at.loss = step.one_loss(closure() if passes is None else passes.second(at))

    @property
    def _steps_bare(self) -> bool:
        """Whether a step needs nothing of the caller's but the gradient of the first pass."""
        needs_no_move = self.parts.take_one_gradient and not self.parts.move_before_pass
        return needs_no_move or self.replay or self._ledger.moved_forwards is not None

    def _finish(self, scaler: torch.amp.GradScaler | None) -> None:
        """The end of a step; of one that steps bare all of it but the first pass."""
        pending = self._ledger.pending
        if scaler is None and pending is not None and pending.of_loop is not None:
            self._ledger.blocks.safely(self._end_second_pass_of_loop, pending, pending.of_loop)
        if self._ledger.pending is not None or not self._steps_bare:
            self._take(scaler)
        elif scaler is not None:
            scaler.step(self)  # calls step() again, unless it saw an overflow
        else:
            self._ledger.blocks.safely(self._step_by_replay)

    def _step_by_replay(self) -> None:
        """All of a step but its first pass, which has left its gradient in ``p.grad``."""
        above = callers.scaler_above()
        if not self._has_gradients():
            raise RuntimeError(messages.NO_GRADIENT)
        if self.policy.looks_at_loss:
            raise RuntimeError(messages.LOSS_UNKNOWN.format(policy=self.policy))
        unscaled_by = None if above is None else above.scaler.get_scale()
        self._check_compared(1.0 if unscaled_by is None else unscaled_by)
        self._decide_by_record(1.0, unscaled_by=unscaled_by)
        pending = self._ledger.pending
        if pending is not None:
            pending.is_unscaled = True
            if above is not None and pending.after is None:
                above.report_overflow()
                self._ledger.discard()
                return
        self._take(None)

    def _decide_by_record(
        self,
        scale: float,
        losses: Tensor | None = None,
        loss: float | Tensor | None = None,
        edited: bool = False,
        unscaled_by: float | None = None,
    ) -> bool:
        """Decide; the second gradient is of the recorded forwards, and no pass is left to make.

        Recorded gradients have the scale of those in ``p.grad``, unless a scaler took it from these
        (``unscaled_by``).
        """
        recording = self._recording
        if edited:
            raise ValueError(messages.EDITED_FIRST_ONLY)
        if recording is not None:
            recording.prepare(self._parameters())
        fires = self._decide(scale, losses, loss, unscaled_by=unscaled_by)
        if fires and recording is not None:
            more = 1.0 if unscaled_by is None else unscaled_by
            self._ledger.local.carry(scale * more)
            replay_check.refuse_other(recording, self._ledger, self.model, self._parameters(), more)
            with self.perturbed():
                again = self._ledger.blocks.push(Block("opt.perturbed()"))
                recording.run(again)
                self._ledger.blocks.close(again)
                with torch.no_grad():
                    grads = [p.grad for p in self._parameters() if p.grad is not None]
                    tensors.scale(grads, 1.0 / more)
        return False

    # What the passes are made of ---------------------------------------------------------

    def _losses_before(self, losses: Tensor | None) -> Tensor | None:
        if not self.parts.selects_rows:
            return None
        if losses is None:
            raise TypeError(
                f"{type(self).__name__} selects samples: needs_second_pass(losses=...) takes the "
                f"per-sample losses at w. Or use the closure form:\n{closures.LOSSES_EXAMPLE}"
            )
        return closures.per_sample_losses(losses).detach()

    def _take(self, scaler: torch.amp.GradScaler | None) -> None:
        ledger = self._ledger
        if ledger.pending is None:
            moves = self.parts.move_before_pass
            raise RuntimeError(messages.MOVES_FIRST if moves else messages.NOTHING_DECIDED)
        if ledger.pending.ahead is not None:
            raise RuntimeError(
                "needs_second_pass() returned True: run the second pass inside "
                "`with opt.perturbed():` before step()"
            )
        if scaler is not None:
            scaler.step(self)  # calls step() again, unless it saw an overflow
            ledger.discard()
        elif ledger.pending.after is None:
            self._skip()
        else:
            if not ledger.pending.is_unscaled:
                step.check_unscaled(ledger.pending, self.base)
            ledger.blocks.safely(self._update, ledger.pending)
            self._after_update()

    def _skip(self) -> None:
        self._ledger.discard()
        self._backwards.clear()
        if self._recording is not None:
            self._recording.drop_finished()
        if self.nonfinite == "raise":
            step = self._ledger.committed.step
            raise NonFiniteGradient(
                f"a gradient is infinite or NaN at step {step}; the weights are as before"
            )
        self._warn_once(
            "a gradient, or the direction made of it, is infinite or NaN: the update was skipped "
            "and the weights are as before; further ones are counted in skipped_steps"
        )

    def _update(self, pending: Pending) -> None:
        """The base's update along ``d``; the step is taken once it has returned."""
        if self.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters(), self.max_norm)
        for hook in self._optimizer_step_pre_hooks.values():
            hook(self, (self,), {})
        if self.parts.before_base_step:
            with torch.no_grad():
                step.before_base_step(self.parts, self._ledger, pending, self.base)
        if pending.generators and pending.after is not None:
            drawn = step.end_of(pending.generators)
            pending.after = replace(pending.after, generators=drawn)
        if self.parts.after_base_step:
            pending.afterwards = partial(self._act_after_base_step, pending)
        # In one expression: Python lets no interrupt in between its call and its note.
        pending.returned.append(self.base.step())
        pending.afterwards()
        self._ledger.commit(pending)

    def health(self) -> Health:
        """Whether second gradients do anything: what the last of them saw, and a sentence.

        The rise of the loss at ``w + ε`` is seen by ``step(closure)``. A loop that owns its passes
        may tell it: ``needs_second_pass(loss=loss)``, then ``at.loss = loss`` in
        ``with opt.perturbed() as at:``. Nothing here waits for the device.
        """
        return self._ledger.sightings.health(self.sam_fraction)

    def _after_update(self) -> None:
        self._backwards.clear()
        if self._recording is not None:
            self._recording.drop_all()
        for hook in self._optimizer_step_post_hooks.values():
            hook(self, (self,), {})
        wrong = self._ledger.sightings.what_is_wrong()
        if wrong is not None and any(g.get("rho") for g in self.base.param_groups):
            self._warn_once(wrong, about="health")

    @torch.no_grad()
    def _act_after_base_step(self, pending: Pending) -> None:
        """Let the parts act that have not yet: an interrupt may have cut this short."""
        left = list(self.parts.after_base_step.items())[len(pending.acted) :]
        for name, part in left:
            pending.acted.append(part.after_base_step(self.base, pending.carried.get(name)))


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given
