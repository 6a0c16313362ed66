"""One step of the five parts together: decide, make ``d`` of one gradient or of two, apply."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from aesam._core import messages, tensors
from aesam._core.guards import Displacement, RandomState
from aesam._core.ledger import Committed, Ledger, Pending, SecondPass, StepRecord
from aesam._core.tensors import Workspace
from aesam.parts.ascents import Ascent
from aesam.parts.between import Between
from aesam.parts.combine import Combine
from aesam.parts.part import Gradient, Memory, MemoryPart, Part, gradients_of
from aesam.parts.policies import Decision, Observation, Policy
from aesam.parts.samples import Samples


@dataclass(frozen=True)
class Parts:
    """One answer to each question of a step; none of them knows of the others."""

    policy: Policy
    ascent: Ascent
    samples: Samples
    between: Between
    combine: Combine

    @cached_property
    def by_name(self) -> dict[str, Part]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def with_memory(self) -> dict[str, MemoryPart]:
        return {n: part for n, part in self.by_name.items() if isinstance(part, MemoryPart)}

    @property
    def method(self) -> str:
        """The method's name in checkpoints: the classes of its parts."""
        return "/".join(type(part).__name__ for part in self.by_name.values())

    @cached_property
    def keep_first_gradient(self) -> bool:
        return any(part.needs_first_gradient for part in self.with_memory.values())

    @cached_property
    def observers(self) -> dict[str, MemoryPart]:
        return {n: p for n, p in self.with_memory.items() if _defines(p, MemoryPart, "observe")}

    @cached_property
    def learners(self) -> dict[str, MemoryPart]:
        return {n: p for n, p in self.with_memory.items() if _defines(p, MemoryPart, "learn")}

    @cached_property
    def replays(self) -> bool:
        """Whether the random state before the first pass may be needed again."""
        return not self.policy.never_fires or self.move_before_pass

    @cached_property
    def move_before_pass(self) -> bool:
        return any(_defines(part, Part, "before_pass") for part in self.by_name.values())

    @cached_property
    def after_base_step(self) -> dict[str, Part]:
        return {n: p for n, p in self.by_name.items() if _defines(p, Part, "after_base_step")}


def _defines(part: Part, base: type[Part], method: str) -> bool:
    """Whether the part has a method of its own where the base does nothing."""
    return getattr(type(part), method) is not getattr(base, method)


# Decide ------------------------------------------------------------------------------------


def decide(
    parts: Parts,
    done: Committed,
    measured: Gradient,
    loss: float | None,
    random: RandomState | None,
    losses: Tensor | None,
) -> tuple[Pending, Decision]:
    """Ask the policy, and say what taking the step would commit."""
    drawn = _generators_at(done)
    now = Observation(done.step, measured.squared_norm, drawn.get("policy"), loss)
    decision, policy_state = _answer(parts.policy, parts.policy.decide(now, dict(done.policy)))
    use_sam = bool(decision.use_sam)
    seen = {n: part.observe(measured, done.memory(n)) for n, part in parts.observers.items()}
    after = Committed(
        policy=policy_state,
        generators=done.generators,
        memories={**done.memories, **seen},
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
    return pending, decision


def _generators_at(done: Committed) -> dict[str, torch.Generator]:
    """Generators to draw this step from; the committed states stay as they are."""
    drawn: dict[str, torch.Generator] = {}
    for name, state in done.generators.items():
        drawn[name] = torch.Generator()
        drawn[name].set_state(state)
    return drawn


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


def mean_over_processes(loss: Tensor, model: Any) -> Tensor:
    """The loss that all processes agree on, still on the device.

    Over the group of a model in DDP, else over all processes where there are several.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return loss
    group = getattr(model, "process_group", None)
    total = loss.detach().clone()
    torch.distributed.all_reduce(total, group=group)  # pyright: ignore[reportUnknownMemberType]
    return total / torch.distributed.get_world_size(group)


# A step without a second gradient ------------------------------------------------------------


def adjust(parts: Parts, done: Committed, measured: Gradient, pending: Pending) -> None:
    """Make ``d`` of the first gradient, in place."""
    drawn = pending.generators.get("between")
    parts.between.adjust(measured, done.memory("between"), drawn)


# A step with one -----------------------------------------------------------------------------


def displacement_before_pass(
    parts: Parts, base: torch.optim.Optimizer, normalize: bool, model: Any, workspace: Workspace
) -> Displacement | None:
    """The move that a part asks for before the first pass; at most one may."""
    asked = [d for part in parts.by_name.values() if (d := part.before_pass(base)) is not None]
    if len(asked) > 1:
        raise RuntimeError("two parts want to move the weights before the first pass: use one")
    return Displacement(asked[0], normalize, model, workspace) if asked else None


def awaiting_second_pass(pending: Pending | None) -> tuple[Pending, SecondPass]:
    """What was decided and is still to be done, or an error that says what to call instead."""
    if pending is None:
        raise RuntimeError(messages.UNDECIDED)
    if pending.ahead is None:
        raise RuntimeError(messages.NO_SECOND_PASS)
    if _was_changed(pending.ahead):
        raise RuntimeError(messages.CHANGED_GRADIENTS)
    return pending, pending.ahead


def _was_changed(ahead: SecondPass) -> bool:
    """Whether other gradients than those decided on are in ``p.grad``; none there is no change."""
    now = [p.grad for p in ahead.gradient.params]
    replaced = any(
        g is not None and g is not v for g, v in zip(now, ahead.gradient.values, strict=True)
    )
    return replaced or versions_of(ahead.gradient) != ahead.versions


def versions_of(measured: Gradient) -> list[int]:
    """Counts up whenever a gradient is written to, so a change behind our back is noticed."""
    return [g._version for g in measured.values]  # pyright: ignore[reportPrivateUsage]


def ascend(
    parts: Parts, ledger: Ledger, pending: Pending, ahead: SecondPass, normalize: bool, model: Any
) -> tuple[Gradient, Displacement]:
    """Keep what the parts need of the first gradient, and say where to go."""
    pending.ahead, measured = None, ahead.gradient
    if measured.scale != 1.0:
        pending.norm_at_ascent = tensors.norm(measured.values)
    first = _keep_first(parts, measured, ledger.workspace)
    direction = parts.ascent.direction(
        measured, ledger.committed.memory("ascent"), pending.generators.get("ascent")
    )
    return first, Displacement(direction, normalize, model, ledger.workspace)


def _keep_first(parts: Parts, first: Gradient, workspace: Workspace) -> Gradient:
    """The first gradient without its tensors, or with copies where a part needs them later.

    Copies, because ``p.grad`` may be a view that the second backward writes into again.
    """
    if not parts.keep_first_gradient:
        return first.with_values([])
    copies = workspace.take(first.params, first.values)
    tensors.assign(copies, first.values)
    return first.with_values(copies)


def finish_second_pass(
    parts: Parts, ledger: Ledger, pending: Pending, first: Gradient, params: list[Tensor]
) -> None:
    """Make ``d`` of both gradients, in place; one transfer to the host says if it is finite."""
    second, done = gradients_of(params), ledger.committed
    before = {name: done.memory(name) for name in parts.learners}
    learned = {
        name: part.learn(first, params, second, before[name], ledger.workspace)
        for name, part in parts.learners.items()
    }
    total, learned, at_ascent = _fetch(params, second, learned, pending.norm_at_ascent)
    pending.norm_of_second = total
    if at_ascent is not None:
        _refuse_other_scale(at_ascent, first)
    if not math.isfinite(total):
        pending.after = None
    elif pending.after is not None:
        pending.after = replace(pending.after, memories={**pending.after.memories, **learned})
        pending.released = [_let_go(before[n], memory) for n, memory in learned.items()]
        pending.carried = parts.combine.combine(
            first, params, second, done.memory("combine"), pending.generators.get("combine")
        )
    if first.values:
        ledger.workspace.give(first.params, first.values)


def _let_go(before: Memory, after: Memory) -> Memory:
    """What of a memory is not kept on."""
    kept = set(map(id, after.tensors.values()))
    return Memory({}, {p: t for p, t in before.tensors.items() if id(t) not in kept})


def _fetch(
    params: list[Tensor],
    second: list[Tensor],
    learned: Mapping[str, Memory],
    ascent: Tensor | None,
) -> tuple[float, dict[str, Memory], float | None]:
    """``‖g_s‖``, the numbers that were learned and the norm at the ascent, in one transfer."""
    total = tensors.norm(second, params).reshape(1)
    asked = [v for m in learned.values() for v in m.values.values() if isinstance(v, Tensor)]
    wanted = [*asked, *([] if ascent is None else [ascent])]
    norm, *found = tensors.to_host(torch.cat([total, *(n.reshape(1).to(total) for n in wanted)]))
    if not math.isfinite(norm):  # beyond float32's squares, perhaps: look again
        norm = math.hypot(*tensors.norms(second))
    numbers = iter(found)

    def known(values: Mapping[str, float | Tensor]) -> dict[str, float | Tensor]:
        return {k: next(numbers) if isinstance(v, Tensor) else v for k, v in values.items()}

    fetched = {name: replace(m, values=known(m.values)) for name, m in learned.items()}
    return norm, fetched, None if ascent is None else found[-1]


def _refuse_other_scale(norm_at_ascent: float, first: Gradient) -> None:
    """``scaler.unscale_`` writes to the gradients without counting up their versions."""
    measurable = 0.0 < norm_at_ascent < math.inf
    if measurable and not math.isclose(norm_at_ascent, first.norm * first.scale, rel_tol=1e-3):
        raise RuntimeError(messages.CHANGED_GRADIENTS)


# The end of a step ---------------------------------------------------------------------------


def check_unscaled(pending: Pending, groups: list[dict[str, Any]]) -> None:
    """What the base is about to apply must be unscaled, once, after the second pass."""
    if pending.scale == 1.0:
        scaler = messages.scaler_above()
        if scaler is not None and scaler.get_scale() != 1.0:
            raise RuntimeError(messages.SCALE_NOT_GIVEN)
    elif pending.norm_of_second > 0.0 and pending.scale >= 4.0:
        params = dict.fromkeys(p for group in groups for p in group["params"])
        now = tensors.norm_on_host(gradients_of(params))
        if now > pending.norm_of_second / 2.0:
            raise RuntimeError(messages.STILL_SCALED)


def end_of(generators: Mapping[str, torch.Generator]) -> dict[str, Tensor]:
    return {name: drawn.get_state() for name, drawn in generators.items()}
