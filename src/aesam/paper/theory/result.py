"""What came out, as JSON, as text and as figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aesam.lab.show.canvas import Drawing
from aesam.paper.theory.lemmas import LemmaCheck
from aesam.paper.theory.sides import Sides
from aesam.paper.theory.variance import VarianceCheck


@dataclass(frozen=True)
class TheoryResult:
    """Both sides of every bound that was computed, the lemmas and the variance identity."""

    preset: str
    problems: tuple[Mapping[str, str | float | int], ...]
    rows: tuple[Sides, ...]
    counter_example: tuple[Sides, ...]
    lemmas: tuple[LemmaCheck, ...]
    variances: tuple[VarianceCheck, ...]

    @property
    def broken(self) -> tuple[Sides | LemmaCheck | VarianceCheck, ...]:
        """What was claimed and did not hold; empty if the theory is right and so is the code."""
        bounds = [row for row in (*self.rows, *self.counter_example) if row.verdict == "BROKEN"]
        checks = [check for check in (*self.lemmas, *self.variances) if not check.holds]
        return (*bounds, *checks)

    def as_json(self) -> dict[str, Any]:
        """Every number of the tables and figures, in plain values."""
        return {
            "preset": self.preset,
            "problems": [dict(problem) for problem in self.problems],
            "rows": [row.as_json() for row in self.rows],
            "counter_example": [row.as_json() for row in self.counter_example],
            "lemmas": [check.as_json() for check in self.lemmas],
            "variances": [check.as_json() for check in self.variances],
            "broken": [check.as_json() for check in self.broken],
        }

    def conclusions(self) -> list[str]:
        """What the tables say, in words."""
        from aesam.paper.theory.conclusions import conclusions

        return conclusions(self)

    def text(self) -> str:
        """Tables for a terminal."""
        from aesam.paper.theory.text import text

        return text(self)

    def figures(self) -> list[Drawing]:
        """SVG text with headings and captions."""
        from aesam.paper.theory.theory_figures import figures

        return figures(self)
