"""Self-contained pages: the one way from data to HTML, and the report on comparisons.

Pages are Jinja templates in ``templates/``, with everything that comes from a file escaped. They
need no scripts and ask nobody for anything, and their content policy says so to the browser.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from aesam.lab.lab_methods import colour_of, marker_of
from aesam.lab.show import wording
from aesam.lab.show.comparison import Comparison, MethodRow
from aesam.lab.show.comparison_tables import counted, results_sheet, runs_sheet, settings_sheet
from aesam.lab.show.finished_runs import FinishedRun, versions_of
from aesam.lab.show.health_table import health_sheet
from aesam.lab.show.table import Sheet, cells_of

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from aesam.lab.show.canvas import Drawing

OTHER = "M10 2l7 4v8l-7 4l-7-4v-8z"
OUTLINES = {  # the figures' markers on a 20 × 20 field
    "o": "M3 10a7 7 0 1 1 14 0a7 7 0 1 1 -14 0z",
    "s": "M4 4h12v12h-12z",
    "D": "M10 2l8 8l-8 8l-8-8z",
    "^": "M10 2l8 15h-16z",
    "v": "M10 18l8-15h-16z",
    "P": "M7 2h6v5h5v6h-5v5h-6v-5h-5v-6h5z",
    "X": "M6 2l4 4l4-4l4 4l-4 4l4 4l-4 4l-4-4l-4 4l-4-4l4-4l-4-4z",
    "<": "M2 10l15-8v16z",
    ">": "M18 10l-15-8v16z",
    "p": "M10 2l8 6l-3 10h-10l-3-10z",
    "d": "M10 1l5 9l-5 9l-5-9z",
    "h": OTHER,
}
STATISTICS = (
    "± is the sample standard deviation over seeds (n − 1 in the denominator).",
    "The 95 % intervals of means are by percentile bootstrap; with few seeds they are too narrow.",
    "p is of a two-sided t-test on differences paired by seed, not corrected for many comparisons.",
    "Of a baseline with several settings, the most accurate one with similar % SAM is taken.",
    "Times are training seconds without evaluation, as measured where the runs ran.",
)


def render(template: str, **values: Any) -> str:
    """The text of an HTML file from a template and what it shows."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only when a page is made

    environment = Environment(
        loader=PackageLoader("aesam.lab.show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    return environment


def _outline(method: str) -> str:
    """The path of a method's marker; a hexagon for one that has no drawing here."""
    return OUTLINES.get(marker_of(method), OTHER)


def _heading(text: str) -> str:
    """With a capital, except for symbols: letters that stand alone, and Greek ones."""
    is_symbol = len(text.split(" ", 1)[0]) == 1 or not text[:1].isascii()
    return text if is_symbol else text[:1].upper() + text[1:]


def _opened(svg: str) -> "Markup":
    """Our own SVG after its ``<svg``, for the page to name; inside a page it needs no namespace."""
    from markupsafe import Markup

    return Markup(re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg.removeprefix("<svg"), count=2))


FILTERS: dict[str, Any] = {
    "cells": cells_of,
    "colour": colour_of,
    "heading": _heading,
    "opened": _opened,
    "outline": _outline,
    "plus_minus": wording.plus_minus,
}


@dataclass(frozen=True)
class Tile:
    """One number at the head of a comparison; a remark may end in the name of a row."""

    name: str
    value: str
    remark: str
    row: MethodRow | None = None


@dataclass(frozen=True)
class Section:
    """What the report shows of one comparison; ``name`` is its place on the page."""

    name: str
    comparison: Comparison
    tiles: list[Tile]
    results: Sheet
    health: Sheet | None
    drawings: "list[Drawing]"
    runs: Sheet
    settings: Sheet
    shared_settings: dict[str, str]


def html_report(
    comparisons: Sequence[Comparison],
    runs: Sequence[FinishedRun],
    *,
    title: str,
    command: str,
    notes: Sequence[str],
) -> str:
    """The report as the text of one HTML file."""
    return render(
        "report.html",
        title=title,
        lede=_lede(runs),
        sections=[_section(c, f"c{i}") for i, c in enumerate(comparisons, 1)],
        command=command,
        made_from=_made_from(runs),
        notes=(*notes, *STATISTICS),
    )


def _lede(runs: Sequence[FinishedRun]) -> str:
    methods, seeds = {run.method for run in runs}, {run.seed for run in runs}
    counted = [(len(methods), "method"), (len(seeds), "seed"), (len(runs), "finished run")]
    return ", ".join(f"{number} {name}{'s' * (number != 1)}" for number, name in counted) + "."


def _made_from(runs: Sequence[FinishedRun]) -> dict[str, str]:
    seeds = sorted({run.seed for run in runs})
    versions = ", ".join(f"{name} {number}" for name, number in versions_of(runs).items())
    return {
        "Runs": str(len(runs)),
        "Seeds": f"{len(seeds)} ({wording.whole_numbers(seeds)})",
        "Versions": wording.printable(versions) or wording.NOTHING,
    }


def _section(comparison: Comparison, name: str) -> Section:
    from aesam.lab.show.figures import figures  # matplotlib only when something is drawn

    shared = ("data", "model", "training")
    return Section(
        name,
        comparison,
        _tiles(comparison),
        results_sheet(comparison),
        health_sheet(comparison),
        figures(comparison, name),
        runs_sheet(comparison),
        settings_sheet(comparison),
        {part: wording.settings(comparison.settings[part]) for part in shared},
    )


def _tiles(comparison: Comparison) -> list[Tile]:
    """The best method in a few numbers."""
    best = comparison.best
    split = "" if comparison.measured_on == "test" else f"{counted(comparison)}, "
    loss, accuracy = best.loss, f"{best.accuracy.mean:.1f} %"
    return [
        Tile("Lowest loss", f"{loss.mean:.3f}", split, best)
        if loss
        else Tile("Most accurate", accuracy, split, best),
        *_gain(best),
        *_time(best, comparison),
        Tile("SAM used on", f"{best.percent_sam.mean:.0f} %", "of its steps"),
    ]


def _gain(best: MethodRow) -> list[Tile]:
    against = best.against_sam or best.against_baseline
    if against is None or against.test is None:
        return []
    places, unit = (3, "loss") if best.loss else (1, "points")
    apart = f"{against.test.difference:+.{places}f}".replace("-", "−")
    return [Tile(f"Against {against.label}", apart, f"{unit}, {wording.p_statement(against.test)}")]


def _time(best: MethodRow, comparison: Comparison) -> list[Tile]:
    if best.times_erm is None:
        return []
    sam = [row for row in comparison.rows if row.method == "sam"]
    beside = f" (SAM: {wording.times(sam[0].times_erm)})" if sam and best.method != "sam" else ""
    return [Tile("Training time", wording.times(best.times_erm), f"ERM's{beside}")]
