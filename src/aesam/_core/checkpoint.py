"""Checkpointing: what is ours in a state dict, written, and read with every doubt checked first."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aesam._core import base_state, bases, layout, tensors
from aesam._core.construction import Parts
from aesam._core.layout import as_count, as_dict, damaged, same_keys
from aesam._core.ledger import Committed, Ledger, start
from aesam.parts.part import Memory, MemoryPart, Part
from aesam.parts.policies import Policy

#: The optimizer's own keywords that say how far a second gradient is taken from ``w``, by name.
Displaced = Mapping[str, bool | float | None]


@dataclass(frozen=True)
class Loaded:
    parts: Parts
    committed: Committed
    skipped: int
    differences: list[str]


def pack(
    of_base: dict[str, Any],
    parts: Parts,
    displaced: Displaced,
    ledger: Ledger,
    groups: list[dict[str, Any]],
) -> dict[str, Any]:
    """Plain numbers, strings and tensors only, so that ``weights_only=True`` loads them."""
    done = ledger.committed
    settings = _settings_of(parts, displaced)
    memories = {n: _checked(n, part, done.memory(n)) for n, part in parts.with_memory.items()}
    sections: dict[str, Any] = {
        "method": parts.method,
        "step": done.step,
        "policy": {"settings": settings["policy"], "state": dict(done.policy)},
        **{
            name: {"settings": settings.get(name, {}), "values": _numbers(part, memories[name])}
            for name, part in parts.with_memory.items()
        },
        "generators": done.generators,
        "counts": {"sam": done.sam_steps, "skipped": ledger.skipped},
    }
    kept = {name: memories[name].tensors for name in parts.keep_tensors}
    return layout.lay_out(of_base, sections, kept, _parameters(groups))


def _checked(name: str, part: MemoryPart, memory: Memory) -> Memory:
    """The memory, if it can be read again."""
    if memory.tensors and not part.keeps_tensors:
        raise TypeError(
            f"{name} {type(part).__name__} remembers tensors and says keeps_tensors = False, so "
            "there is no place for them in a checkpoint: leave that line out"
        )
    unnamed = sorted(memory.values.keys() - set(part.remembers))
    if unnamed:
        raise TypeError(
            f"{name} {type(part).__name__} remembers {unnamed}, which no checkpoint would be asked "
            f"for: name them in its `remembers`, now {part.remembers!r}"
        )
    return memory


def _numbers(part: MemoryPart, memory: Memory) -> dict[str, float]:
    """All that the part names, 0 where it remembers something else only; none in a fresh memory."""
    if not (memory.values or memory.tensors):
        return {}
    return {name: memory.number(name) for name in part.remembers}


def _settings_of(parts: Parts, displaced: Displaced) -> dict[str, dict[str, Any]]:
    """What the constructor was given, by section; parts without a section stand with another.

    A generator goes on from the checkpoint whatever the seed, so seeds are left out.
    """
    by_section = {
        "policy": parts.policy.settings(),
        "between": {**parts.between.settings(), **_prefixed("combine", parts.combine)},
        "ascent": {
            **parts.ascent.settings(),
            **_prefixed("samples", parts.samples),
            **displaced,
        },
    }
    return {
        section: {key: value for key, value in kept.items() if key.split(".")[-1] != "seed"}
        for section, kept in by_section.items()
    }


def _prefixed(name: str, part: Part) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in part.settings().items()}


def unpack(
    saved: object, parts: Parts, displaced: Displaced, base: torch.optim.Optimizer
) -> Loaded:
    """Check all of ``saved``, load the base's, and give ours; on any error nothing changed."""
    ours, of_base = layout.separate(saved, set(bases.state_dict_of(base)))
    _check_method(ours, parts)
    loaded = _read(ours, parts, displaced, base.param_groups)
    base_state.check(of_base, base, loaded.committed.step)
    bases.load_into(base, of_base)
    return loaded


def _parameters(groups: list[dict[str, Any]]) -> list[Any]:
    return [p for group in groups for p in group["params"]]


def _number(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise damaged(where, f"a finite number was expected, found {value!r}")
    return float(value)


def _check_method(ours: dict[str, Any], parts: Parts) -> None:
    if ours["method"] != parts.method:
        raise ValueError(
            f"the state dict is of another method, {ours['method']!r}; this optimizer is "
            f"{parts.method!r} (policy/ascent/samples/between/combine). Nothing was loaded."
        )


def _read(
    ours: dict[str, Any], parts: Parts, displaced: Displaced, groups: list[dict[str, Any]]
) -> Loaded:
    fresh = start(parts.policy.start(), parts.by_name)
    step, counts = as_count("step", ours["step"]), as_dict("counts", ours["counts"])
    same_keys("counts", counts, {"sam", "skipped"})
    sam_steps = as_count("counts['sam']", counts["sam"])
    if sam_steps > step:
        raise damaged("counts['sam']", f"{sam_steps} SAM steps of {step}")
    params = _parameters(groups)
    names = [name for name in parts.by_name if name in ours]
    sections = {name: _section(name, ours[name]) for name in names}
    parts = _with_saved_total(parts, [sections[name]["settings"] for name in sections])
    committed = Committed(
        policy=_read_policy(sections["policy"], parts.policy, fresh.policy),
        generators=_read_generators(ours["generators"], fresh.generators),
        memories={
            name: _read_memory(name, sections[name], part, params, fresh.memory(name))
            for name, part in parts.with_memory.items()
            if name in sections
        },
        step=step,
        sam_steps=sam_steps,
    )
    differences = [
        f"{name} was saved with {key}={sections[name]['settings'].get(key)!r}; this optimizer "
        f"goes on with {key}={value!r}"
        for name, settings in _settings_of(parts, displaced).items()
        for key, value in settings.items()
        if sections[name]["settings"].get(key) != value and not _was_left_out(key, sections[name])
    ]
    skipped = as_count("counts['skipped']", counts["skipped"])
    return Loaded(parts, committed, skipped, differences)


def _with_saved_total(parts: Parts, saved: list[dict[str, Any]]) -> Parts:
    """Where the constructor left ``total_steps`` out, the checkpoint's holds until it is told."""
    kept = [value for settings in saved for key, value in settings.items() if _is_total(key)]
    told = [value for value in kept if value is not None]
    if not told or not parts.needs_total_steps:
        return parts
    return parts.with_total_steps(as_count("the settings' total_steps", told[0]))


def _is_total(key: str) -> bool:
    """Whether a setting is the length of the training; some parts' keys have a prefix."""
    return key.rsplit(".", maxsplit=1)[-1] == "total_steps"


def _was_left_out(key: str, section: dict[str, Any]) -> bool:
    return _is_total(key) and section["settings"].get(key) is None


def _section(name: str, value: object) -> dict[str, Any]:
    section = as_dict(name, value)
    expected = {"settings", "state"} if name == "policy" else {"settings", "values", "tensors"}
    same_keys(name, section, expected)
    for key in expected:
        as_dict(f"{name}[{key!r}]", section[key])
    return section


def _read_policy(
    section: dict[str, Any], policy: Policy, fresh: Mapping[str, float]
) -> dict[str, float]:
    state = section["state"]
    same_keys("policy['state']", state, set(fresh))
    read = {key: _number(f"policy['state'][{key!r}]", state[key]) for key in fresh}
    try:
        policy.check_state(read)
    except ValueError as error:
        raise damaged("policy['state']", str(error)) from error
    return read


def _read_generators(saved: object, fresh: Mapping[str, Tensor]) -> dict[str, Tensor]:
    states = as_dict("generators", saved)
    same_keys("generators", states, set(fresh))
    for name, state in states.items():
        try:
            torch.Generator().set_state(state.cpu())
        except (RuntimeError, TypeError, AttributeError) as error:
            raise damaged(f"generators[{name!r}]", "not the state of a generator") from error
    return {name: state.cpu().clone() for name, state in states.items()}


def _read_memory(
    name: str, section: dict[str, Any], part: MemoryPart, params: list[Tensor], fresh: Memory
) -> Memory:
    values, kept = section["values"], section["tensors"]
    if not (values or kept or fresh.tensors):
        return Memory()
    same_keys(f"{name}['values']", values, set(part.remembers))
    numbers = {key: _number(f"{name}['values'][{key!r}]", values[key]) for key in part.remembers}
    restored: dict[Tensor, Tensor] = {}
    for i, tensor in kept.items():
        where = f"{name}['tensors'][{i!r}]"
        if not isinstance(i, int) or not 0 <= i < len(params):
            raise damaged(where, f"there are {len(params)} parameters")
        restored[params[i]] = _like_parameter(where, tensor, params[i])
    missing = len(fresh.tensors.keys() - restored.keys())
    if missing:
        raise damaged(f"{name}['tensors']", f"{missing} of {len(fresh.tensors)} are not there")
    if not all(map(math.isfinite, tensors.norms(tensors.local(list(restored.values()))))):
        raise damaged(f"{name}['tensors']", "not finite")
    memory = Memory(numbers, restored)
    try:
        part.check_memory(memory)
    except ValueError as error:
        raise damaged(name, str(error)) from error
    return memory


def _like_parameter(where: str, tensor: object, param: Tensor) -> Tensor:
    """A copy with the parameter's dtype, on its device and sharded as it is."""
    if not isinstance(tensor, Tensor):
        raise damaged(where, f"a tensor was expected, found {type(tensor).__name__}")
    own, found = tensors.local([param, tensor])
    if found.shape != own.shape or not tensors.sharded_alike(tensor, param):
        raise damaged(
            where,
            f"a tensor of shape {tuple(own.shape)} was expected, found {tuple(found.shape)}; if "
            "the sharding is another now, load with torch.distributed.checkpoint",
        )
    if not (found.is_floating_point() or found.is_complex()):
        raise damaged(where, f"real numbers were expected, found {found.dtype}")
    copied = found.detach().to(device=own.device, dtype=own.dtype, copy=True)
    return tensors.sharded_like([copied], [param])[0]
