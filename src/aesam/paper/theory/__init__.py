"""The paper's theorems as numbers: both sides of each bound, on problems with known β and σ²."""

from collections.abc import Callable

from aesam.paper.theory.experiment import run
from aesam.paper.theory.presets import PRESETS, preset_of
from aesam.paper.theory.result import TheoryResult

__all__ = ["PRESETS", "TheoryResult", "theorem"]


def theorem(preset: str, progress: Callable[[int, int], None] | None = None) -> TheoryResult:
    """Compute both sides of the theorems, corollaries and lemmas with the library's optimizer.

    Args:
        preset: ``"small"`` takes less than a minute, ``"paper"`` more T and more repetitions.
        progress: called with the number of jobs done, and of all.
    """
    return run(preset, preset_of(preset), progress)
