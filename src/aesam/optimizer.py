"""The step itself: decide → ascend → second gradient → restore → base step."""

import copy
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from aesam._core import checkpoint, checks, closures, messages, step, tensors
from aesam._core.construction import (
    check_base,
    check_model,
    check_part,
    keep_radius_on_load,
    set_default_radius,
)
from aesam._core.displacement import Displacement
from aesam._core.guards import Buffers, RandomState, replayed
from aesam._core.ledger import Committed, Ledger, Pending, SecondPass, StepRecord, start
from aesam._core.perturbed import Perturbed
from aesam._core.stack import frames_to_user, scaler_above
from aesam.parts import gradient
from aesam.parts.ascents import AlongGradient, Ascent
from aesam.parts.between import Between, Plain
from aesam.parts.combine import Combine, Replace
from aesam.parts.policies import Policy
from aesam.parts.samples import Samples, WholeBatch


class NonFiniteGradient(FloatingPointError, RuntimeError):
    """A gradient was infinite or NaN, and ``nonfinite="raise"`` was asked for.

    Python's name for it is FloatingPointError; torch raises RuntimeError where it checks gradients.

    >>> issubclass(NonFiniteGradient, FloatingPointError)
    True
    """


class SharpnessAware(torch.optim.Optimizer):
    """Any base optimizer, made sharpness-aware by five independent choices.

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

    >>> from aesam.policies import Periodic
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

    base: torch.optim.Optimizer

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
        nonfinite: str = "skip",
    ) -> None:
        self.base = check_base(base, SharpnessAware)
        self.model = check_model(model, base)
        self.parts = step.Parts(
            policy=check_part("policy", policy, Policy),
            ascent=check_part("ascent", _or(ascent, AlongGradient()), Ascent),
            samples=check_part("samples", _or(samples, WholeBatch()), Samples),
            between=check_part("between", _or(between, Plain()), Between),
            combine=check_part("combine", _or(combine, Replace()), Combine),
        )
        self.normalize = checks.flag("normalize", normalize)
        if nonfinite not in ("skip", "raise"):
            raise ValueError(f'nonfinite must be "skip" or "raise", got {nonfinite!r}')
        self.nonfinite = nonfinite
        set_default_radius(base, checks.at_least_zero("rho", rho))
        keep_radius_on_load(base)
        # All that changes in training is in here: wrappers of trainers share it by reference.
        self._run = Ledger(start(self.parts.policy.start(), self.parts.by_name))
        # torch's own constructor would copy the groups; this is the part of it that is wanted.
        super().__setstate__({})

    # What it shows -----------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """When the second gradient is taken."""
        return self.parts.policy

    @property
    def sam_fraction(self) -> float:
        """The share of steps so far that took the second gradient, 0…1."""
        done = self._run.committed
        return done.sam_steps / done.step if done.step else 0.0

    @property
    def last_step(self) -> StepRecord | None:
        """What the last finished step saw and did; None before the first."""
        return self._run.last_step

    @property
    def skipped_steps(self) -> int:
        """Steps that were begun and left no trace: overflow, NaN, an exception in pass 2."""
        return self._run.skipped

    def __repr__(self) -> str:
        shown = {**self.parts.by_name, "normalize": self.normalize, "nonfinite": self.nonfinite}
        lines = [f"{name}: {value!r}" for name, value in shown.items()]
        body = "\n".join(f"    {line}" for line in lines + repr(self.base).splitlines())
        return f"{type(self).__name__} (\n{body}\n)"

    # Shared with the base optimizer ------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.base.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.base.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.base.defaults = defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer; without a ``rho`` of its own it has the default."""
        if "rho" in param_group:
            checks.at_least_zero("rho of a parameter group", param_group["rho"])
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters, as the base optimizer does."""
        self.base.zero_grad(set_to_none)
        if self._run.is_idle:
            self._run.random = None  # an accumulation that was under way begins anew

    # The passes --------------------------------------------------------------------------

    @contextmanager
    def first_pass(self) -> Generator[None]:
        """Around the first forward and backward: lets pass 2 draw the same dropout masks.

        May be entered several times before a decision, once for each micro-batch. A pending
        decision is discarded.
        """
        state = self._run
        state.ready_for("first_pass()")
        state.discard()
        if self.parts.replays and (state.random is None or not self._has_gradients()):
            state.random = RandomState(self._devices())
        moved = None
        if self.parts.move_before_pass:
            moved = step.displacement_before_pass(
                self.parts, self.base, self.normalize, self.model, state.room
            )
        try:
            with state.inside("opt.first_pass()", moved):
                yield
        except BaseException:
            state.random = None
            raise

    def needs_second_pass(
        self, *, grad_scale: float | Tensor = 1.0, losses: Tensor | None = None
    ) -> bool:
        """Decide, from the gradients in ``p.grad``, whether this step takes a second gradient.

        If not, the direction ``d`` is in ``p.grad`` already and ``step()`` is next; if so, run the
        second pass inside ``with opt.perturbed():``. Nothing is committed before ``step()``; a
        pending decision is discarded.

        Args:
            grad_scale: the factor on the gradients, ``scaler.get_scale()`` under a loss scaler.
            losses: the per-sample losses at ``w``, for methods that select samples.
        """
        state = self._run
        state.ready_for("needs_second_pass()")
        state.discard()
        if not getattr(self.model, "require_backward_grad_sync", True):
            raise RuntimeError(messages.UNSYNCHRONISED)
        before = self._losses_before(losses)
        random, state.random = state.random, None
        if random is None and self.parts.move_before_pass:
            raise RuntimeError("this method moves the weights first: use `with opt.first_pass():`")
        scale = grad_scale.item() if isinstance(grad_scale, Tensor) else grad_scale
        scale = checks.positive("grad_scale", scale)
        with torch.no_grad():
            each = self.parts.ascent.needs_norm_of_each
            measured = gradient.read(self.param_groups, self._default_radius(), scale, each)
            if not measured.is_finite:
                state.pending = Pending(after=None)
                return False
            pending, decision = step.decide(self.parts, state.committed, measured, random, before)
        state.pending = pending
        if decision.notice is not None:
            self._warn_once(decision.notice)
        return decision.use_sam

    @contextmanager
    def perturbed(self) -> Generator[Perturbed]:
        """At ``w + ε`` inside, with cleared gradients; at ``w`` with ``d`` in ``p.grad`` after.

        Buffers and random state are as after pass 1 when the block is left. An exception inside
        restores the weights, clears the gradients and discards the step.
        """
        state = self._run
        state.ready_for("perturbed()")
        pending, ahead = self._awaiting_second_pass()
        random, losses = ahead.random, ahead.losses
        buffers = Buffers(self.model)
        try:
            first, displacement = self._ascend(pending, ahead)
            del ahead  # and with it the first gradient: its memory is the second pass's
            with replayed(random) as rewind:
                try:
                    with state.inside("opt.perturbed()", displacement):
                        self._clear_gradients()
                        yield Perturbed(self.parts.samples, losses, rewind)
                finally:
                    buffers.restore()
            with torch.no_grad():
                params, _ = gradient.with_gradient(self.param_groups, self._default_radius())
                step.finish_second_pass(self.parts, state, pending, first, params)
        except BaseException:
            self._clear_gradients()
            state.discard()
            raise

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        closure: Callable[..., Any] | None = None,
        *,
        scaler: torch.amp.GradScaler | None = None,
    ) -> Any:
        """Take the step: all of it with a closure, the last part of it without.

        Args:
            closure: clears the gradients, computes the loss, backpropagates and returns it; called
                once or twice. Or a function ``losses(rows=None)`` that returns per-sample losses,
                which methods that select samples need.
            scaler: a loss scaler; the closure backpropagates ``scaler.scale(loss)``. Call
                ``scaler.update()`` afterwards.

        Returns:
            The loss at ``w`` with a closure, None without.
        """
        self._run.ready_for("step()")
        if closure is None:
            self._take(scaler)
            return None
        if scaler is None and scaler_above() is not None:
            raise RuntimeError(messages.CLOSURE_IN_SCALER)
        passes = closures.wrap(
            closure, self.parts.samples.selects_rows, self.zero_grad, scaler, type(self).__name__
        )
        with self.first_pass(), torch.enable_grad():
            loss = passes.first()
        if not self._has_gradients():
            self._warn_once("no parameter has a gradient: does the closure call backward()?")
        scale = 1.0 if scaler is None else scaler.get_scale()
        if self.needs_second_pass(grad_scale=scale, losses=passes.losses):
            with self.perturbed() as at, torch.enable_grad():
                passes.second(at)
        self._take(scaler)
        return loss

    # Their parts -------------------------------------------------------------------------

    def _losses_before(self, losses: Tensor | None) -> Tensor | None:
        if not self.parts.samples.selects_rows:
            return None
        if losses is None:
            raise TypeError(
                f"{type(self).__name__} selects samples: needs_second_pass(losses=...) takes the "
                f"per-sample losses at w. Or use the closure form:\n{closures.LOSSES_EXAMPLE}"
            )
        return closures.per_sample_losses(losses).detach()

    def _awaiting_second_pass(self) -> tuple[Pending, SecondPass]:
        pending = self._run.pending
        if pending is None:
            raise RuntimeError(
                "perturbed() without a decision: call opt.needs_second_pass() after the first "
                "backward(), and enter perturbed() only if it returned True"
            )
        if pending.ahead is None:
            raise RuntimeError(
                "perturbed() is not needed now: needs_second_pass() returned False, or the second "
                "pass was made already. Call opt.step() next."
            )
        if step.was_changed(pending.ahead):
            raise RuntimeError(messages.CHANGED_GRADIENTS)
        return pending, pending.ahead

    def _ascend(
        self, pending: Pending, ahead: SecondPass
    ) -> tuple[gradient.Gradient, Displacement]:
        """Keep what the parts need of the first gradient, and say where to go."""
        pending.ahead, state, measured = None, self._run, ahead.gradient
        with torch.no_grad():
            if measured.scale != 1.0:
                pending.norm_at_ascent = tensors.norm(measured.values)
            first = step.keep_first(self.parts, measured, state.room)
            direction = self.parts.ascent.direction(
                measured, state.committed.ascent, pending.generators.get("ascent")
            )
        return first, Displacement(direction, self.normalize, self.model, state.room)

    def _take(self, scaler: torch.amp.GradScaler | None) -> None:
        state = self._run
        state.ready_for("step()")
        if state.pending is None:
            raise RuntimeError(messages.NOTHING_DECIDED)
        if state.pending.ahead is not None:
            raise RuntimeError(
                "needs_second_pass() returned True: run the second pass inside "
                "`with opt.perturbed():` before step()"
            )
        if scaler is not None:
            scaler.step(self)  # calls step() again, unless it saw an overflow
            state.discard()
        elif state.pending.after is None:
            self._skip()
        else:
            self._check_scale(state.pending)
            self._apply(state.pending, state.pending.after)

    def _skip(self) -> None:
        self._run.discard()
        if self.nonfinite == "raise":
            step = self._run.committed.step
            raise NonFiniteGradient(
                f"a gradient is infinite or NaN at step {step}; the weights are as before"
            )
        self._warn_once(
            "a gradient is infinite or NaN: the update was skipped and the weights are as before; "
            "further ones are counted in skipped_steps"
        )

    def _check_scale(self, pending: Pending) -> None:
        """What the base is about to apply must be unscaled, once, after the second pass."""
        if pending.scale == 1.0:
            scaler = scaler_above()
            if scaler is not None and scaler.get_scale() != 1.0:
                raise RuntimeError(messages.SCALE_NOT_GIVEN)
        elif pending.norm_of_second > 0.0 and pending.scale >= 4.0:
            params, _ = gradient.with_gradient(self.param_groups, self._default_radius())
            now = tensors.norm_on_host(gradient.gradients_of(params))
            if now > pending.norm_of_second / 2.0:
                raise RuntimeError(messages.STILL_SCALED)

    def _apply(self, pending: Pending, after: Committed) -> None:
        state = self._run
        try:
            for hook in self._optimizer_step_pre_hooks.values():
                hook(self, (self,), {})
            self.base.step()
            if self.parts.act_after_base_step:
                with torch.no_grad():
                    for name, axis in self.parts.by_name.items():
                        carried = pending.carried if name == "combine" else None
                        axis.after_base_step(self.base, carried)
        except BaseException:
            state.discard()
            raise
        state.pending = None
        if pending.generators:
            after = replace(after, generators=step.end_of(pending.generators))
        state.commit(after, pending.record)
        for hook in self._optimizer_step_post_hooks.values():
            hook(self, (self,), {})

    def _default_radius(self) -> float:
        return self.defaults.get("rho", 0.05)

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for group in self.param_groups for p in group["params"])

    def _clear_gradients(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def _devices(self) -> set[torch.device]:
        return {p.device for group in self.param_groups for p in group["params"]}

    def _warn_once(self, text: str) -> None:
        if text not in self._run.warned:
            self._run.warned.add(text)
            warnings.warn(text, stacklevel=frames_to_user())

    # Saving, loading, copying ------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state dict, and ours under ``"aesam"``."""
        self._run.ready_for("state_dict()")
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        saved: dict[str, Any] = self.base.state_dict()
        saved["aesam"] = checkpoint.pack(self.parts, self.normalize, self._run, self.param_groups)
        for hook in self._optimizer_state_dict_post_hooks.values():
            saved = hook(self, saved) or saved
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict of the same method; refused ones change nothing."""
        state = self._run
        state.ready_for("load_state_dict()")
        state_dict = copy.copy(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        loaded = checkpoint.unpack(state_dict, self.parts, self.normalize, self.base)
        state.continue_from(loaded.committed, loaded.skipped)
        for difference in loaded.differences:
            warnings.warn(difference, stacklevel=2)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("base", "model", "parts", "normalize", "nonfinite", "_run")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        keep_radius_on_load(self.base)

    def _patch_step_function(self) -> None:
        # torch would run step hooks before the first pass, with nothing to clip yet; ours run
        # around the base optimizer's update.
        self._zero_grad_profile_name = f"Optimizer.zero_grad#{type(self).__name__}.zero_grad"


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given
