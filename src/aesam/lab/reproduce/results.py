"""What an entry ends in: tables, figures, what follows from them, and all numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aesam.lab.report.figures import Drawing
from aesam.lab.report.runs import FinishedRun
from aesam.lab.reproduce.sheet import Sheet


@dataclass(frozen=True)
class Result:
    """Everything that is shown of an entry; ``data`` are the numbers behind it."""

    sheets: Sequence[Sheet] = ()
    drawings: Sequence[Drawing] = ()
    findings: Sequence[str] = ()
    notes: Sequence[str] = ()
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    runs: Sequence[FinishedRun] = ()
    text: str = ""
