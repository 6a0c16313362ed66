"""The page's tables as HTML. Whatever comes from a file is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape

from aesam.lab.lab_methods import colour_of, marker_of
from aesam.lab.show import tables, wording
from aesam.lab.show.comparison import Against, Comparison, MethodRow
from aesam.lab.show.finished_runs import FinishedRun
from aesam.lab.show.stats import Spread

WORDS = ' class="words"'
OUTLINES = {  # the figures' markers on a 20 × 20 field
    "o": '<circle cx="10" cy="10" r="7"/>',
    "s": '<path d="M4 4h12v12h-12z"/>',
    "D": '<path d="M10 2l8 8l-8 8l-8-8z"/>',
    "^": '<path d="M10 2l8 15h-16z"/>',
    "v": '<path d="M10 18l8-15h-16z"/>',
    "P": '<path d="M7 2h6v5h5v6h-5v5h-6v-5h-5v-6h5z"/>',
    "X": '<path d="M6 2l4 4l4-4l4 4l-4 4l4 4l-4 4l-4-4l-4 4l-4-4l4-4l-4-4z"/>',
    "<": '<path d="M2 10l15-8v16z"/>',
    ">": '<path d="M18 10l-15-8v16z"/>',
    "p": '<path d="M10 2l8 6l-3 10h-10l-3-10z"/>',
    "d": '<path d="M10 1l5 9l-5 9l-5-9z"/>',
    "h": '<path d="M10 2l7 4v8l-7 4l-7-4v-8z"/>',
}


def comparison_table(comparison: Comparison) -> str:
    """The paper's table: a body for each group of similar % SAM."""
    bodies = [[_comparison_row(row) for row in group] for group in comparison.groups]
    # The letters n and p are symbols and stay small.
    shown = tables.headers(comparison)
    names = [n if n == "n" or n.startswith("p ") else n[0].upper() + n[1:] for n in shown]
    return _table(f"Results on {comparison.title}", names, bodies)


def settings_table(comparison: Comparison) -> str:
    """The settings of each method."""
    rows = [
        f"<tr>{_method(row)}<td{WORDS}>{escape(wording.settings(row.settings))}</td></tr>"
        for row in comparison.rows
    ]
    return _table(f"Settings of each method on {comparison.title}", ["Method", "Settings"], [rows])


def runs_table(comparison: Comparison) -> str:
    """Every run's own numbers, a body for each method, with the interval of its mean."""
    names = ["Method", "Seed", f"{comparison.measured_on.capitalize()} accuracy", "Train accuracy"]
    names += ["% SAM", "Gradients", "Seconds", "95 % interval of the mean accuracy"]
    bodies = [[_run_row(row, run) for run in row.runs] for row in comparison.rows]
    return _table(f"Every run on {comparison.title}", names, bodies)


def key(method: str) -> str:
    """The method's marker in its colour, as in the figures; the light rim is for dark pages."""
    shape = OUTLINES[marker_of(method)]
    paint = f'fill="{colour_of(method)}" stroke="#ffffff" stroke-width="1.5"'
    return f'<svg class="key" viewBox="0 0 20 20" aria-hidden="true" {paint}>{shape}</svg>'


def _comparison_row(row: MethodRow) -> str:
    classes = " ".join(
        name
        for name, is_set in (("overall", row.best_overall), ("group", row.best_in_group))
        if is_set
    )
    cells = [
        str(row.n),
        _spread(row.accuracy, 2, classes),
        _spread(row.percent_sam, 1),
        wording.times(row.times_erm),
        f"{row.gradients_per_step:.2f}",
        _spread(row.train_accuracy, 2),
        escape(tables.p_against(row.against_sam)),
        _against(row.against_baseline),
    ]
    return f"<tr>{_method(row)}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _run_row(row: MethodRow, run: FinishedRun) -> str:
    first = run is row.runs[0]
    interval = row.accuracy.interval
    shown = f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else wording.NOTHING
    cells = [
        str(run.seed),
        f"{row.accuracies[run.seed]:.2f}",
        f"{run.summary['train_accuracy']:.2f}",
        f"{run.summary['percent_sam']:.1f}",
        f"{run.summary['gradients']:g}",
        f"{run.summary['seconds']:.2f}",
        shown if first else "",
    ]
    head = _method(row) if first else "<th></th>"
    return f"<tr>{head}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _method(row: MethodRow) -> str:
    return f'<th scope="row">{key(row.method)}{escape(row.label)}</th>'


def _spread(spread: Spread, digits: int, classes: str = "") -> str:
    mean, sign, deviation = wording.plus_minus(spread, digits).partition(" ± ")
    marked = f'<span class="{classes}">{mean}</span>' if classes else mean
    return f'{marked}<span class="pm">{sign}{deviation}</span>' if sign else marked


def _against(other: Against | None) -> str:
    tested = other is not None and other.test is not None
    name = escape(other.label) if other is not None and tested else ""
    return f'{escape(tables.p_against(other))} <span class="of">{name}</span>'


def _table(label: str, names: Sequence[str], bodies: Iterable[Sequence[str]]) -> str:
    """A table in a box of its own that scrolls sideways, by touch or by keyboard."""
    head = "".join(
        f'<th scope="col"{WORDS * (name == "Settings")}>{escape(name)}</th>' for name in names
    )
    body = "\n".join(f"<tbody>\n{chr(10).join(rows)}\n</tbody>" for rows in bodies)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n{body}\n</table>\n</div>"
    )
