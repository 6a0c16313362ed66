"""The numbers of the paper's four tables, to stand beside ours."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

SOURCE = "An Adaptive Policy to Employ Sharpness-Aware Minimization, ICLR 2023"


@dataclass(frozen=True)
class PaperNumber:
    """What the paper reports of one method in one place; deviations where it gives them."""

    accuracy: float
    accuracy_std: float | None
    percent_sam: float

    def shown(self) -> str:
        """The accuracy as the paper prints it."""
        deviation = "" if self.accuracy_std is None else f" ± {self.accuracy_std:.2f}"
        return f"{self.accuracy:.2f}{deviation}"


@cache
def all_numbers() -> dict[str, Any]:
    """The tables as they are kept: a list of rows for each."""
    path = resources.files("aesam.paper") / "paper_results.json"
    return json.loads(path.read_text(encoding="utf-8"))


def find(table: str, **where: Any) -> PaperNumber | None:
    """The row of a table that has these values; None where the paper has none.

    >>> find("imagenet", method="erm").shown()
    '77.11 ± 0.14'
    """
    for row in all_numbers()[table]:
        if all(row.get(name) == value for name, value in where.items()):
            return PaperNumber(row["accuracy"], row.get("accuracy_std"), row["percent_sam"])
    return None
