"""An entry's files: numbers, tables in plain text, figures and the page."""

import json
import os
import platform
from pathlib import Path
from typing import Any

from aesam.lab import files
from aesam.lab.show import table
from aesam.lab.show.finished_runs import versions_of
from aesam.lab.show.page import render
from aesam.lab.training.trainer import versions
from aesam.paper.entries import Entry, Trained
from aesam.paper.outcome import Result
from aesam.paper.paper_numbers import SOURCE
from aesam.paper.setups import Options
from aesam.paper.verdicts import sheets_of, summary

SMALL = "a small run, not the paper's set-up"


def text_of(entry: Entry, options: Options, result: Result) -> str:
    """Everything in plain text: tables, findings and notes."""
    parts = [f"{entry.name}: {entry.paper} – {entry.shows}", result.text.strip()]
    if options.is_small and isinstance(entry, Trained):
        parts[0] += f"\nHere: {SMALL}."
    parts += [table.as_text(each).rstrip() for each in result.sheets]
    parts += [summary(result.verdicts)] if result.verdicts else []
    parts += ["\n".join(f"- {sentence}" for sentence in result.sentences)]
    parts += ["\n".join(f"Note: {note}" for note in result.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def write(entry: Entry, options: Options, result: Result, folder: Path, command: str) -> None:
    """``results.json``, ``table.txt``, an SVG for each figure and ``report.html``."""
    small = f" ({SMALL})" if options.is_small else ""
    title = f"{entry.paper}: {entry.shows}"
    page = page_of(
        title, f"aesam reproduce {entry.name}, preset {options.preset}{small}.", result, command
    )
    data = json.dumps(
        files.without_nan(numbers_of(entry, options, result, command)), indent=1, ensure_ascii=False
    )
    files.write_text(folder / "results.json", data + "\n")
    files.write_text(folder / "table.txt", text_of(entry, options, result))
    for old in folder.glob("*.svg"):  # of an earlier, wider table
        old.unlink()
    for drawing in result.drawings:
        files.write_text(folder / f"{drawing.name}.svg", drawing.svg + "\n")
    files.write_text(folder / "report.html", page)


def page_of(title: str, lede: str, result: Result, command: str) -> str:
    """One self-contained page: what the paper says, what was found here, and how."""
    counted = [summary(result.verdicts)] if result.verdicts else []
    return render(
        "entry.html",
        title=title,
        lede=lede,
        found=[*counted, *result.findings],
        text=result.text,
        sheets=[*result.sheets, *sheets_of(result.verdicts)],
        drawings=result.drawings,
        command=command,
        versions=_versions(result),
        source=SOURCE,
        notes=result.notes,
    )


def _versions(result: Result) -> str:
    shown = ", ".join(f"{name} {number}" for name, number in versions_of(result.runs).items())
    return f"{len(result.runs)} runs; {shown}." if shown else ""


def numbers_of(entry: Entry, options: Options, result: Result, command: str) -> dict[str, Any]:
    """What goes into ``results.json``."""
    return {
        "command": command,
        "entry": entry.name,
        "of": entry.paper,
        "preset": options.preset,
        "runs": len(result.runs),
        "seeds": sorted({run.seed for run in result.runs}),
        "versions": versions_of(result.runs) or versions(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "findings": result.sentences,
        "tables": [table.as_json(each) for each in result.sheets],
        **result.data,
    }
