"""Which runs an entry needs, where they are, and which are still to be made."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aesam.lab import files
from aesam.lab.config import Run
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.grid import Job


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
