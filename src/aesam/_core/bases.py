"""Base optimizers that are several, or that are wrapped around others without being torch's inside.

A *holder* is the optimizer of torch's own making that some parameter groups belong to: the base
itself, a member of :class:`aesam.Together`, or what a wrapper such as Lookahead has as its
``optimizer``.
"""

from collections.abc import Callable
from typing import Any

import torch

from aesam.together import Together

#: Where the state dict of a wrapper stands, which has a form of its own, in one of torch's form.
_OWN_FORM = "base"


def holders(base: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers that the base's parameter groups belong to, each once; empty if unknown."""
    if isinstance(base, Together):
        return [holder for member in base.members for holder in holders(member)]
    if is_torch_s_inside(base):
        return [base]
    inner = _inner(base)
    return [] if inner is None or not _shares_groups(base, inner) else holders(inner)


def is_torch_s_inside(base: torch.optim.Optimizer) -> bool:
    """Whether torch's constructor was run, so that hooks and state dicts work as they do there."""
    return "_optimizer_load_state_dict_pre_hooks" in vars(base)


def _shares_groups(base: torch.optim.Optimizer, inner: torch.optim.Optimizer) -> bool:
    return list(map(id, base.param_groups)) == list(map(id, inner.param_groups))


def _inner(base: object) -> torch.optim.Optimizer | None:
    inner = getattr(base, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else None


def holder_of_each_group(base: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """For each parameter group the optimizer that it belongs to."""
    by_group = {id(g): holder for holder in holders(base) for g in holder.param_groups}
    return [by_group[id(group)] for group in base.param_groups]


def is_torch_s_own(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one of ``torch.optim``, so that its state's names and shapes are known."""
    return type(optimizer).__module__.startswith("torch.optim.")


# Two sets of weights -------------------------------------------------------------------------


def mode_switch(base: torch.optim.Optimizer, mode: str) -> Callable[[], object] | None:
    """``base.train`` or ``base.eval``, or that of what it wraps; None where there is no such."""
    found: object | None = base
    while found is not None:
        switch = getattr(found, mode, None)
        if callable(switch):
            return switch
        found = _inner(found)
    return None


# State dicts ---------------------------------------------------------------------------------


def state_dict_of(base: torch.optim.Optimizer) -> dict[str, Any]:
    """The base's state dict in torch's form; a wrapper's own form stands inside ``"state"``."""
    saved: dict[str, Any] = base.state_dict()
    if _has_torch_s_form(saved):
        return saved
    groups: list[dict[str, Any]] = []
    count = 0
    for group in base.param_groups:
        size = len(group["params"])
        groups.append({**group, "params": list(range(count, count + size))})
        count += size
    return {"state": {_OWN_FORM: saved}, "param_groups": groups}


def load_into(base: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load what :func:`state_dict_of` gave; on any error the base is as before."""
    own = saved["state"].get(_OWN_FORM)
    before = [(vars(o), _bound(o)) for o in _all_in(base)]
    try:
        base.load_state_dict(saved if own is None else own)
    except BaseException:
        for variables, bound in before:  # torch replaces both, never changes them
            variables.update(bound)
        raise


def _has_torch_s_form(saved: dict[str, Any]) -> bool:
    return "state" in saved and "param_groups" in saved


def _all_in(base: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    inner = _inner(base)
    within = list(base.members) if isinstance(base, Together) else [inner] if inner else []
    return [base, *(found for optimizer in within for found in _all_in(optimizer))]


def _bound(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What loading replaces, where it is the optimizer's own and no view of another's."""
    own = vars(optimizer)
    return {name: own[name] for name in ("state", "param_groups") if name in own}


def check_copyable(base: torch.optim.Optimizer) -> None:
    """Refuse to copy or pickle a wrapper that leaves most of itself behind when it is."""
    for optimizer in _all_in(base):
        if not is_torch_s_inside(optimizer):
            raise TypeError(
                f"base {type(optimizer).__name__} cannot be copied or pickled, since it loses what "
                "it wraps or its settings: make it anew and load the state dict"
            )
