"""``aesam report``: the table and the page, from runs that are finished."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from aesam.lab.cli.console import console, say
from aesam.lab.errors import UsageError
from aesam.lab.show import as_rich, results_sheet, write_report


@dataclass(frozen=True)
class Report:
    """Make the table, results.json and report.html from finished runs."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders that hold runs, at any depth."""
    out: Path | None = None
    """Where to write; the first folder if left out."""

    def __call__(self) -> int:
        if not self.folders:
            raise UsageError("report needs at least one folder that holds finished runs")
        out = self.out or self.folders[0]
        command = shlex.join(["aesam", *sys.argv[1:]])
        for comparison in write_report(self.folders, out, command=command):
            console.print(as_rich(results_sheet(comparison, narrow=True), console.width))
        say(f"written: {out / 'report.html'}, {out / 'results.json'}")
        return 0
