"""From run folders to ``report.html`` and to ``results.json``, which has every number of it."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from aesam import Health
from aesam.lab import files
from aesam.lab.show import wording
from aesam.lab.show.comparison import Against, Comparison, MethodRow, compare
from aesam.lab.show.finished_runs import FinishedRun, read_runs, versions_of
from aesam.lab.show.health_table import health_of
from aesam.lab.show.page import html_report
from aesam.lab.show.stats import Spread


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


def as_json(comparisons: Sequence[Comparison], command: str) -> dict[str, Any]:
    """Everything the tables show and the numbers of every run, as plain JSON values.

    Folders appear by their name only, so that the file says nothing about the machine it was made
    on. Numbers that JSON does not have become null (not a number) or text (infinity).
    """
    runs = [run for comparison in comparisons for row in comparison.rows for run in row.runs]
    return _plain(
        {
            "command": command,
            "n": len(runs),
            "seeds": sorted({run.seed for run in runs}),
            "versions": versions_of(runs),
            "made_with": {name: version(name) for name in ("numpy", "scipy", "matplotlib")},
            "comparisons": [_comparison(comparison) for comparison in comparisons],
        }
    )


def _comparison(comparison: Comparison) -> dict[str, Any]:
    groups = enumerate(comparison.groups)
    rows = [{"group": index, **_row(row)} for index, group in groups for row in group]
    return {
        **_fields(comparison, "title", "settings", "measured_on", "score", "seeds"),
        "rows": rows,
    }


def _row(row: MethodRow) -> dict[str, Any]:
    spreads = ("accuracy", "percent_sam", "seconds", "times_erm", "train_accuracy")
    return {
        **_fields(row, "method", "label", "settings", "n", "seeds"),
        **({"loss": _spread(row.loss)} if row.loss else {}),
        **{name: _spread(getattr(row, name)) for name in spreads},
        "gradients_per_step": row.gradients_per_step,
        "health": _health(health_of(row)),
        "against_sam": _against(row.against_sam),
        "against_baseline": _against(row.against_baseline),
        **_fields(row, "best_in_group", "best_overall"),
        **_fields(row, "diverged_seeds", "skipped_steps"),
        "runs": [_run(run) for run in row.runs],
    }


def _fields(thing: Comparison | MethodRow, *names: str) -> dict[str, Any]:
    """What goes into the file as it is, under the same name."""
    return {name: getattr(thing, name) for name in names}


def _run(run: FinishedRun) -> dict[str, Any]:
    numbers = {k: v for k, v in run.summary.items() if k not in ("method", "seed", "versions")}
    return {"folder": run.folder.name, "seed": run.seed, **numbers, "diverged": run.diverged}


def _spread(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    interval = None if spread.interval is None else list(spread.interval)
    return {"mean": spread.mean, "std": spread.std, "interval_95": interval}


def _health(health: Health | None) -> dict[str, Any] | None:
    return None if health is None else {**asdict(health), "verdict": health.verdict}


def _against(against: Against | None) -> dict[str, Any] | None:
    if against is None:
        return None
    test = against.test
    return {
        "label": against.label,
        "common_seeds": test.n if test else None,
        "difference": test.difference if test else None,
        "p_value": test.p_value if test else None,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
