"""What a constructor is given, checked and made ready."""

import inspect
from typing import Any, TypeVar

import torch
from torch import nn

from aesam import checks

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
    if _needs_closure(base):
        raise TypeError(
            f"base must be able to step() without a closure, which {type(base).__name__} is not: "
            "it takes gradients of its own inside a step"
        )
    return base


def _needs_closure(base: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(base.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def check_model(model: object) -> nn.Module | None:
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(
            "model must be the torch.nn.Module whose buffers are to be guarded, or None, got "
            f"{type(model).__name__}"
        )
    return model


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
    for group in base.param_groups:
        if "rho" not in group or group["rho"] == inherited:
            group["rho"] = rho
        checks.at_least_zero("rho of a parameter group", group["rho"])
    base.defaults["rho"] = rho
