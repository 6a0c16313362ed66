"""From finished runs on disk back to the rows they belong to."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aesam.lab.config import Run, as_dict
from aesam.lab.report import Comparison, FinishedRun, read_runs
from aesam.lab.report.comparison import comparison_of
from aesam.lab.report.grouping import shared_settings
from aesam.lab.reproduce.plan import Panel, Row

#: The folder of a finished run, None where it is not finished.
Find = Callable[[Run], Path | None]


def runs_of_row(row: Row, find: Find) -> list[FinishedRun]:
    """The row's finished runs under the name that the row is drawn as."""
    folders = [folder for run in row.runs if (folder := find(run)) is not None]
    return [_renamed(run, row.method) for run in read_runs(folders)] if folders else []


def comparison_for(panel: Panel, find: Find) -> Comparison | None:
    """The panel's rows that have finished runs, compared; None where none has."""
    named = [(row.label, runs_of_row(row, find)) for row in panel.rows]
    named = [(label, runs) for label, runs in named if runs]
    if not named:
        return None
    return comparison_of(panel.title, _settings(panel), named)


def _settings(panel: Panel) -> dict[str, Any]:
    run = panel.rows[0].runs[0]
    return shared_settings(FinishedRun(Path(), as_dict(run), [], {}))


def _renamed(run: FinishedRun, method: str) -> FinishedRun:
    """The run as its row calls it: ERM for twice as long is no row of ERM's."""
    named = {**run.config["method"], "name": method}
    return replace(run, config={**run.config, "method": named})
