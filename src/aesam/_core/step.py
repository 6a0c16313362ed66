"""How a step is decided and made of the parts, call by call.

Their order is in :mod:`aesam.optimizer`; what a step changes in :mod:`aesam._core.ledger`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from aesam._core import callers, messages, tensors
from aesam._core.blocks import Block
from aesam._core.bystanders import Bystanders
from aesam._core.closures import Perturbed
from aesam._core.construction import Parts
from aesam._core.guards import Displacement, RandomState
from aesam._core.health import Sighting, Sightings
from aesam._core.ledger import Committed, Decided, Ledger, Pending, SecondPass, StepRecord
from aesam._core.tensors import Measured, Workspace
from aesam.parts import checks
from aesam.parts.ascents import Ascent
from aesam.parts.part import (
    Direction,
    Draws,
    Excursion,
    Gradient,
    Memory,
    Part,
    Present,
    places_of,
)
from aesam.parts.policies import Decision, Observation, answer_of

# Decide ------------------------------------------------------------------------------------


def measure(
    parts: Parts,
    present: Present,
    scale: float,
    ledger: Ledger,
    loss: Tensor | None,
    drift: Tensor | None,
    wait: bool,
) -> tuple[Gradient, Measured]:
    """The gradient and its numbers, left on the device where nobody needs them before the second.

    Whoever finds the norm out of float32's range looks again while the gradient is there. Later is
    too late: so more bits are used at once.
    """
    params, values, radii, groups = present
    wait = wait or not parts.ascend_on_device or not values or tensors.is_here(values[0])
    wait = wait or not tensors.has_wide_numbers(values[0]) or any(v.is_sparse for v in values)
    each = parts.needs_norm_of_each and wait
    numbers = Measured(values, each, scale, late=not wait, loss=loss, drift=drift)
    gradient = Gradient(
        params,
        values,
        radii,
        numbers,
        scale,
        norms=numbers.norms if wait else (),
        groups=groups,
        workspace=ledger.workspace,
    )
    return gradient, numbers


def is_sound(numbers: Measured, scale: float) -> bool:
    """Whether the gradient is finite; one that was changed after its backward is refused."""
    if numbers.number("drift"):
        unscaled = scale != 1.0
        raise RuntimeError(messages.UNSCALED_BEFORE if unscaled else messages.EDITED_GRADIENTS)
    norm, loss = numbers.norm, numbers.number("loss")
    return math.isfinite(norm * norm) and math.isfinite(loss or 0.0)


def may_go_on(pending: Pending, numbers: Measured) -> bool:
    """Whether the gradient is finite, as far as is known where a second one is to come.

    Without one, this is the only time that the host waits.
    """
    pending.numbers = numbers
    if not numbers.is_known and (pending.ahead is None or not pending.ahead.ascends):
        numbers.fetch()
        if pending.record is not None:
            known = numbers.norm * numbers.norm
            pending.record = replace(pending.record, squared_norm=known)
        return is_sound(numbers, pending.scale)
    return True


def may_compare(pending: Pending) -> bool:
    """Whether another gradient could be the same as the first: not where that is not finite."""
    return pending.numbers is None or is_sound(pending.numbers, pending.scale)


def decide(
    parts: Parts,
    done: Committed,
    measured: Gradient,
    numbers: Measured,
    random: RandomState | None,
    losses: Tensor | None,
    compensate: float | None,
    drawn: dict[str, torch.Generator] | None = None,
) -> tuple[Pending, Decision]:
    """Ask the policy, and say what taking the step would commit.

    ``drawn`` are the generators where the first pass has drawn from them.
    """
    drawn = _generators_at(done) if drawn is None else drawn
    squared_norm = measured.squared_norm if numbers.is_known else math.nan
    loss = numbers.number("loss") if numbers.is_known else None
    of_members = {n.partition(".")[2]: g for n, g in drawn.items() if n.startswith("policy.")}
    now = Observation(done.step, squared_norm, drawn.get("policy"), loss, of_members)
    decision, policy_state = answer_of(parts.policy, now, done.policy)
    use_sam = bool(decision.use_sam)
    seen = {n: part.observe(measured, done.memory(n)) for n, part in parts.observers.items()}
    after = Committed(
        policy=policy_state,
        generators=done.generators,
        memories={**done.memories, **seen},
        step=done.step + 1,
        sam_steps=done.sam_steps + use_sam,
    )
    why = (decision.mean, decision.std, decision.threshold)
    factor = _radius_factor(after, compensate)
    record = StepRecord(done.step, use_sam, squared_norm, *why, factor if use_sam else None)
    pending = Pending(after, record, drawn, scale=measured.scale)
    # Those of a part that also learns are let go when it has.
    observed = [n for n in seen if n not in parts.learners]
    pending.released = [_let_go(done.memory(n), seen[n]) for n in observed]
    if use_sam or parts.always_pass_twice:
        pending.ahead = SecondPass(measured, versions_of(measured), random, losses, use_sam, factor)
    return pending, decision


def _radius_factor(after: Committed, compensate: float | None) -> float:
    """One over the share of steps with a second gradient, up to the bound; 1 without one.

    The step that is decided counts, so the first has the factor 1 and none divides by zero.
    """
    if compensate is None or not after.sam_steps:
        return 1.0
    return min(compensate, after.step / after.sam_steps)


def _generators_at(done: Committed) -> dict[str, torch.Generator]:
    """Generators to draw this step from; the committed states stay as they are."""
    drawn: dict[str, torch.Generator] = {}
    for name, state in done.generators.items():
        drawn[name] = torch.Generator()
        drawn[name].set_state(state)
    return drawn


def copied(drawn: dict[str, torch.Generator] | None) -> dict[str, torch.Generator] | None:
    """Generators that go on from where these are; None where nothing was drawn yet."""
    return None if drawn is None else {n: g.clone_state() for n, g in drawn.items()}


def loss_for_policy(
    parts: Parts,
    loss: float | Tensor | None,
    losses: Tensor | None,
    devices: Callable[[], set[torch.device]],
    model: Any,
) -> Tensor | None:
    """The loss at ``w``, the same on all processes; None where nobody asks or has it."""
    if not parts.policy.looks_at_loss:
        return None
    own = losses.mean() if loss is None and losses is not None else loss
    if own is None:
        return None
    if not isinstance(own, Tensor):
        own = torch.tensor(checks.real("loss", own, "a number or a tensor with one"))
        own = own.to(next(iter(devices())))  # where processes can average it
    if own.numel() != 1:
        raise ValueError(f"loss must be one number, got a tensor of shape {tuple(own.shape)}")
    return mean_over_processes(own.reshape(()), model)


def one_loss(told: object) -> Tensor | None:
    """What a closure returned, if it is one number; left on its device."""
    if isinstance(told, Tensor):
        return told.detach() if told.numel() == 1 else None
    return torch.tensor(float(told)) if isinstance(told, Real) else None


def mean_over_processes(loss: Tensor, model: Any) -> Tensor:
    """The loss that all processes agree on, still on the device.

    Over the group of a model in DDP, else over all processes where there are several.
    """
    mean = loss.detach().clone()
    tensors.average_over_processes([mean], getattr(model, "process_group", None))
    return mean


# A step without a second gradient ------------------------------------------------------------


def adjust(parts: Parts, done: Committed, measured: Gradient, pending: Pending) -> None:
    """Make ``d`` of the first gradient, in place; one that is not finite is not applied."""
    drawn = pending.generators.get("between")
    try:
        parts.between.adjust(measured, done.memory("between"), drawn)
    except FloatingPointError:
        pending.after = None


# A step with one -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SecondGradient:
    """What making ``d`` needs when a second pass is over."""

    pending: Pending
    first: Gradient
    bystanders: Bystanders
    displacement: Displacement | None
    at: Perturbed

    def look(self, sightings: Sightings, comparable: bool) -> None:
        """See, still at ``w + ε``, what the pass found; ``comparable`` where it was of all rows."""
        sighting = self.pending.sighting
        if sighting is None:
            return
        sightings.end(sighting)
        told = self.at.loss
        if comparable and sighting.loss_at_w is not None and told is not None:
            sighting.loss_away = torch.as_tensor(told).detach()
        else:
            sighting.loss_at_w = None
        if self.displacement is not None and sightings.wants_angle:
            grads = {id(p): p.grad for p in self.first.params if p.grad is not None}
            found = self.displacement.along(grads)
            if found is not None:
                sighting.product, sighting.length = found


def excursion_before_pass(
    parts: Parts, base: torch.optim.Optimizer, normalize: bool, model: Any, ledger: Ledger
) -> Excursion | None:
    """Where a part wants the first pass to be made; at most one may."""
    done = ledger.committed
    if ledger.drawn is None:
        ledger.drawn = _generators_at(done)
    with torch.no_grad():
        found = [
            _before_pass(part, base, model, done.memory(name), ledger.drawn.get(name))
            for name, part in parts.movers.items()
        ]
    asked = [place for place in found if place is not None]
    if len(asked) > 1:
        raise RuntimeError("two parts want to move the weights before the first pass: use one")
    place = asked[0] if asked else None
    if isinstance(place, Direction):
        return Displacement(place, normalize, model, ledger.workspace)
    return place


def _before_pass(
    part: Part, base: torch.optim.Optimizer, model: Any, memory: Memory, drawn: Draws
) -> Direction | Excursion | None:
    found = part.before_pass(base, memory, drawn)
    if not isinstance(found, Gradient):
        return found
    if not isinstance(part, Ascent):
        raise TypeError(f"before_pass of {part!r} must return a Direction: it is no ascent")
    return part.direction(_placed(part, found, model), memory, drawn)


def _placed(ascent: Ascent, along: Gradient, model: Any) -> Gradient:
    """With the places of its parameters in the model, where the ascent looks at them."""
    if not ascent.needs_places or model is None:
        return along
    return along.changed(places=places_of(along.params, model))


def other_weights(parts: Parts, base: torch.optim.Optimizer, done: Committed) -> Direction | None:
    """The way to the weights that a part compares the model's outputs with; None if none are."""
    if parts.compares is None:
        return None
    name, part = parts.compares
    memory = done.memory(name)
    return part.other_weights(base, memory) if part.compares_now(memory) else None


def look_back(
    sighting: Sighting, displacement: Displacement, sightings: Sightings, params: list[Tensor]
) -> None:
    """See, still at ``w + ε``, what the loop's own second pass found.

    What comes before ``step()``, clipping and unscaling, may change its length.
    """
    grads = {id(p): p.grad for p in params if p.grad is not None}
    found = displacement.along(grads) if sightings.wants_angle else None
    if found is not None:
        sighting.product, sighting.length = found
        sighting.second = tensors.norm(list(grads.values()))


def displace(block: Block, excursion: Excursion | None) -> None:
    """Move the weights within the block; they are back to the bit after it."""
    if excursion is not None:
        block.is_displaced = True
        block.will(excursion.restore)
        excursion.move()


def awaiting_second_pass(pending: Pending | None) -> Decided:
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
    both = zip(ahead.gradient.params, ahead.gradient.values, strict=True)
    replaced = any(p.grad is not v and p.grad is not None for p, v in both)
    return replaced or versions_of(ahead.gradient) != ahead.versions


def versions_of(measured: Gradient) -> list[int]:
    """Counts up whenever a gradient is written to, so a change behind our back is noticed."""
    return tensors.versions(measured.values)


def ascend(
    parts: Parts, ledger: Ledger, pending: Pending, ahead: SecondPass, normalize: bool, model: Any
) -> tuple[Gradient, Displacement | None]:
    """Keep what the parts need of the first gradient, and say where to go."""
    pending.ahead, measured = None, ahead.gradient
    if measured.scale != 1.0:
        pending.norm_at_ascent = tensors.norm(measured.values)
    first = _keep_first(parts, measured, ledger.workspace)
    if pending.numbers is not None:
        pending.numbers.let_go()
    if not ahead.ascends:
        return first, None
    along = ledger.local.instead_of(measured, parts.needs_norm_of_each)
    along = _placed(parts.ascent, along, model)
    done = ledger.committed
    known = (pending.after or done) if parts.ascent.looks_at_observed else done
    direction = parts.ascent.direction(
        along, known.memory("ascent"), pending.generators.get("ascent")
    )
    if ahead.radius_factor != 1.0:
        direction = replace(direction, gain=direction.gain * ahead.radius_factor)
    if measured.is_late:
        direction = _where_finite(direction, measured)
    own = direction.vectors is along.values  # which the second backward does not need
    return first, Displacement(direction, normalize, model, ledger.workspace, overwrite=own)


def _where_finite(direction: Direction, measured: Gradient) -> Direction:
    """The same without a length where the gradient is not finite, which the host cannot say yet.

    An ascent along some of the tensors, or along an average, may have one.
    """
    length, total = direction.length, torch.as_tensor(measured.length)
    length = length.to(total) if isinstance(length, Tensor) else length * torch.ones_like(total)
    return replace(direction, length=torch.where(total.isfinite(), length, math.nan))


def _keep_first(parts: Parts, first: Gradient, workspace: Workspace) -> Gradient:
    """The first gradient without its tensors, or with copies where a part needs them later.

    Copies, because ``p.grad`` may be a view that the second backward writes into again.
    """
    if not parts.keep_first_gradient:
        return first.with_values([])
    copies = workspace.take(first.params, first.values)
    tensors.assign(copies, first.values)
    return first.with_values(copies)


def check_micro_batches(first: int | None, second: int) -> None:
    """Both passes must be of the same micro-batches; where none was counted, nothing is known."""
    if first and first != second:
        raise RuntimeError(messages.OTHER_MICRO_BATCHES.format(first=first, second=second))


def check_splits(splits: int, backwards: int) -> None:
    """A gradient of several splits has a backward for each; where none was counted, it may be."""
    if splits > 1 and backwards not in (0, splits):
        raise RuntimeError(messages.OTHER_SPLITS.format(splits=splits, found=backwards))


def finish_second_pass(
    parts: Parts,
    ledger: Ledger,
    pending: Pending,
    first: Gradient,
    params: list[Tensor],
    second: list[Tensor],
) -> None:
    """Make ``d`` of both gradients, in place; one transfer to the host says if it is finite.

    It brings what is not yet known of the first, too.
    """
    numbers = pending.numbers
    late = numbers if numbers is not None and not numbers.is_known else None
    if late is not None and not parts.finish_on_device:
        late.fetch()
    if numbers is not None and numbers.is_known and not is_sound(numbers, first.scale):
        _leave_out(ledger, pending, first, second)
        return
    done = ledger.committed
    seen = pending.after or done  # after `observe`, which every step calls
    learned = {
        name: part.learn(first, params, second, seen.memory(name), ledger.workspace)
        for name, part in parts.learners.items()
    }
    sighting = pending.sighting or Sighting()
    looks = sighting.product is not None
    asked = [
        *([] if pending.norm_at_ascent is None else [pending.norm_at_ascent]),
        *([tensors.norm(second, params)] if looks else []),
        *sighting.numbers(),
    ]
    pending.carried["combine"] = parts.combine.combine(
        first, params, second, done.memory("combine"), pending.generators.get("combine")
    )
    total, learned, found = _fetch(params, second, learned, asked, late)
    if late is not None and not is_sound(late, first.scale):
        _leave_out(ledger, pending, first, second)
        return
    pending.norm_of_direction = total
    if pending.record is not None:
        pending.record = replace(pending.record, squared_norm=first.squared_norm)
    if pending.norm_at_ascent is not None:
        _refuse_other_scale(found.pop(0), first)
    of_second = found.pop(0) / first.scale if looks else 0.0
    if pending.sighting is not None:  # else this pass was made at w
        pending.seen = sighting.fetched(found, first.norm, of_second)
    if not math.isfinite(total):
        pending.after = None
    elif pending.after is not None:
        kept = {
            name: parts.learners[name].settle(memory, first, seen.memory(name))
            for name, memory in learned.items()
        }
        pending.after = replace(pending.after, memories={**pending.after.memories, **kept})
        pending.released += [
            gone
            for name, memory in kept.items()
            for gone in (
                _let_go(done.memory(name), memory),
                _let_go(learned[name], memory, done.memory(name)),
            )
        ]
    if first.values:
        ledger.workspace.give(first.params, first.values)


def _leave_out(ledger: Ledger, pending: Pending, first: Gradient, second: list[Tensor]) -> None:
    """Do not take the step, and leave in ``p.grad`` what tells a loss scaler why."""
    pending.after = None
    tensors.scale(second, math.nan)
    if first.values:
        ledger.workspace.give(first.params, first.values)


def _let_go(memory: Memory, *others: Memory) -> dict[Tensor, Tensor]:
    """The tensors of a memory that are in none of the others."""
    kept = {id(t) for other in others for t in other.tensors.values()}
    if kept.isdisjoint(map(id, memory.tensors.values())):
        return dict(memory.tensors)
    return {p: t for p, t in memory.tensors.items() if id(t) not in kept}


def _fetch(
    params: list[Tensor],
    second: list[Tensor],
    learned: Mapping[str, Memory],
    beside: list[Tensor],
    late: Measured | None,
) -> tuple[float, dict[str, Memory], list[float]]:
    """``‖d‖``, the numbers that were learned, those ``beside`` them and late ones: one transfer."""
    total = tensors.norm(second, params).reshape(1)
    asked = [v for m in learned.values() for v in m.values.values() if isinstance(v, Tensor)]
    of_first = [] if late is None else [late.vector]
    wanted = [total, *(n.reshape(1) for n in (*asked, *beside)), *of_first]
    norm, *found = tensors.to_host(torch.cat([n.to(total.device) for n in wanted]))
    if late is not None:
        count = late.vector.numel()
        late.take(found[-count:])
        found = found[:-count]
    if not math.isfinite(norm):  # beyond float32's squares, perhaps: look again
        norm = math.hypot(*tensors.norms(second))
    numbers = iter(found)

    def known(values: Mapping[str, float | Tensor]) -> dict[str, float | Tensor]:
        return {k: next(numbers) if isinstance(v, Tensor) else v for k, v in values.items()}

    fetched = {name: replace(m, values=known(m.values)) for name, m in learned.items()}
    return norm, fetched, found[len(asked) :]


def _refuse_other_scale(norm_at_ascent: float, first: Gradient) -> None:
    """``scaler.unscale_`` writes to the gradients without counting up their versions."""
    measurable = 0.0 < norm_at_ascent < math.inf
    if measurable and not math.isclose(norm_at_ascent, first.norm * first.scale, rel_tol=1e-3):
        raise RuntimeError(messages.CHANGED_GRADIENTS)


# The end of a step ---------------------------------------------------------------------------


def before_base_step(
    parts: Parts, ledger: Ledger, pending: Pending, base: torch.optim.Optimizer
) -> None:
    """Let the parts prepare what they do after the base's update, and what they then remember."""
    after = pending.after
    if after is None:
        return
    memories = dict(after.memories)
    for name, part in parts.before_base_step.items():
        before = after.memory(name)
        pending.carried[name], memories[name] = part.before_base_step(
            base, before, pending.generators.get(name), ledger.workspace
        )
        pending.released.append(_let_go(before, memories[name]))
    pending.after = replace(after, memories=memories)


def check_unscaled(pending: Pending, base: torch.optim.Optimizer) -> None:
    """What the base is about to apply must be unscaled, once, after the second pass."""
    if pending.scale == 1.0:
        above = callers.scaler_above()
        if above is not None and above.scaler.get_scale() != 1.0:
            raise RuntimeError(messages.SCALE_NOT_GIVEN)
    elif pending.norm_of_direction > 0.0 and pending.scale >= 4.0:
        params = dict.fromkeys(p for group in base.param_groups for p in group["params"])
        now = tensors.norm_on_host([p.grad for p in params if p.grad is not None])
        if now > pending.norm_of_direction / 2.0:
            raise RuntimeError(messages.STILL_SCALED)


def end_of(generators: Mapping[str, torch.Generator]) -> dict[str, Tensor]:
    return {name: drawn.get_state() for name, drawn in generators.items()}
