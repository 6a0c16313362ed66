"""Where ours stands in a state dict: in the places that every tool keeps of an optimizer's.

Tools such as ``torch.distributed.checkpoint`` (DCP) keep ``state``, by parameter, ``param_groups``
and nothing else, and they load only what a fresh optimizer has a key for. So memories stand beside
the base's own state of each parameter, zeros before they are formed, and all that is no tensor is
one text in every group: so keys may be added later, and empty dicts and tuples come back.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from aesam._core import tensors

VERSION = 2
KEY = "aesam"
#: The questions whose parts may remember tensors; version 1 left out those that had none.
MEMORIES: tuple[str, ...] = ("ascent", "samples", "between", "combine")
_KEYS = {"version", "method", "step", "policy", "generators", "counts", *MEMORIES}
_OPTIONAL_IN_VERSION_1 = {"samples", "combine"}


def names(part: str) -> tuple[str, str]:
    """Under what a part's memory stands in a parameter's state: the tensor, and if it is formed.

    >>> names("between")
    ('aesam.between', 'aesam.between.formed')
    """
    return f"{KEY}.{part}", f"{KEY}.{part}.formed"


# Written -------------------------------------------------------------------------------------


def lay_out(
    of_base: dict[str, Any],
    sections: dict[str, Any],
    memories: Mapping[str, Mapping[Tensor, Tensor]],
    params: Iterable[Tensor],
) -> dict[str, Any]:
    """The base's state dict with ours in it; what the base holds itself is not touched.

    ``memories`` has every part that may remember tensors, with those of the parameters that it has.
    """
    state = dict(of_base["state"])
    formed = dict.fromkeys(MEMORIES, 0)
    for i, p in _numbered(params if memories else ()):
        kept = {part: memory[p] for part, memory in memories.items() if p in memory}
        for part in kept:
            formed[part] += p.requires_grad  # DCP gives no frozen parameter's state back
        if p.requires_grad or kept:
            shown = [_shown(part, p, kept.get(part)) for part in memories]
            state[i] = {k: v for entry in (state.get(i, {}), *shown) for k, v in entry.items()}
    text = _text(sections, formed)
    groups = [{**group, KEY: text} for group in of_base["param_groups"]]
    return {**of_base, "state": state, "param_groups": groups}


def _text(sections: dict[str, Any], formed: Mapping[str, int]) -> str:
    """All but the tensors; of those, how many must be found again."""
    states = {n: _letters(state) for n, state in sections["generators"].items()}
    counted = {part: {**sections[part], "tensors": count} for part, count in formed.items()}
    return json.dumps({"version": VERSION, **sections, **counted, "generators": states})


def _letters(state: Tensor) -> str:
    """The state of a generator. DCP takes no tensor on the CPU beside parameters on a GPU."""
    return base64.b64encode(bytes(cast(list[int], state.tolist()))).decode()  # pyright: ignore


def _numbered(params: Iterable[Tensor]) -> list[tuple[int, Tensor]]:
    """Each parameter once, with its number in a state dict of torch's."""
    first: dict[Tensor, int] = {}
    for i, p in enumerate(params):
        first.setdefault(p, i)
    return [(i, p) for p, i in first.items()]


def _shown(part: str, param: Tensor, kept: Tensor | None) -> dict[str, Tensor]:
    """A copy, since training goes on in the buffer; sharded like the parameter."""
    (own,) = tensors.local([param if kept is None else kept])
    copied = torch.zeros_like(own, requires_grad=False) if kept is None else own.detach().clone()
    name, formed = names(part)
    (whole,) = tensors.sharded_like([copied], [param])
    return {name: whole, formed: torch.tensor(kept is not None)}


# Read ----------------------------------------------------------------------------------------


def separate(saved: object, keys: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ours, in sections, and the base's; or an error that says what is missing or strange.

    ``keys`` are those of the base's state dict. Tensors are by the number of their parameter,
    formed ones only. Nothing is changed in ``saved``.
    """
    if not isinstance(saved, dict):
        raise TypeError(f"load_state_dict takes a dict, got {type(saved).__name__}")
    saved = cast(dict[str, Any], saved)
    if KEY in saved:
        return _separate_version_1(saved, keys)
    same_keys("the state dict", saved, keys)
    groups = _groups(saved["param_groups"])
    sections, state = _sections(groups), as_dict("state", saved["state"])
    for part, by_number in _memories(state, groups).items():
        section = as_dict(part, sections[part])
        expected = as_count(f"{part}['tensors']", section.get("tensors"))
        if len(by_number) < expected:
            raise damaged(f"{part}['tensors']", f"{len(by_number)} of {expected} tensors are there")
        sections[part] = {**section, "tensors": by_number}
    return sections, {**saved, **without_ours(state, groups)}


def _separate_version_1(
    saved: dict[str, Any], keys: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ours stood under a key of its own, each rank's shards by the number of their parameter."""
    same_keys("the state dict", saved, keys | {KEY})
    ours = as_dict(KEY, saved[KEY])
    same_keys(f"the state dict's {KEY!r}", ours, _KEYS - (_OPTIONAL_IN_VERSION_1 - ours.keys()))
    _check_version(ours["version"], 1)
    of_base = {key: saved[key] for key in keys}
    return ours, {**of_base, "param_groups": _groups(saved["param_groups"])}


def _check_version(found: object, expected: int) -> None:
    if found != expected:
        raise ValueError(
            f"the state dict has version {found!r}, this aesam reads versions 1 to {VERSION}. "
            "Nothing was loaded."
        )


def _groups(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise damaged("param_groups", f"a list was expected, found {type(value).__name__}")
    groups = [as_dict(f"param_groups[{i}]", g) for i, g in enumerate(cast(list[Any], value))]
    for i, group in enumerate(groups):
        if not isinstance(group.get("params"), list):
            raise damaged(f"param_groups[{i}]", "missing keys ['params']")
    return groups


def _sections(groups: list[dict[str, Any]]) -> dict[str, Any]:
    texts = [group[KEY] for group in groups if KEY in group]
    if not texts:
        raise ValueError(
            f"this is the state dict of a base optimizer alone, without the key {KEY!r} in its "
            "groups: load it with opt.base.load_state_dict(...), and the method starts afresh"
        )
    where = f"param_groups[...][{KEY!r}]"
    if not all(isinstance(text, str) for text in texts):
        raise damaged(where, f"a text was expected, found {type(texts[0]).__name__}")
    if any(text != texts[0] for text in texts):
        raise damaged(where, "the groups are of different checkpoints")
    try:
        read = as_dict(where, json.loads(texts[0]))
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged(where, f"not what was written ({error})") from error
    _check_version(read.get("version"), VERSION)
    same_keys(where, read, _KEYS)
    states = as_dict("generators", read["generators"])
    read["generators"] = {name: _generator(name, letters) for name, letters in states.items()}
    return read


def _generator(name: str, letters: object) -> Tensor:
    try:
        state = base64.b64decode(cast(str, letters), validate=True)
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)
    except (TypeError, ValueError, binascii.Error) as error:
        raise damaged(f"generators[{name!r}]", "not the state of a generator") from error


def _memories(state: dict[Any, Any], groups: list[dict[str, Any]]) -> dict[str, dict[int, object]]:
    """The tensors that are formed, by part and by the number of their parameter.

    DCP's keys are names, and their order may be another than when they were saved.
    """
    keys = [key for group in groups for key in group["params"]]
    number = {key: i for i, key in reversed(list(enumerate(keys)))}
    found: dict[str, dict[int, object]] = {part: {} for part in MEMORIES}
    for key, entry in state.items():
        if not (ours := _ours(entry)):
            continue
        if key not in number:
            raise damaged(f"state[{key!r}]", "there is no such parameter")
        for part, tensor in _formed(f"state[{key!r}]", ours).items():
            found[part][number[key]] = tensor
    return found


def without_ours(state: dict[Any, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """What the base itself would have saved; also of one that has nothing of ours."""
    kept: dict[Any, Any] = {}
    for key, entry in state.items():
        ours = _ours(entry)
        if not ours:
            kept[key] = entry
        elif of_base := {n: v for n, v in entry.items() if n not in ours}:  # else we made it
            kept[key] = of_base
    bare = [{name: value for name, value in g.items() if name != KEY} for g in groups]
    return {"state": kept, "param_groups": bare}


def _ours(entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        return {}
    items = cast(dict[Any, Any], entry).items()
    return {name: value for name, value in items if str(name).startswith(f"{KEY}.")}


def _formed(where: str, ours: dict[str, Any]) -> dict[str, object]:
    """A parameter's tensors that are formed, by part."""
    parts = [part for part in MEMORIES if not ours.keys().isdisjoint(names(part))]
    same_keys(where, ours, {name for part in parts for name in names(part)})
    formed: dict[str, object] = {}
    for part in parts:
        tensor, flag = (ours[name] for name in names(part))
        if not (isinstance(flag, Tensor) and flag.numel() == 1 and flag.item() in (0, 1)):
            raise damaged(f"{where}[{names(part)[1]!r}]", f"a flag was expected, found {flag!r}")
        if flag.item():
            formed[part] = tensor
    return formed


# What is found, checked ----------------------------------------------------------------------


def damaged(where: str, why: str) -> ValueError:
    return ValueError(f"the state dict is damaged at {where}: {why}. Nothing was loaded.")


def same_keys(where: str, found: Mapping[str, Any], expected: set[str]) -> None:
    missing, unknown = expected - set(found), set(found) - expected
    if missing or unknown:
        raise ValueError(
            f"{where} is not one of ours or is damaged: missing keys {sorted(missing)}, unknown "
            f"keys {sorted(map(str, unknown))}. Nothing was loaded."
        )


def as_dict(where: str, value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise damaged(where, f"a dict was expected, found {type(value).__name__}")
    return cast(dict[Any, Any], value)


def as_count(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise damaged(where, f"a whole number >= 0 was expected, found {value!r:.60}")
    return value
