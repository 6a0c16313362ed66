"""Entries that are computed at once, without training runs that are kept."""

from collections.abc import Callable

from aesam.lab.reproduce.benches import Options
from aesam.lab.reproduce.cost import cost
from aesam.lab.reproduce.results import Result
from aesam.lab.threads import threads

__all__ = ["cost", "theorem"]


def theorem(options: Options, told: Callable[[int, int], None]) -> Result:
    """Both sides of the paper's bounds; see :mod:`aesam.lab.theory`."""
    from aesam.lab import theory

    with threads(1):  # the problems have a handful of weights
        found = theory.theorem(options.preset, told)
    return Result(
        drawings=found.figures(),
        findings=found.conclusions(),
        data=found.as_json(),
        text=found.text(),
    )
