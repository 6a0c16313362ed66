"""The comparison as data: what goes into ``results.json``."""

import math
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, cast

from aesam.lab.show.comparison import Against, Comparison, MethodRow
from aesam.lab.show.finished_runs import FinishedRun
from aesam.lab.show.stats import Spread


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


def versions_of(runs: Iterable[FinishedRun]) -> dict[str, str]:
    """The versions the runs were made with; several of one package are listed."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, number in run.summary.get("versions", {}).items():
            found.setdefault(name, set()).add(str(number))
    return {name: ", ".join(sorted(found[name])) for name in sorted(found)}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "title": comparison.title,
        "settings": comparison.settings,
        "measured_on": comparison.measured_on,
        "seeds": comparison.seeds,
        "rows": [
            {"group": index, **_row(row)}
            for index, group in enumerate(comparison.groups)
            for row in group
        ],
    }


def _row(row: MethodRow) -> dict[str, Any]:
    return {
        "method": row.method,
        "label": row.label,
        "settings": row.settings,
        "n": row.n,
        "seeds": row.seeds,
        "accuracy": _spread(row.accuracy),
        "percent_sam": _spread(row.percent_sam),
        "seconds": _spread(row.seconds),
        "times_erm": _spread(row.times_erm),
        "train_accuracy": _spread(row.train_accuracy),
        "gradients_per_step": row.gradients_per_step,
        "against_sam": _against(row.against_sam),
        "against_baseline": _against(row.against_baseline),
        "best_in_group": row.best_in_group,
        "best_overall": row.best_overall,
        "runs": [_run(run) for run in row.runs],
    }


def _run(run: FinishedRun) -> dict[str, Any]:
    numbers = {k: v for k, v in run.summary.items() if k not in ("method", "seed", "versions")}
    return {"folder": run.folder.name, "seed": run.seed, **numbers}


def _spread(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    interval = None if spread.interval is None else list(spread.interval)
    return {"mean": spread.mean, "std": spread.std, "interval_95": interval}


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
