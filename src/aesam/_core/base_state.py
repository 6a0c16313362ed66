"""Whether a base optimizer's part of a state dict is such as its kind saves.

torch loads almost anything and fails at the next step, or never. What a kind of torch's own saves
is asked of one that is made for the purpose, with the settings to be loaded and a tiny parameter.
"""

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from aesam._core import bases, tensors
from aesam._core.layout import as_dict, damaged
from aesam.parts import checks

_SIDE = 2  # of the tiny parameter
_MAY_BE_NONE = "momentum_buffer"  # SGD's, of a parameter that had no gradient yet
_Entry = Mapping[str, Any]


def check(saved: Mapping[str, Any], base: torch.optim.Optimizer, steps: int) -> None:
    """Raise a ValueError that says where, before anything is loaded; it was after ``steps``."""
    state, groups = as_dict("state", saved["state"]), saved["param_groups"]
    found, own = ([len(group["params"]) for group in gs] for gs in (groups, base.param_groups))
    if found != own:
        raise damaged("param_groups", f"groups of {found} parameters, this optimizer has {own}")
    _check_keys(groups)
    usual: dict[Any, tuple[Tensor, _Entry]] = {}
    holders = bases.holder_of_each_group(base)
    for i, (group, mine, holder) in enumerate(zip(groups, base.param_groups, holders, strict=True)):
        _check_group(f"param_groups[{i}]", group, mine, holder)
        for key, p in zip(group["params"], mine["params"], strict=True):
            usual[key] = p, _usual_entry(f"param_groups[{i}]", holder, group, mine, p)
    for key, entry in state.items():
        if isinstance(key, int) and key not in usual:
            raise damaged(f"state[{key}]", f"there are {sum(own)} parameters")
        if key in usual:
            _check_entry(f"state[{key!r}]", entry, *usual[key])
    if steps and not state and any(_keeps_tensors(entry) for _, entry in usual.values()):
        raise damaged("state", f"nothing is there after {steps} steps")


def _check_keys(groups: Iterable[Mapping[str, Any]]) -> None:
    keys = [key for group in groups for key in group["params"]]
    if not all(isinstance(key, int | str) for key in keys):
        raise damaged("param_groups[...]['params']", "whole numbers or names were expected")


# Settings ------------------------------------------------------------------------------------


def _check_group(where: str, group: _Entry, mine: _Entry, holder: torch.optim.Optimizer) -> None:
    missing = [k for k in _numbers_of(holder.defaults) if k not in group]
    if missing:
        raise damaged(where, f"missing keys {missing}")
    for name, now in mine.items():
        known = now is not None or bases.is_torch_s_own(holder)
        if name != "params" and known and name in group and not _is_like(group[name], now):
            raise damaged(
                f"{where}[{name!r}]", f"something like {now!r} was expected, found {group[name]!r}"
            )
    if "rho" in group:
        try:
            checks.at_least_zero("rho", group["rho"])
        except (TypeError, ValueError) as error:
            raise damaged(f"{where}['rho']", str(error)) from error


def _numbers_of(defaults: dict[str, Any]) -> list[str]:
    """The settings that a group with these defaults must have; switches may be of a later torch."""
    numbers = [k for k, v in defaults.items() if isinstance(v, int | float | tuple | Tensor)]
    return [k for k in numbers if not isinstance(defaults[k], bool)]


def _is_like(found: object, now: object) -> bool:
    """Whether a setting may stand in the place of another: of its kind, and finite."""
    if now is None or isinstance(now, bool):  # torch's switches, which may be left to it
        return found is None or isinstance(found, bool)
    if isinstance(now, Tensor):
        return _is_number(found)
    if isinstance(now, int | float):
        return _is_number(found) or not math.isfinite(now)
    if isinstance(now, tuple | list):
        several = cast(Sequence[object], now)
        if not isinstance(found, tuple | list) or len(cast(Sequence[Any], found)) != len(several):
            return False
        return all(map(_is_like, cast(Sequence[Any], found), several))
    return not isinstance(now, str) or isinstance(found, str)


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and bool(torch.isfinite(value).all())
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63  # which torch can hold
    return isinstance(value, float) and math.isfinite(value)


# What is kept of a parameter -----------------------------------------------------------------


def _usual_entry(
    where: str, holder: torch.optim.Optimizer, group: _Entry, mine: _Entry, param: Tensor
) -> _Entry:
    """What one of this kind keeps of such a parameter after a step; nothing where it is unknown.

    Settings that make it fail are refused, unless those of now do too: some kinds want other
    parameters or gradients.
    """
    if not bases.is_torch_s_own(holder) or not tensors.are_plain((param,)):
        return {}
    try:
        return _after_a_step(holder, group, param)
    except Exception as error:
        try:
            _after_a_step(holder, mine, param)
        except Exception:
            return {}
        raise damaged(where, str(error)) from error


def _after_a_step(holder: torch.optim.Optimizer, group: _Entry, param: Tensor) -> _Entry:
    taken = inspect.signature(type(holder)).parameters
    given = {k: v for k, v in group.items() if k in taken and k != "params"}
    kind: Any = type(holder)
    shape = (_SIDE,) * param.dim()
    p = torch.zeros(shape, device=param.device, dtype=param.dtype, requires_grad=True)
    twin = kind([p], **given)
    p.grad = torch.zeros_like(p)
    twin.step()
    return twin.state[p]


def _keeps_tensors(usual: _Entry) -> bool:
    return any(isinstance(example, Tensor) for example in usual.values())


def _check_entry(where: str, entry: object, param: Tensor, usual: _Entry) -> None:
    if not usual:
        return
    kept = as_dict(where, entry)
    missing = sorted(usual.keys() - kept.keys() - {_MAY_BE_NONE})
    if kept and missing:
        raise damaged(where, f"missing keys {missing}")
    for name, example in usual.items():
        value, at = kept.get(name), f"{where}[{name!r}]"
        if name not in kept or (value is None and name == _MAY_BE_NONE) or example is None:
            continue
        if not isinstance(example, Tensor) or example.numel() == 1 != _SIDE ** param.dim():
            if not (_is_number(value) and 0 <= cast(float, value) < 2**63):
                raise damaged(at, f"a finite number >= 0 was expected, found {_shown(value)}")
        else:
            _check_tensor(at, value, param, example)


def _check_tensor(at: str, value: object, param: Tensor, example: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise damaged(at, f"a tensor was expected, found {_shown(value)}")
    if example.shape == (_SIDE,) * param.dim() and value.shape != param.shape:
        shapes = tuple(value.shape), tuple(param.shape)
        raise damaged(at, f"shape {shapes[0]}, the parameter has {shapes[1]}")
    if value.is_floating_point() != example.is_floating_point():
        raise damaged(at, f"numbers like {example.dtype} were expected, found {value.dtype}")


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value!r:.60} of type {type(value).__name__}"
