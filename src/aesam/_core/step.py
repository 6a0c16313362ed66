"""The five choices that make a method, and the step they make together."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from aesam._core import messages, tensors
from aesam._core.displacement import Displacement
from aesam._core.ledger import Committed, Ledger, Pending, SecondPass, StepRecord
from aesam.parts import gradient
from aesam.parts.ascents import Ascent
from aesam.parts.between import Between, Lesson
from aesam.parts.combine import Combine
from aesam.parts.gradient import Gradient
from aesam.parts.part import Axis
from aesam.parts.policies import Decision, Observation, Policy
from aesam.parts.samples import Samples


@dataclass(frozen=True)
class Parts:
    """One choice for each question of a step; none of them knows of the others."""

    policy: Policy
    ascent: Ascent
    samples: Samples
    between: Between
    combine: Combine

    @property
    def by_name(self) -> dict[str, Axis]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def method(self) -> str:
        """The method's name in checkpoints: the classes of its parts."""
        return "/".join(type(axis).__name__ for axis in self.by_name.values())

    @property
    def keep_first_gradient(self) -> bool:
        return self.between.needs_first_gradient or self.combine.needs_first_gradient

    @cached_property
    def replays(self) -> bool:
        """Whether the random state before the first pass may be needed again."""
        return not self.policy.never_fires or self.move_before_pass

    @cached_property
    def move_before_pass(self) -> bool:
        return any(type(a).before_pass is not Axis.before_pass for a in self.by_name.values())

    @cached_property
    def act_after_base_step(self) -> bool:
        own = Axis.after_base_step
        return any(type(a).after_base_step is not own for a in self.by_name.values())


def decide(
    parts: Parts, done: Committed, measured: Gradient, random: Any, losses: Tensor | None
) -> tuple[Pending, Decision]:
    """Ask the policy; without a second gradient, make ``d`` of the first at once."""
    drawn = _generators_at(done)
    now = Observation(done.step, measured.squared_norm, drawn.get("policy"))
    decision, policy_state = _answer(parts.policy, parts.policy.decide(now, dict(done.policy)))
    use_sam = bool(decision.use_sam)
    after = Committed(
        policy=policy_state,
        generators=done.generators,
        ascent=parts.ascent.observe(measured, done.ascent),
        between=done.between,
        step=done.step + 1,
        sam_steps=done.sam_steps + use_sam,
    )
    record = StepRecord(
        done.step,
        use_sam,
        measured.squared_norm,
        decision.mean,
        decision.std,
        decision.threshold,
    )
    pending = Pending(after, record, drawn, scale=measured.scale)
    if use_sam:
        pending.ahead = SecondPass(measured, versions_of(measured), random, losses)
    else:
        parts.between.adjust(measured, done.between)
    return pending, decision


def _answer(policy: Policy, answer: Any) -> tuple[Decision, dict[str, float]]:
    """What ``decide`` returned, if it is what can be acted on and saved."""
    name = type(policy).__name__
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Decision)):  # pyright: ignore
        raise TypeError(f"{name}.decide must return (Decision(...), state), got {answer!r}")
    decision, state = cast(tuple[Decision, dict[str, float]], answer)
    if not state and type(policy).start is Policy.start:
        return decision, state
    if state.keys() != policy.start().keys() or not all(map(_is_number, state.values())):
        raise TypeError(
            f"{name}.decide must return a state of finite numbers under the keys of start(), "
            f"{sorted(policy.start())}, got {state!r}"
        )
    return decision, state


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def keep_first(parts: Parts, first: Gradient, room: tensors.Room) -> Gradient:
    """The first gradient without its tensors, or with copies where a part needs them later.

    Copies, because ``p.grad`` may be a view that the second backward writes into again.
    """
    if not parts.keep_first_gradient:
        return first.with_values([])
    copies = room.take(first.params, first.values)
    tensors.assign(copies, first.values)
    return first.with_values(copies)


def finish_second_pass(
    parts: Parts, state: Ledger, pending: Pending, first: Gradient, params: list[Tensor]
) -> None:
    """Make ``d`` of both gradients, in place; one transfer to the host says if it is finite."""
    second = gradient.gradients_of(params)
    lesson = parts.between.learn(first, params, second, state.room)
    total, numbers = _fetch(params, second, lesson, pending.norm_at_ascent)
    pending.norm_of_second = total
    if pending.norm_at_ascent is not None:
        _refuse_other_scale(numbers.pop(), first)
    if not math.isfinite(total):
        pending.after = None
    elif pending.after is not None:
        if lesson is not None:
            kept = parts.between.remember(lesson, numbers, state.committed.between)
            pending.after = replace(pending.after, between=kept)
        pending.carried = parts.combine.combine(first, params, second)
    if first.values:
        state.room.give(first.params, first.values)


def _refuse_other_scale(norm_at_ascent: float, first: Gradient) -> None:
    """``scaler.unscale_`` writes to the gradients without counting up their versions."""
    measurable = 0.0 < norm_at_ascent < math.inf
    if measurable and not math.isclose(norm_at_ascent, first.norm * first.scale, rel_tol=1e-3):
        raise RuntimeError(messages.CHANGED_GRADIENTS)


def was_changed(ahead: SecondPass) -> bool:
    """Whether other gradients than those decided on are in ``p.grad``; none there is no change."""
    now = [p.grad for p in ahead.gradient.params]
    replaced = any(
        g is not None and g is not v for g, v in zip(now, ahead.gradient.values, strict=True)
    )
    return replaced or versions_of(ahead.gradient) != ahead.versions


def versions_of(measured: Gradient) -> list[int]:
    """Counts up whenever a gradient is written to, so a change behind our back is noticed."""
    return [g._version for g in measured.values]  # pyright: ignore[reportPrivateUsage]


def end_of(generators: Mapping[str, torch.Generator]) -> dict[str, Tensor]:
    return {name: drawn.get_state() for name, drawn in generators.items()}


def displacement_before_pass(
    parts: Parts, base: torch.optim.Optimizer, normalize: bool, model: Any, room: tensors.Room
) -> Displacement | None:
    """The move that a part asks for before the first pass; at most one may."""
    asked = [d for axis in parts.by_name.values() if (d := axis.before_pass(base)) is not None]
    if len(asked) > 1:
        raise RuntimeError("two parts want to move the weights before the first pass: use one")
    return Displacement(asked[0], normalize, model, room) if asked else None


def _generators_at(done: Committed) -> dict[str, torch.Generator]:
    """Generators to draw this step from; the committed states stay as they are."""
    drawn: dict[str, torch.Generator] = {}
    for name, state in done.generators.items():
        drawn[name] = torch.Generator()
        drawn[name].set_state(state)
    return drawn


def _fetch(
    params: list[Tensor], second: list[Tensor], lesson: Lesson | None, ascent: Tensor | None
) -> tuple[float, list[float]]:
    """``‖g_s‖``, then the lesson's numbers, then the norm at the ascent: in one transfer."""
    total = tensors.norm(second, params).reshape(1)
    wanted = [total]
    wanted += [lesson.numbers.to(total)] if lesson is not None else []
    wanted += [ascent.reshape(1).to(total)] if ascent is not None else []
    norm, *numbers = tensors.to_host(torch.cat(wanted))
    if not math.isfinite(norm):  # beyond float32's squares, perhaps: look again
        norm = math.hypot(*tensors.norms(second))
    return norm, numbers
