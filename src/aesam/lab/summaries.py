"""The summary of a finished run: what must be in it, and whether the run diverged."""

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from aesam.lab import second_gradients

#: A run of whose steps a larger share was skipped did not train as asked.
MOST_SKIPPED = 0.1

# The largest value of each number that tables and figures are made of; the least is 0.
_MOST = {
    "train_accuracy": 100.0,
    "percent_sam": 100.0,
    "steps": 2.0**53,
    "gradients": 2.0**53,
    "seconds": 1e12,
}
_MAY_LACK = {"test_accuracy": 100.0, "validation_accuracy": 100.0, "skipped_steps": 2.0**53}


def has_diverged(steps: int, skipped: int, losses: Iterable[float]) -> bool:
    """Whether a run ended without a loss, or without the steps that it was to take."""
    return skipped > MOST_SKIPPED * steps or not all(map(math.isfinite, losses))


def is_diverged(summary: Mapping[str, Any]) -> bool:
    """Whether a summary is of such a run; those of before did not say so, but lost their loss."""
    loss = summary.get("train_loss", 0.0)
    return bool(summary.get("diverged", loss is None or not math.isfinite(loss)))


def skipped_steps(summary: Mapping[str, Any]) -> int:
    """Updates that were skipped since a gradient was not finite; 0 where nobody counted."""
    return int(summary.get("skipped_steps") or 0)


def remarks(summary: Mapping[str, Any]) -> str:
    """What is to be said of a run beside its numbers, or nothing.

    >>> remarks({"skipped_steps": 3, "steps": 36})
    '3 of 36 steps skipped'
    >>> remarks({"skipped_steps": 0, "steps": 36, "diverged": True})
    'diverged'
    """
    skipped = skipped_steps(summary)
    told = [f"{skipped} of {summary['steps']} steps skipped"] if skipped else []
    return ", ".join((["diverged"] if is_diverged(summary) else []) + told)


def fault(summary: object) -> str | None:
    """What makes this no summary of a run; None where all is there and can be."""
    if not isinstance(summary, dict):
        return f"expected an object, got {type(summary).__name__}"
    found: dict[str, Any] = summary  # pyright: ignore[reportUnknownVariableType]
    for name, most in _MOST.items():
        if not _is_within(found.get(name), most):
            return f"it has no number as {name!r} that can be: {found.get(name)!r:.80}"
    for name, most in _MAY_LACK.items():
        if found.get(name) is not None and not _is_within(found[name], most):
            return f"it has no number as {name!r} that can be: {found[name]!r:.80}"
    if found.get("test_accuracy") is None and found.get("validation_accuracy") is None:
        return "it has neither a test_accuracy nor a validation_accuracy"
    loss = found.get("train_loss")
    if loss is not None and not _is_within(loss, math.inf) and not isinstance(loss, float):
        return f"it has no number as 'train_loss': {loss!r:.80}"
    if not isinstance(found.get("versions", {}), dict):
        return "it has no names and numbers as 'versions'"
    if (wrong := second_gradients.fault(found.get("health"))) is not None:
        return wrong
    return None if isinstance(found.get("diverged", False), bool) else "'diverged' is not yes or no"


def _is_within(value: object, most: float) -> bool:
    """Whether this is a number from 0 to ``most``; JSON's true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= min(most, sys.float_info.max)  # whole numbers may be of any size
