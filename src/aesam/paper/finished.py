"""From finished runs on disk back to the rows they belong to."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aesam.lab.config import Run, as_dict
from aesam.lab.show import Comparison, FinishedRun, read_runs, wording
from aesam.lab.show.comparison import comparison_of
from aesam.lab.show.grouping import shared_settings
from aesam.paper.plan import Panel, Row

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


def unfinished(panels: Iterable[Panel], find: Find) -> list[str]:
    """What a reader does not see, a sentence for each panel that lacks something."""
    found = [(panel.title, _gone(panel, find)) for panel in panels]
    return [f"Not finished, {title}: {'; '.join(gone)}." for title, gone in found if gone]


def _gone(panel: Panel, find: Find) -> list[str]:
    lacking = [(row.label, [r.seed for r in row.runs if find(r) is None]) for row in panel.rows]
    if all(
        len(seeds) == len(row.runs) for (_, seeds), row in zip(lacking, panel.rows, strict=True)
    ):
        return ["all of it"]
    return [f"{label} (seed {wording.whole_numbers(seeds)})" for label, seeds in lacking if seeds]


def _settings(panel: Panel) -> dict[str, Any]:
    run = panel.rows[0].runs[0]
    return shared_settings(FinishedRun(Path(), as_dict(run), [], {}))


def _renamed(run: FinishedRun, method: str) -> FinishedRun:
    """The run as its row calls it: ERM for twice as long is no row of ERM's."""
    named = {**run.config["method"], "name": method}
    return replace(run, config={**run.config, "method": named})
