"""What an entry ends in: tables, figures, what follows from them, and all numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aesam.lab.show.canvas import Drawing
from aesam.lab.show.finished_runs import FinishedRun
from aesam.lab.show.table import Sheet
from aesam.paper.claims import Verdict


@dataclass(frozen=True)
class Result:
    """Everything that is shown of an entry; ``data`` are the numbers behind it.

    ``findings`` are sentences; ``verdicts`` are so many that a page shows them as tables.
    """

    sheets: Sequence[Sheet] = ()
    drawings: Sequence[Drawing] = ()
    findings: Sequence[str] = ()
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    runs: Sequence[FinishedRun] = ()
    text: str = ""

    @property
    def sentences(self) -> list[str]:
        """Everything that was found, a sentence each."""
        return [*self.findings, *(verdict.sentence() for verdict in self.verdicts)]
