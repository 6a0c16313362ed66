"""Finished runs: where they lie, which rows they belong to, and how they are published."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aesam.lab import files
from aesam.lab.config import Run, as_dict
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.grid import Job
from aesam.lab.show import Comparison, FinishedRun, read_runs, wording
from aesam.lab.show.comparison import comparison_of
from aesam.lab.show.grouping import shared_settings
from aesam.paper.plan import Panel, Row

#: The folder of a finished run, None where it is not finished.
Find = Callable[[Run], Path | None]


class Shelf:
    """Finished runs: first where new ones go, then in folders that are only read."""

    def __init__(self, out: Path, caches: Sequence[Path] = ()) -> None:
        self._out, self._places = out, (out, *caches)

    def find(self, run: Run) -> Path | None:
        """The folder of this run if it is finished anywhere."""
        for place in self._places:
            folder = folder_of(run, place)
            if Job(run, folder).is_finished:
                return folder
        return None

    def jobs(self, runs: Iterable[Run]) -> list[Job]:
        """The runs with their folders; those in a cache keep theirs and are never run again."""
        return [Job(run, self.find(run) or folder_of(run, self._out)) for run in runs]


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


def publish(run: Run, folder: Path, target: Path) -> Path:
    """Copy what a report needs of a finished run; without checkpoint, machine paths or its trace.

    The decision trace, five numbers for each step, would be most of what is published, and no table
    or figure of the paper reads it. All other numbers are copied as they are.
    """
    place = folder_of(run, target)
    if place == folder:
        return place
    settings = files.read_json(folder / "config.json")  # as it was run, not as it is planned now
    settings["data"]["root"] = "data"
    files.write_json(place / "config.json", settings)
    lines = files.read_lines(folder / "metrics.jsonl")
    RunFolder(place).write_metrics([_without_trace(line) for line in lines])
    files.write_json(place / "summary.json", files.read_json(folder / "summary.json"))
    return place


def _without_trace(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "trace"}
