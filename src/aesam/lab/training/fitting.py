"""Whether what a checkpoint holds fits the run that goes on from it, part by part.

A file may be whole and its content still of something else; each check raises a ValueError or
TypeError that says what does not fit.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from aesam.lab.config import Training


def check_model(saved: Mapping[str, Any], net: nn.Module) -> None:
    """Names and shapes are checked by torch; a tensor of another type it would convert."""
    for name, tensor in net.state_dict().items():
        found = saved.get(name)
        if not isinstance(found, Tensor) or found.dtype != tensor.dtype:
            kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
            raise TypeError(f"model: {name} must be {tensor.dtype}, got {kind}")


def load_scheduler(saved: Mapping[str, Any], scheduler: LRScheduler, step: int) -> None:
    """Go on with the schedule; torch's own would take any name and any value.

    What other versions of torch keep beside is no part of a schedule by a function of the step.
    """
    rates: Any = saved.get("_last_lr")
    base = [float(rate) for rate in scheduler.base_lrs]
    if saved.get("last_epoch") != step or saved.get("base_lrs") != base:
        raise ValueError(f"the schedule must be at step {step} of {base}")
    due = _rates(scheduler, step)
    if len(rates) != len(due) or not all(map(_close, rates, due)):
        raise ValueError(f"the learning rates at step {step} must be {due}, got {rates!r:.80}")
    reached = {"last_epoch": step, "_step_count": step + 1, "_last_lr": list(rates)}
    scheduler.load_state_dict({**scheduler.state_dict(), **reached})


def _rates(scheduler: LRScheduler, step: int) -> list[float]:
    lambdas = cast("list[Any]", scheduler.lr_lambdas)  # pyright: ignore
    return [rate * each(step) for rate, each in zip(scheduler.base_lrs, lambdas, strict=True)]


def _close(found: object, due: float) -> bool:
    return isinstance(found, float) and math.isclose(found, due, rel_tol=1e-9, abs_tol=1e-300)


def hyperparameters(opt: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What the run itself sets in each group; the schedule changes the rate."""
    return [{k: v for k, v in g.items() if k not in ("params", "lr")} for g in opt.param_groups]


def check_hyperparameters(
    opt: torch.optim.Optimizer, before: list[dict[str, Any]], rates: list[float]
) -> None:
    """A state dict brings its own settings: they must be the run's."""
    for own, group, rate in zip(before, opt.param_groups, rates, strict=True):
        for name, value in own.items():
            if name in group and group[name] != value:
                raise ValueError(f"optimizer: {name} must be {value!r}, got {group[name]!r:.80}")
        if group["lr"] != rate:
            raise ValueError(f"optimizer: lr must be {rate!r}, got {group['lr']!r:.80}")


def check_memory_of_base(saved: Mapping[str, Any], training: Training) -> None:
    """What torch would begin anew where it is missing, as at the first step."""
    sgd = ("momentum_buffer",) if training.momentum else ()
    needed = ("exp_avg", "exp_avg_sq") if training.optimizer == "adamw" else sgd
    for key, entry in saved.get("state", {}).items():
        missing = [name for name in needed if not isinstance(entry.get(name), Tensor)]
        if missing and isinstance(key, int):
            raise ValueError(f"optimizer: parameter {key} lacks its {missing[0]}")
