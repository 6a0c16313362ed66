# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""Curves over epochs: the mean over seeds as a line, one standard deviation around it as a band."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from aesam.lab.lab_methods import colour_of, marker_of
from aesam.lab.show.canvas import draw, legend_below
from aesam.lab.show.comparison import Comparison, MethodRow
from aesam.lab.show.finished_runs import FinishedRun, is_number
from aesam.lab.show.stats import mean, sample_std

LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)))  # one for each setting of a method
AXES = {
    "accuracy": "accuracy (%)",
    "loss": "loss (cross-entropy, nats)",
    "percent_sam": "steps that used SAM (%)",
    "gradient_variance": "variance of the gradient",
    "mean_squared_norm": "mean of ‖g‖² over batches",
    "full_squared_norm": "‖∇L‖², of the mean gradient",
    "percent_sam_epoch": "steps that used SAM (% of the epoch's)",
}
WIDE = 200.0  # a number that spans more than this is drawn on a logarithmic axis


def curves(comparison: Comparison, quantity: str, name: str) -> str:
    """One number of ``metrics.jsonl`` over epochs, for all methods."""

    def paint(figure: Figure, axes: Axes) -> None:
        rows = drawn_rows(comparison)
        for place, row in enumerate(rows):
            epochs, means, deviations = over_epochs(row.runs, quantity)
            _paint_row(axes, row, _line_of(row, rows), place / max(1, len(rows)), epochs, means)
            if len(row.runs) > 1:
                axes.fill_between(
                    epochs,
                    means - deviations,
                    means + deviations,
                    color=colour_of(row.method),
                    alpha=0.16,
                    linewidth=0,
                )
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(axis_label(quantity))
        if quantity.endswith(("loss", "norm", "variance")):
            _set_loss_scale(axes)
        longest = max(len(row.label) for row in rows)
        legend_below(figure, axes, 4 if longest < 12 else 2 if longest < 32 else 1)

    return draw(name, paint)


def drawn_rows(comparison: Comparison, settings: int = len(LINES)) -> list[MethodRow]:
    """The rows that figures draw: all, but only so many settings of a method, the best."""
    methods = {row.method for row in comparison.rows}
    best = [_by_accuracy(method, comparison)[:settings] for method in methods]
    kept = {row.label for rows in best for row in rows}
    return [row for row in comparison.rows if row.label in kept]


def over_epochs(
    runs: Sequence[FinishedRun], quantity: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Epochs, the mean over the runs at each, and the sample deviation (0 for one run)."""
    values: dict[int, list[float]] = {}
    for run in runs:
        for line in run.metrics:
            if quantity in line:  # an epoch may not have been evaluated
                values.setdefault(int(line["epoch"]), []).append(_finite(line[quantity]))
    epochs = sorted(values)
    means = [mean(values[epoch]) for epoch in epochs]
    deviations = [sample_std(values[epoch]) or 0.0 for epoch in epochs]
    return np.asarray(epochs), np.asarray(means), np.asarray(deviations)


def _finite(value: Any) -> float:
    """A number to draw; what was not recorded or is not finite leaves a gap."""
    return float(value) if is_number(value) and math.isfinite(value) else math.nan


def axis_label(quantity: str) -> str:
    """The axis of a number in ``metrics.jsonl``, with its unit."""
    if quantity in AXES:
        return AXES[quantity]
    split, _, kind = quantity.partition("_")
    return f"{split} {AXES[kind]}"


def _paint_row(
    axes: Axes, row: MethodRow, line: object, shift: float, epochs: np.ndarray, means: np.ndarray
) -> None:
    every = max(1, len(epochs) // 5)
    axes.plot(
        epochs,
        means,
        label=row.label,
        color=colour_of(row.method),
        linestyle=line,  # pyright: ignore[reportArgumentType]
        marker=marker_of(row.method),
        markevery=(int(shift * every), every),  # apart from the other methods' markers
        markeredgecolor="white",
        markeredgewidth=0.4,
    )


def _line_of(row: MethodRow, rows: Sequence[MethodRow]) -> object:
    settings = [other.label for other in rows if other.method == row.method]
    return LINES[settings.index(row.label)]


def _by_accuracy(method: str, comparison: Comparison) -> list[MethodRow]:
    own = [row for row in comparison.rows if row.method == method]
    return sorted(own, key=lambda row: -row.accuracy.mean)


def _set_loss_scale(axes: Axes) -> None:
    drawn = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    positive = drawn[np.isfinite(drawn) & (drawn > 0)]
    if positive.size and positive.max() > WIDE * positive.min():
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_formatter("{x:g}")
