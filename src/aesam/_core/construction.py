"""What a constructor is given, checked and made ready."""

import inspect
import warnings
from typing import Any, TypeVar

import torch
from torch import nn

from aesam._core import checks
from aesam._core.messages import frames_to_user

Part = TypeVar("Part")


def check_base(base: Any, wrapper: type) -> torch.optim.Optimizer:
    """``base`` if it can be wrapped, or an error that says what to pass instead."""
    if inspect.isclass(base) and issubclass(base, torch.optim.Optimizer):
        raise TypeError(
            f"base must be an optimizer instance, got the class {base.__name__}: pass "
            f"{base.__name__}(model.parameters(), lr=...)"
        )
    if not isinstance(base, torch.optim.Optimizer):
        raise TypeError(
            "base must be a torch.optim.Optimizer instance, such as "
            f"SGD(model.parameters(), lr=0.1), got {type(base).__name__}"
        )
    if isinstance(base, wrapper):
        raise TypeError(f"base is sharpness-aware already ({type(base).__name__}): wrap its .base")
    if "rho" in inspect.signature(type(base)).parameters:
        raise TypeError(
            f"base {type(base).__name__} has a setting rho of its own, which would be taken for "
            "the radius of the ascent: use another base optimizer"
        )
    if _needs_closure(base):
        raise TypeError(
            f"base must be able to step() without a closure, which {type(base).__name__} is not: "
            "it takes gradients of its own inside a step"
        )
    return base


def _needs_closure(base: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(base.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def check_model(model: object, base: torch.optim.Optimizer) -> nn.Module | None:
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(
            "model must be the torch.nn.Module itself, whose buffers are to be guarded, or None, "
            f"got {type(model).__name__}"
        )
    if model is not None and not _shares_parameters(model, base):
        warnings.warn(
            "model has none of the optimizer's parameters, so its buffers are guarded and no "
            "others: pass the model that is trained",
            stacklevel=frames_to_user(),
        )
    return model


def _shares_parameters(model: nn.Module, base: torch.optim.Optimizer) -> bool:
    held = {id(p) for p in model.parameters()}
    trained = [p for group in base.param_groups for p in group["params"]]
    return not held or not trained or any(id(p) in held for p in trained)


def check_part(name: str, part: object, kind: type[Part]) -> Part:
    if isinstance(part, type):
        raise TypeError(f"{name} must be an instance, got the class {part.__name__}: call it")
    if not isinstance(part, kind):
        raise TypeError(
            f"{name} must be a {kind.__name__} (see {kind.__module__}), got {part!r} of type "
            f"{type(part).__name__}"
        )
    return part


def set_default_radius(base: torch.optim.Optimizer, rho: float) -> None:
    """Give each group without a ``rho`` of its own the default, and later groups too."""
    inherited: Any = base.defaults.get("rho")  # of an earlier wrapper around the same base
    own = [g["rho"] for g in base.param_groups if g.get("rho", inherited) != inherited]
    for value in own:
        checks.at_least_zero("rho of a parameter group", value)
    for group in base.param_groups:
        if group.get("rho", inherited) == inherited:
            group["rho"] = rho
    base.defaults["rho"] = rho


def keep_radius_on_load(base: torch.optim.Optimizer) -> None:
    """A plain checkpoint loaded into the base has no ``rho``: its groups keep theirs."""
    base.register_load_state_dict_pre_hook(_with_radii)


def _with_radii(base: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any] | None:
    groups = saved.get("param_groups", [])
    if len(groups) != len(base.param_groups):
        return None  # torch says what is wrong
    kept = [
        {**group, "rho": group.get("rho", own.get("rho", base.defaults["rho"]))}
        for own, group in zip(base.param_groups, groups, strict=True)
    ]
    return {**saved, "param_groups": kept}
