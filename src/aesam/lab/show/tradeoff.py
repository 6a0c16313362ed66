# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""Accuracy against cost: what each method gives for what it takes."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aesam.lab.lab_methods import colour_of, marker_of
from aesam.lab.show.canvas import draw, shortened
from aesam.lab.show.comparison import Comparison, MethodRow
from aesam.lab.show.curves import drawn_rows
from aesam.lab.show.labels import Mark, label_marks

CROWD = 10  # with more points than this, only each method's best setting is labelled


def has_times(comparison: Comparison) -> bool:
    """Whether costs can be multiples of ERM's time; if not they are gradients per step."""
    return all(row.times_erm is not None for row in comparison.rows)


def accuracy_against_cost(comparison: Comparison, name: str, *, times: bool = True) -> str:
    """A point with error bars for each row, labelled beside it if there is room.

    Without ``times``, or without an ERM to divide them by, the cost is gradients per step.
    """
    timed = times and has_times(comparison)

    def paint(figure: Figure, axes: Axes) -> None:
        for row in comparison.rows:
            axes.errorbar(
                _cost(row, timed),
                row.counted.mean,
                xerr=_cost_deviation(row, timed),
                yerr=row.counted.std,
                color=colour_of(row.method),
                marker=marker_of(row.method),
                markersize=10,
                markeredgecolor="white",
                markeredgewidth=0.5,
                elinewidth=1.3,
                capsize=3,
            )
        unit = "training time (multiple of ERM's)" if timed else "cost (gradients per step)"
        axes.set_xlabel(unit)
        unit = "" if comparison.score == "loss" else " (%)"
        axes.set_ylabel(f"{comparison.measured_on} {comparison.score}{unit}")
        axes.margins(0.12)
        figure.draw_without_rendering()  # the layout must be known to place labels on it
        crowded = len(comparison.rows) > CROWD
        rows = drawn_rows(comparison, 1) if crowded else comparison.rows
        label_marks(axes, [_mark(row, timed) for row in rows])

    return draw(name, paint)


def _cost(row: MethodRow, timed: bool) -> float:
    return row.times_erm.mean if timed and row.times_erm else row.gradients_per_step


def _cost_deviation(row: MethodRow, timed: bool) -> float | None:
    return row.times_erm.std if timed and row.times_erm else None


def _mark(row: MethodRow, timed: bool) -> Mark:
    wide, high = _cost_deviation(row, timed) or 0.0, row.counted.std or 0.0
    return Mark(_cost(row, timed), row.counted.mean, shortened(row.label), wide, high)
