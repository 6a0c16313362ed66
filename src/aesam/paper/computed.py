"""Entries that are computed at once, without training runs that are kept."""

from collections.abc import Callable

from aesam.lab.training.threads import threads
from aesam.paper.benches import Options
from aesam.paper.cost import cost
from aesam.paper.outcome import Result

__all__ = ["cost", "theorem"]


def theorem(options: Options, told: Callable[[int, int], None]) -> Result:
    """Both sides of the paper's bounds; see :mod:`aesam.paper.theory`."""
    from aesam.paper import theory

    with threads(1):  # the problems have a handful of weights
        found = theory.theorem(options.preset, told)
    return Result(
        drawings=found.figures(),
        findings=found.conclusions(),
        data=found.as_json(),
        text=found.text(),
    )
