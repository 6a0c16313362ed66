"""Checkpointing: what is ours in a state dict, written, and read with every doubt checked first."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from aesam._core import bases, tensors
from aesam._core.construction import Parts
from aesam._core.step import Committed, Ledger, start
from aesam.parts.part import Memory, MemoryPart, Part

VERSION = 1
_KEYS = {"version", "method", "step", "policy", "between", "ascent", "generators", "counts"}
#: Sections that are there where such a part remembers anything; version 1 had none of them.
_OPTIONAL = ("samples", "combine")
_SHAPED_LIKE_PARAMETER = (
    "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg",
    "grad_avg", "sum", "prev", "step_size", "ax", "acc_delta",
)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    parts: Parts
    committed: Committed
    skipped: int
    differences: list[str]


def pack(
    parts: Parts, normalize: bool, ledger: Ledger, groups: list[dict[str, Any]]
) -> dict[str, Any]:
    """Plain numbers, strings and tensors only, so that ``weights_only=True`` loads them."""
    done = ledger.committed
    index = {p: i for i, p in enumerate(_parameters(groups))}
    settings = _settings_of(parts, normalize)
    memories = {n: _pack_memory(done.memory(n), index) for n in parts.with_memory}
    return {
        "version": VERSION,
        "method": parts.method,
        "step": done.step,
        "policy": {"settings": settings["policy"], "state": dict(done.policy)},
        "between": {"settings": settings["between"], **memories["between"]},
        "ascent": {"settings": settings["ascent"], **memories["ascent"]},
        **{n: {"settings": {}, **memories[n]} for n in _OPTIONAL if any(memories[n].values())},
        "generators": {name: s.clone() for name, s in done.generators.items()},
        "counts": {"sam": done.sam_steps, "skipped": ledger.skipped},
    }


def _settings_of(parts: Parts, normalize: bool) -> dict[str, dict[str, Any]]:
    """What the constructor was given, by section; parts without a section stand with another.

    A generator goes on from the checkpoint whatever the seed, so seeds are left out.
    """
    by_section = {
        "policy": parts.policy.settings(),
        "between": {**parts.between.settings(), **_prefixed("combine", parts.combine)},
        "ascent": {
            **parts.ascent.settings(),
            **_prefixed("samples", parts.samples),
            "normalize": normalize,
        },
    }
    return {s: {k: v for k, v in kept.items() if k != "seed"} for s, kept in by_section.items()}


def _prefixed(name: str, part: Part) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in part.settings().items() if key != "seed"}


def unpack(saved: object, parts: Parts, normalize: bool, base: torch.optim.Optimizer) -> Loaded:
    """Check all of ``saved``, load the base's, and give ours; on any error nothing changed."""
    ours, of_base = _split(saved, base)
    _check_method(ours, parts)
    _check_base(of_base, base)
    loaded = _read(ours, parts, normalize, base.param_groups)
    bases.load_into(base, of_base)
    return loaded


def _parameters(groups: list[dict[str, Any]]) -> list[Tensor]:
    return [p for group in groups for p in group["params"]]


def _pack_memory(memory: Memory, index: Mapping[Tensor, int]) -> dict[str, Any]:
    kept = {index[p]: t.clone() for p, t in memory.tensors.items() if p in index}
    return {"values": dict(memory.values), "tensors": kept}


def _split(saved: object, base: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    if not isinstance(saved, dict):
        raise TypeError(f"load_state_dict takes a dict, got {type(saved).__name__}")
    saved = cast(dict[str, Any], saved)
    of_base = {key: value for key, value in saved.items() if key != "aesam"}
    known = set(bases.state_dict_of(base))  # torch's two keys, for some bases more
    if "aesam" not in saved and known == set(saved):
        raise ValueError(
            "this is the state dict of a base optimizer alone, without the key 'aesam': load it "
            "with opt.base.load_state_dict(...), and the method starts afresh"
        )
    _same_keys("the state dict", saved, known | {"aesam"})
    ours = _dict("aesam", saved["aesam"])
    _same_keys("the state dict's 'aesam'", ours, _KEYS | (ours.keys() & set(_OPTIONAL)))
    return ours, of_base


def _same_keys(where: str, found: Mapping[str, Any], expected: set[str]) -> None:
    missing, unknown = expected - set(found), set(found) - expected
    if missing or unknown:
        raise ValueError(
            f"{where} is not one of ours or is damaged: missing keys {sorted(missing)}, unknown "
            f"keys {sorted(map(str, unknown))}. Nothing was loaded."
        )


def _damaged(where: str, why: str) -> ValueError:
    return ValueError(f"the state dict is damaged at {where}: {why}. Nothing was loaded.")


def _dict(where: str, value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _damaged(where, f"a dict was expected, found {type(value).__name__}")
    return cast(dict[Any, Any], value)


def _count(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _damaged(where, f"a whole number >= 0 was expected, found {value!r}")
    return value


def _number(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _damaged(where, f"a finite number was expected, found {value!r}")
    return float(value)


def _check_method(ours: dict[str, Any], parts: Parts) -> None:
    if ours["version"] != VERSION:
        raise ValueError(
            f"the state dict has version {ours['version']!r}, this aesam reads version {VERSION}. "
            "Nothing was loaded."
        )
    if ours["method"] != parts.method:
        raise ValueError(
            f"the state dict is of another method, {ours['method']!r}; this optimizer is "
            f"{parts.method!r} (policy/ascent/samples/between/combine). Nothing was loaded."
        )


def _check_base(saved: dict[str, Any], base: torch.optim.Optimizer) -> None:
    state = _dict("state", saved["state"])
    groups = saved["param_groups"]
    if not isinstance(groups, list):
        raise _damaged("param_groups", f"a list was expected, found {type(groups).__name__}")
    holders = bases.holder_of_each_group(base)
    for i, group in enumerate(cast(list[Any], groups)):
        found = _dict(f"param_groups[{i}]", group)
        needed = _numbers_of(holders[i].defaults) if i < len(holders) else ["params"]
        missing = [k for k in needed if k not in found]
        if missing:
            raise _damaged(f"param_groups[{i}]", f"missing keys {missing}")
    held = zip(holders, base.param_groups, strict=True)
    params = [(p, bases.is_torch_s_own(holder)) for holder, g in held for p in g["params"]]
    for i, entry in state.items():
        if isinstance(i, int) and isinstance(entry, dict):
            if not 0 <= i < len(params):
                raise _damaged(f"state[{i}]", f"there are {len(params)} parameters")
            param, shapes_are_known = params[i]
            if shapes_are_known:
                _check_shapes(i, cast(dict[str, Any], entry), param)


def _numbers_of(defaults: dict[str, Any]) -> list[str]:
    """The settings that a group with these defaults must have; switches may be of a later torch."""
    numbers = [k for k, v in defaults.items() if isinstance(v, int | float | tuple | Tensor)]
    return ["params", *(k for k in numbers if not isinstance(defaults[k], bool))]


def _check_shapes(i: int, entry: dict[str, Any], param: Tensor) -> None:
    for name in _SHAPED_LIKE_PARAMETER:
        value = entry.get(name)
        if isinstance(value, Tensor) and value.shape != param.shape:
            raise _damaged(
                f"state[{i}][{name!r}]",
                f"shape {tuple(value.shape)}, the parameter has {tuple(param.shape)}",
            )


def _read(
    ours: dict[str, Any], parts: Parts, normalize: bool, groups: list[dict[str, Any]]
) -> Loaded:
    fresh = start(parts.policy.start(), parts.by_name)
    step, counts = _count("step", ours["step"]), _dict("counts", ours["counts"])
    _same_keys("counts", counts, {"sam", "skipped"})
    sam_steps = _count("counts['sam']", counts["sam"])
    if sam_steps > step:
        raise _damaged("counts['sam']", f"{sam_steps} SAM steps of {step}")
    params = _parameters(groups)
    names = [name for name in parts.by_name if name in ours]
    sections = {name: _section(name, ours[name]) for name in names}
    parts = _with_saved_total(parts, sections["policy"]["settings"])
    committed = Committed(
        policy=_read_policy(sections["policy"], fresh.policy),
        generators=_read_generators(ours["generators"], fresh.generators),
        memories={
            name: _read_memory(name, sections[name], part, params)
            for name, part in parts.with_memory.items()
            if name in sections
        },
        step=step,
        sam_steps=sam_steps,
    )
    differences = [
        f"{name} was saved with {key}={sections[name]['settings'].get(key)!r}; this optimizer "
        f"goes on with {key}={value!r}"
        for name, settings in _settings_of(parts, normalize).items()
        for key, value in settings.items()
        if sections[name]["settings"].get(key) != value and not _was_left_out(key, sections[name])
    ]
    skipped = _count("counts['skipped']", counts["skipped"])
    return Loaded(parts, committed, skipped, differences)


def _with_saved_total(parts: Parts, saved: dict[str, Any]) -> Parts:
    """Where the constructor left ``total_steps`` out, the checkpoint's holds until it is told."""
    total = saved.get("total_steps")
    if total is None or not parts.policy.needs_total_steps:
        return parts
    return parts.with_total_steps(_count("policy['settings']['total_steps']", total))


def _was_left_out(key: str, section: dict[str, Any]) -> bool:
    return key == "total_steps" and section["settings"].get(key) is None


def _section(name: str, value: object) -> dict[str, Any]:
    section = _dict(name, value)
    expected = {"settings", "state"} if name == "policy" else {"settings", "values", "tensors"}
    _same_keys(name, section, expected)
    for key in expected:
        _dict(f"{name}[{key!r}]", section[key])
    return section


def _read_policy(section: dict[str, Any], fresh: Mapping[str, float]) -> dict[str, float]:
    state = section["state"]
    _same_keys("policy['state']", state, set(fresh))
    return {key: _number(f"policy['state'][{key!r}]", state[key]) for key in fresh}


def _read_generators(saved: object, fresh: Mapping[str, Tensor]) -> dict[str, Tensor]:
    states = _dict("generators", saved)
    _same_keys("generators", states, set(fresh))
    for name, state in states.items():
        try:
            torch.Generator().set_state(state.cpu())
        except (RuntimeError, TypeError, AttributeError) as error:
            raise _damaged(f"generators[{name!r}]", "not the state of a generator") from error
    return {name: state.cpu().clone() for name, state in states.items()}


def _read_memory(
    name: str, section: dict[str, Any], part: MemoryPart, params: list[Tensor]
) -> Memory:
    values, kept = section["values"], section["tensors"]
    if not values and not kept:
        return Memory()
    _same_keys(f"{name}['values']", values, set(part.remembers))
    numbers = {key: _number(f"{name}['values'][{key!r}]", values[key]) for key in part.remembers}
    restored: dict[Tensor, Tensor] = {}
    for i, tensor in kept.items():
        where = f"{name}['tensors'][{i!r}]"
        if not isinstance(i, int) or not 0 <= i < len(params):
            raise _damaged(where, f"there are {len(params)} parameters")
        restored[params[i]] = _like_parameter(where, tensor, params[i])
    if not all(map(math.isfinite, tensors.norms(list(restored.values())))):
        raise _damaged(f"{name}['tensors']", "not finite")
    return Memory(numbers, restored)


def _like_parameter(where: str, tensor: object, param: Tensor) -> Tensor:
    (own,) = tensors.local([param])
    if not isinstance(tensor, Tensor) or tensor.shape != own.shape:
        raise _damaged(where, f"a tensor of shape {tuple(own.shape)} was expected")
    return tensor.detach().to(device=own.device, dtype=own.dtype, copy=True)
