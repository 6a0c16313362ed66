"""Methods by name, the paper's and its controls: their settings, and the optimizer each makes."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import aesam
from aesam.lab.config import Method
from aesam.lab.errors import UsageError, unknown
from aesam.parts.between import Plain, Reuse
from aesam.parts.controls import Inverted, Late, MatchedRate
from aesam.parts.policies import Never, Policy

_COMMON = {"rho": 0.05, "normalize": True}

#: The settings that mean something to each method, with the paper's defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "erm": {},
    "sam": {**_COMMON},
    "esam": {**_COMMON, "beta": 0.6, "gamma": 0.5},
    "ss-sam": {**_COMMON, "p": 0.5},
    "looksam": {**_COMMON, "k": 5, "alpha": 0.5},
    "ae-sam": {**_COMMON, "lambda1": -1.0, "lambda2": 1.0, "delta": 0.9},
    "ae-looksam": {**_COMMON, "lambda1": 0.0, "lambda2": 2.0, "delta": 0.9, "alpha": 0.5},
}
PAPER = list(SETTINGS)

_SCHEDULE = {"lambda1": -1.0, "lambda2": 1.0}
#: What the paper's methods should be set against; no method of the paper.
SETTINGS.update(
    {
        "matched-sam": {**_COMMON, **_SCHEDULE},
        "inverted-sam": {**_COMMON, **_SCHEDULE, "delta": 0.9},
        "matched-looksam": {**_COMMON, "lambda1": 0.0, "lambda2": 2.0, "alpha": 0.5},
        "inverted-looksam": {**_COMMON, "lambda1": 0.0, "lambda2": 2.0, "delta": 0.9, "alpha": 0.5},
        "late-sam": {**_COMMON, "after": 0.75},
    }
)
NAMES = list(SETTINGS)
CONTROLS = NAMES[len(PAPER) :]


def check(name: str) -> None:
    if name not in SETTINGS:
        raise unknown("method", name, NAMES)


def fill(method: Method, *, strict: bool = True) -> Method:
    """The method with its defaults filled in and nothing that it does not know.

    A setting that means nothing to it is an error, or dropped where ``strict`` is False, as when
    one value is given for several methods.

    >>> fill(Method("looksam", k=2)).k, fill(Method("looksam", k=2)).alpha
    (2, 0.5)
    """
    check(method.name)
    known = SETTINGS[method.name]
    given = {k: v for k, v in dataclasses.asdict(method).items() if k != "name" and v is not None}
    foreign = sorted(set(given) - set(known))
    if foreign and strict:
        raise UsageError(
            f"{method.name} has no setting {' or '.join(foreign)}: it has "
            f"{', '.join(known) or 'none'}"
        )
    return Method(method.name, **{**known, **{k: v for k, v in given.items() if k in known}})


def make(
    method: Method, base: torch.optim.Optimizer, model: nn.Module, *, total_steps: int, seed: int
) -> aesam.SharpnessAware:
    """The optimizer of the library that a filled-in method stands for."""
    settings = {k: getattr(method, k) for k in SETTINGS[method.name]}
    makers: dict[str, Callable[..., aesam.SharpnessAware]] = {
        "erm": _erm,
        "sam": aesam.SAM,
        "esam": aesam.ESAM,
        "ss-sam": aesam.SSSAM,
        "looksam": aesam.LookSAM,
        "ae-sam": aesam.AESAM,
        "ae-looksam": aesam.AELookSAM,
    }
    if method.name.startswith("ae-"):
        settings["total_steps"] = total_steps
    if method.name in ("esam", "ss-sam"):
        settings["seed"] = seed
    if method.name in CONTROLS:
        return _control(method.name, settings, base, model, total_steps, seed)
    return makers[method.name](base, model, **settings)


def _control(
    name: str,
    settings: dict[str, Any],
    base: torch.optim.Optimizer,
    model: nn.Module,
    total_steps: int,
    seed: int,
) -> aesam.SharpnessAware:
    """A policy of :mod:`aesam.parts.controls` instead of the adaptive one, the rest as it was."""
    rho, normalize = settings.pop("rho"), settings.pop("normalize")
    between = Reuse(settings.pop("alpha")) if "alpha" in settings else Plain()
    kind = name.partition("-")[0]
    policies: dict[str, Callable[..., Policy]] = {
        "matched": partial(MatchedRate, seed=seed),
        "inverted": Inverted,
        "late": Late,
    }
    policy = policies[kind](**settings, total_steps=total_steps)
    return aesam.SharpnessAware(
        base, model, policy=policy, between=between, rho=rho, normalize=normalize
    )


def _erm(base: torch.optim.Optimizer, model: nn.Module) -> aesam.SharpnessAware:
    return aesam.SharpnessAware(base, model, policy=Never())


def check_settings(method: Method) -> None:
    """Let the library refuse impossible settings before anything is loaded or trained."""
    probe = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    try:
        make(method, probe, nn.Identity(), total_steps=1, seed=0)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
