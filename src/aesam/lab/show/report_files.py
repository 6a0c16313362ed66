"""From run folders to ``results.json`` and ``report.html``."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from aesam.lab import files
from aesam.lab.show import wording
from aesam.lab.show.comparison import Comparison, compare
from aesam.lab.show.finished_runs import read_runs
from aesam.lab.show.page import html_report
from aesam.lab.show.results_json import as_json


def write_report(
    folders: Iterable[Path], out_dir: Path, *, command: str, notes: Sequence[str] = ()
) -> list[Comparison]:
    """Read the finished runs, write both files into ``out_dir`` and return the comparisons.

    Everything is computed before anything is written, and each file appears whole or not at all.
    """
    runs = read_runs(folders)
    comparisons = compare(runs)
    data = json.dumps(as_json(comparisons, command), indent=2, ensure_ascii=False, allow_nan=False)
    page = html_report(
        comparisons, runs, title=_title(comparisons), command=command, notes=list(notes)
    )
    for name, text in (("results.json", data + "\n"), ("report.html", page)):
        files.write_text(out_dir / name, text)
    return comparisons


def _title(comparisons: Sequence[Comparison]) -> str:
    names = dict.fromkeys(wording.printable(c.settings["data"].get("name")) for c in comparisons)
    return f"Sharpness-aware training on {', '.join(names)}"
