"""``aesam report``: the table and the page, from runs that are finished."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aesam.lab.cli.console import command_line, console, say
from aesam.lab.errors import UsageError
from aesam.lab.show import as_rich, results_sheet, write_report


@dataclass(frozen=True)
class Report:
    """Make the table, results.json and report.html from finished runs."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders that hold runs, at any depth."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Where to write; the first folder if left out."""

    def __call__(self) -> int:
        if not self.folders:
            raise UsageError("report needs at least one folder that holds finished runs")
        out = self.out or self.folders[0]
        for comparison in write_report(self.folders, out, command=command_line()):
            console.print(as_rich(results_sheet(comparison, narrow=True), console.width))
        say(f"written: {out / 'report.html'}, {out / 'results.json'}")
        return 0
