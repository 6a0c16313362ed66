"""An optimizer around another: what it shares with the base, shows, saves and copies.

The steps are in :mod:`aesam.optimizer`.
"""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from aesam._core import bases, callers, checkpoint, construction, dcp, messages, tensors
from aesam._core.backwards import Backwards
from aesam._core.compared_forwards import ComparedForwards
from aesam._core.guards import Displacement
from aesam._core.ledger import Ledger, StepRecord
from aesam._core.moved_forwards import MovedForwards
from aesam._core.recording import Recording
from aesam._core.some_rows import called_module
from aesam._core.step import excursion_before_pass, other_weights
from aesam.parts import checks
from aesam.parts.part import Direction, Excursion
from aesam.parts.policies import Policy

NOWHERE = Direction([], [], [], length=0.0)


class AroundBase(torch.optim.Optimizer):
    """Groups, state and defaults are the base's own; what is ours is in the ledger.

    Nothing here caches parameters: trainers replace them in the groups.
    """

    base: torch.optim.Optimizer
    model: nn.Module | None
    normalize: bool
    nonfinite: str
    replay: bool
    max_norm: float | None
    local_ascent: bool
    compensate: float | None
    _ledger: Ledger

    def _watch(self) -> None:
        """Count the backward passes, and record the model's forwards where they are replayed."""
        self._backwards = Backwards()
        self._backwards.follow(self._parameters())
        self._hear_own_gradients()
        self._recording: Recording | None = None
        sharded = self.model is not None and not tensors.are_plain(self._parameters())
        records = (sharded or self.replay) and not self.policy.never_fires
        if self.model is not None and records and not self._ascends_in_forward:
            self._recording = Recording(
                self.model, self._backwards, self.replay, self.parts.keep_output_gradients
            )
        moves = self.parts.move_before_pass and self.parts.take_one_gradient
        if self.model is not None and moves:
            ask = self._excursion_for_forward
            self._ledger.moved_forwards = MovedForwards(self.model, self._backwards, ask)
        if self.model is not None and self._ascends_in_forward:
            self._ledger.moved_forwards = MovedForwards(
                called_module(self.model),
                self._backwards,
                self._ascend_for_forward,
                self._look_back,
            )
        if self.model is not None and self.parts.compares is not None:
            ledger, ask = self._ledger, self._displacement_to_others
            self._ledger.compared_forwards = ComparedForwards(
                self.model,
                self._backwards,
                ledger.blocks,
                ledger.watch,
                ask,
                self.parts.compares[1].difference,
            )

    # What it shows -----------------------------------------------------------------------

    @property
    def parts(self) -> construction.Parts:
        """The answers to the five questions of a step."""
        return self._ledger.parts

    @property
    def policy(self) -> Policy:
        """When the second gradient is taken."""
        return self.parts.policy

    @property
    def needs_total_steps(self) -> bool:
        """Whether the length of the training was left out and must be told before a decision."""
        return self._ledger.total_left_out and self.last_step is None

    @property
    def needs_no_pass(self) -> bool:
        """Whether a trainer has nothing to do but to train as with any optimizer.

        So it is with methods of one gradient, and with a sub-batch's where the model's own forward
        takes it: trainers' helpers have no second pass to make for these.
        """
        one = self.parts.take_one_gradient and not self.parts.needs_losses
        return one or self._ascends_in_forward

    @property
    def sam_fraction(self) -> float:
        """The share of steps so far that took the second gradient, 0…1."""
        done = self._ledger.committed
        return done.sam_steps / done.step if done.step else 0.0

    @property
    def last_step(self) -> StepRecord | None:
        """What the last finished step saw and did; None before the first."""
        return self._ledger.last_step

    @property
    def skipped_steps(self) -> int:
        """Steps that were begun and left no trace: overflow, NaN, an exception in pass 2."""
        return self._ledger.skipped

    def __repr__(self) -> str:
        shown: dict[str, Any] = {
            **self.parts.by_name,
            "normalize": self.normalize,
            "nonfinite": self.nonfinite,
        }
        if self.replay:
            shown["replay"] = self._recording or True
        if self.max_norm is not None:
            shown["max_norm"] = self.max_norm
        if self.local_ascent:
            shown["local_ascent"] = True
        if self.compensate is not None:
            shown["compensate"] = self.compensate
        lines = [f"{name}: {value!r}" for name, value in shown.items()]
        body = "\n".join(f"    {line}" for line in lines + repr(self.base).splitlines())
        return f"{type(self).__name__} (\n{body}\n)"

    # Shared with the base optimizer ------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        groups = self.base.param_groups
        return dcp.named_groups(groups) if callers.asks_for_names() else groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        if callers.asks_for_names():
            return dcp.NamedState(self.base.state, list(self.parts.keep_tensors))
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
        self._hear_own_gradients()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters, as the base optimizer does."""
        self.base.zero_grad(set_to_none)
        ledger = self._ledger
        ledger.clear_gradients()
        self._hear_own_gradients()
        ledger.local.clear()
        self._backwards.clear()
        self._backwards.follow(self._parameters())
        if self._recording is not None and not ledger.blocks.are_displaced:
            self._recording.drop_finished()
        if ledger.block is None:
            if ledger.moved_forwards is not None:
                ledger.moved_forwards.no_forward_is_running()
            if ledger.compared_forwards is not None:
                ledger.compared_forwards.no_forward_is_running()
            if ledger.awaits_backward:
                return  # loops may clear between a forward and its backward
            if ledger.pending is not None and ledger.pending.ahead is None:
                ledger.discard()  # the direction is gone with the gradients
            elif ledger.pending is None:
                ledger.forget_first_pass()  # an accumulation that was under way begins anew

    def train(self) -> None:
        """Let a base with two sets of weights (schedule-free ones) go on training.

        Nothing happens with other bases. Accelerate and Transformers call it by themselves.
        """
        self._ledger.switch("train", bases.mode_switch(self.base, "train"))

    def eval(self) -> None:
        """Let a base with two sets of weights show those to evaluate and to save.

        Nothing happens with other bases; refused inside a pass.
        """
        self._ledger.switch("eval", bases.mode_switch(self.base, "eval"))

    def set_total_steps(self, total_steps: int) -> None:
        """Say how many optimizer steps the whole training has, where that was left out.

        Allowed until the first step is decided, and again after ``load_state_dict``. Methods that
        do not ask for it, which :attr:`needs_total_steps` tells, do not mind.

        Args:
            total_steps: a whole number from 1.
        """
        ledger, parts = self._ledger, self.parts
        ledger.ready_for("set_total_steps()")
        checks.whole("total_steps", total_steps, least=1)
        told = ledger.parts.with_total_steps(total_steps)
        before = parts.total_steps
        if told == parts:
            ledger.total_left_out = False
            return
        if ledger.last_step is not None or ledger.pending is not None:
            raise RuntimeError(
                f"set_total_steps({total_steps}) after the first step was decided with "
                f"total_steps={before}: say it before training, or load a checkpoint first"
            )
        if before is not None and ledger.committed.step:
            warnings.warn(
                f"the checkpoint was saved with total_steps={before}; this optimizer goes on with "
                f"total_steps={total_steps}",
                stacklevel=messages.frames_to_user(),
            )
        ledger.parts, ledger.total_left_out = told, False

    # Checkpointing and copying ------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state dict with ours in its ``state`` and ``param_groups``."""
        self._ledger.ready_for("state_dict()")
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        ours = (self.parts, self._displaced, self._ledger, self.base.param_groups)
        saved = checkpoint.pack(bases.state_dict_of(self.base), *ours)
        for hook in self._optimizer_state_dict_post_hooks.values():
            saved = hook(self, saved) or saved
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict of the same method; refused ones change nothing."""
        ledger = self._ledger
        ledger.ready_for("load_state_dict()")
        state_dict = copy.copy(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        given = self.parts.with_total_steps(None) if ledger.total_left_out else self.parts
        loaded = checkpoint.unpack(state_dict, given, self._displaced, self.base)
        ledger.parts = loaded.parts
        ledger.continue_from(loaded.committed, loaded.skipped)
        ledger.watch.start(self.model)
        for difference in loaded.differences:
            warnings.warn(difference, stacklevel=2)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        bases.check_copyable(self.base)
        plain = ("normalize", "nonfinite", "replay", "max_norm", "local_ascent", "compensate")
        kept = ("base", "model", *plain, "_ledger")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        later = {"replay": False, "max_norm": None, "local_ascent": False, "compensate": None}
        super().__setstate__({**later, **state})
        construction.keep_radius_on_load(self.base)
        self._watch()

    def _patch_step_function(self) -> None:
        # torch would run step hooks before the first pass, with nothing to clip yet; ours run
        # around the base optimizer's update.
        self._zero_grad_profile_name = f"Optimizer.zero_grad#{type(self).__name__}.zero_grad"

    # Helpers for the steps --------------------------------------------------------------

    @property
    def _displaced(self) -> checkpoint.Displaced:
        return {"normalize": self.normalize, "compensate": self.compensate}

    @property
    def _ascends_locally(self) -> bool:
        return self.local_ascent and not self.policy.never_fires

    @property
    def _ascends_in_forward(self) -> bool:
        """Whether the model's own training forward is the second pass of a step.

        The first, of some rows, is then made before it.
        """
        return self.replay and self.parts.always_pass_twice

    def _ascend_for_forward(self, model: nn.Module, args: Any, kwargs: Any) -> Displacement | None:
        """Where a training forward goes by the gradient of some of its rows, inside no block."""
        raise NotImplementedError

    def _look_back(self, away: Excursion) -> None:
        """See what the loop's own second pass found, at the end of its backward."""
        raise NotImplementedError

    def _excursion_for_forward(self, *_: Any) -> Excursion | None:
        """Where a training forward of the model goes; inside a block it is there already."""
        if self._ledger.block is not None:
            return None
        moved = excursion_before_pass(
            self.parts, self.base, self.normalize, self.model, self._ledger
        )
        return moved or Displacement(NOWHERE, self.normalize, None, self._ledger.workspace)

    def _displacement_to_others(self) -> Displacement | None:
        """The way to weights whose outputs are compared with the model's; None if none are now."""
        with torch.no_grad():
            found = other_weights(self.parts, self.base, self._ledger.committed)
        if found is None:
            return None
        return Displacement(found, self.normalize, self.model, self._ledger.workspace)

    def _hear_own_gradients(self) -> None:
        if self._ascends_locally:
            self._ledger.local.listen_to(self.param_groups)

    def _default_radius(self) -> float:
        return self.defaults.get("rho", 0.05)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.base.param_groups for p in group["params"]]

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for group in self.base.param_groups for p in group["params"])

    def _clear_gradients(self) -> None:
        for group in self.base.param_groups:
            for p in group["params"]:
                p.grad = None

    def _devices(self) -> set[torch.device]:
        return {p.device for group in self.base.param_groups for p in group["params"]}

    def _warn_once(self, text: str, about: str | None = None) -> None:
        key = text if about is None else about
        if key not in self._ledger.warned:
            self._ledger.warned.add(key)
            warnings.warn(text, stacklevel=messages.frames_to_user())
