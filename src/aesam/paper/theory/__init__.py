"""The paper's theorems as numbers: both sides of each bound, on problems with known β and σ²."""

from collections.abc import Callable

from aesam.lab.training.engine import threads
from aesam.paper.outcome import Result
from aesam.paper.setups import Options
from aesam.paper.theory.experiment import compute, sizes_of
from aesam.paper.theory.theory_figures import figures
from aesam.paper.theory.theory_text import conclusions, text


def theorem(options: Options, tell: Callable[[int, int], None]) -> Result:
    """Compute both sides of the theorems, corollaries and lemmas with the library's optimizer."""
    with threads(1):  # the problems have a handful of weights
        found = compute(options.preset, sizes_of(options.preset), tell)
    return Result(
        drawings=figures(found),
        findings=conclusions(found),
        data=found.as_json(),
        text=text(found),
    )
