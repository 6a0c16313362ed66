# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""Accuracy against cost: what each method gives for what it takes."""

from dataclasses import dataclass
from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aesam.lab.lab_methods import colour_of, marker_of
from aesam.lab.show.canvas import draw, shortened
from aesam.lab.show.comparison import Comparison, MethodRow
from aesam.lab.show.curves import drawn_rows

TYPE = 11.5  # points
CROWD = 10  # with more points than this, only each method's best setting is labelled
MARK = 6.0  # points from a mark's middle within which a label would touch it


@dataclass(frozen=True)
class Box:
    """A rectangle on the paper, in points."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "Box") -> float:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)

    def outside(self, other: "Box") -> float:
        """The area of this box that lies outside the other."""
        return (self.right - self.left) * (self.top - self.bottom) - self.overlap(other)


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
        _label(axes, drawn_rows(comparison, 1) if crowded else comparison.rows, timed)

    return draw(name, paint)


def _cost(row: MethodRow, timed: bool) -> float:
    return row.times_erm.mean if timed and row.times_erm else row.gradients_per_step


def _cost_deviation(row: MethodRow, timed: bool) -> float | None:
    return row.times_erm.std if timed and row.times_erm else None


def _label(axes: Axes, rows: list[MethodRow], timed: bool) -> None:
    """Put each label where it covers least: marks and labels before it, and the border."""
    to_points = 72 / axes.figure.dpi
    extent = axes.get_window_extent()
    room = Box(*(edge * to_points for edge in extent.extents))
    data = [(_cost(row, timed), row.counted.mean) for row in rows]
    marks = [tuple(axes.transData.transform(xy) * to_points) for xy in data]
    taken = [box for row in rows for box in _covered(axes, row, timed, to_points)]
    for row, place, (x, y) in zip(rows, data, marks, strict=True):
        text = shortened(row.label)
        width, height = 0.62 * TYPE * len(text), 1.1 * TYPE
        options = [_beside(x, y, width, height, dx, dy) for dx, dy in DIRECTIONS]
        chosen = min(
            options, key=lambda box: sum(box.overlap(b) for b in taken) + 3 * box.outside(room)
        )
        taken.append(chosen)
        axes.annotate(
            text,
            place,
            xytext=((chosen.left + chosen.right) / 2 - x, (chosen.bottom + chosen.top) / 2 - y),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=TYPE,
            in_layout=False,
        )


def _covered(axes: Axes, row: MethodRow, timed: bool, to_points: float) -> list[Box]:
    """What a row's mark and its error bars cover."""
    cost, accuracy = _cost(row, timed), row.counted.mean
    wide, high = _cost_deviation(row, timed) or 0.0, row.counted.std or 0.0
    boxes: list[Box] = []
    for dx, dy in ((0.0, 0.0), (wide, 0.0), (0.0, high)):
        low = axes.transData.transform((cost - dx, accuracy - dy)) * to_points
        top = axes.transData.transform((cost + dx, accuracy + dy)) * to_points
        pad = MARK if dx == dy else 2.0
        boxes.append(Box(low[0] - pad, low[1] - pad, top[0] + pad, top[1] + pad))
    return boxes


# Right and left first; straight up and down run along the error bar, so they come last.
DIRECTIONS = sorted(product((1, -1, 0), (0.8, -0.8, 0, 1.7, -1.7)), key=lambda d: d[0] == 0)
DIRECTIONS.remove((0, 0))


def _beside(x: float, y: float, width: float, height: float, dx: float, dy: float) -> Box:
    """The box of a label that stands off a mark in a direction."""
    gap = MARK + 2
    middle_x, middle_y = x + dx * (gap + width / 2), y + dy * (gap + height / 2)
    return Box(
        middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2
    )
