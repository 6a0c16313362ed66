# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""What happened in training: curves over epochs, and the adaptive policy's decisions over steps.

A curve is the mean over seeds as a line, with one standard deviation around it as a band.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from aesam.lab.files import is_number
from aesam.lab.lab_methods import colour_of, marker_of
from aesam.lab.show.canvas import INK, draw, legend_below
from aesam.lab.show.comparison import Comparison, MethodRow
from aesam.lab.show.finished_runs import FinishedRun
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
    "percent_rise": "rise of the loss at w + ε (%)",
}
WIDE = 200.0  # a number that spans more than this is drawn on a logarithmic axis
WIDE_NORMS = 30.0  # the same for the squared norms of a decision trace
LARGEST = 1e100  # of what is drawn: its square is still a number
SHOWN = 1000  # steps of a trace in a figure; more would be a blur and a large file
SERIES = ("step", "squared_norm", "mean", "threshold", "used_sam")


def curves(comparison: Comparison, quantity: str, name: str) -> str:
    """One number of ``metrics.jsonl`` over epochs, for all methods."""

    def paint(figure: Figure, axes: Axes) -> None:
        rows = [row for row in drawn_rows(comparison) if has(row, quantity)]
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
        if quantity.endswith(("loss", "norm", "variance", "rise")):
            _set_scale(axes, _drawn(axes), WIDE)
        longest = max((len(row.label) for row in rows), default=0)
        legend_below(figure, axes, 4 if longest < 12 else 2 if longest < 32 else 1)

    return draw(name, paint)


def has(row: MethodRow, quantity: str) -> bool:
    """Whether any run of a row recorded a number at all."""
    return any(quantity in line for run in row.runs for line in run.metrics)


def drawn_rows(comparison: Comparison, settings: int = len(LINES)) -> list[MethodRow]:
    """The rows that figures draw: all, but only so many settings of a method, the best."""
    methods = {row.method for row in comparison.rows}
    best = [_best_first(method, comparison)[:settings] for method in methods]
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
                values.setdefault(int(line["epoch"]), []).append(_drawable(line[quantity]))
    epochs = sorted(values)
    means = [mean(values[epoch]) for epoch in epochs]
    deviations = [sample_std(values[epoch]) or 0.0 for epoch in epochs]
    return np.asarray(epochs), np.asarray(means), np.asarray(deviations)


def _drawable(value: Any) -> float:
    """A number to draw; what was not recorded, or is beyond any axis, leaves a gap."""
    if isinstance(value, bool):
        return float(value)
    return float(value) if is_number(value) and abs(value) <= LARGEST else math.nan


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


def _best_first(method: str, comparison: Comparison) -> list[MethodRow]:
    own = [row for row in comparison.rows if row.method == method]
    return sorted(own, key=lambda row: -row.goodness)


def _drawn(axes: Axes) -> np.ndarray:
    return np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])


def _set_scale(axes: Axes, values: np.ndarray, wide: float) -> np.ndarray | None:
    """Make the axis logarithmic where the values need it, and return those that it shows."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not positive.size or positive.max() <= wide * positive.min():
        return None
    axes.set_yscale("log", nonpositive="mask")
    axes.yaxis.set_major_formatter("{x:g}")
    return positive


def adaptive_rows(comparison: Comparison) -> list[MethodRow]:
    """The best setting of each method whose first run recorded a threshold."""
    best: dict[str, MethodRow] = {}
    for row in comparison.rows:
        if not np.isfinite(trace_of(row.runs[0])["threshold"]).any():
            continue
        if row.method not in best or row.goodness > best[row.method].goodness:
            best[row.method] = row
    return list(best.values())


def trace_of(run: FinishedRun) -> dict[str, np.ndarray]:
    """The recorded steps of all epochs in one; what was not recorded is NaN."""
    joined: dict[str, list[float]] = {name: [] for name in SERIES}
    for line in run.metrics:
        trace: dict[str, Any] = line.get("trace") or {}
        steps = max((len(series) for series in trace.values()), default=0)
        for name in SERIES:
            values = trace.get(name) or [None] * steps
            joined[name] += [_drawable(v) for v in values]
    return {name: np.asarray(values, dtype=float) for name, values in joined.items()}


def thinning(row: MethodRow) -> int:
    """Every how many recorded steps one is drawn."""
    return max(1, math.ceil(len(trace_of(row.runs[0])["step"]) / SHOWN))


def decision_trace(row: MethodRow, name: str) -> str:
    """‖g‖², its moving mean μ and the threshold over the steps of the row's first run."""
    every = thinning(row)
    trace = {series: values[::every] for series, values in trace_of(row.runs[0]).items()}

    def paint(figure: Figure, axes: Axes) -> None:
        _paint_steps(axes, trace, colour_of(row.method))
        axes.plot(trace["step"], trace["mean"], color=INK, linewidth=1.2, label="mean μ")
        axes.plot(
            trace["step"],
            trace["threshold"],
            color="#0072B2",
            linewidth=1.2,
            linestyle=(0, (4, 1.5)),
            label="threshold μ + c·σ",
        )
        axes.set_xlabel("step")
        axes.set_ylabel("squared gradient norm ‖g‖²")
        norms = _set_scale(axes, trace["squared_norm"], WIDE_NORMS)
        if norms is not None:  # a threshold may be near or below zero: the steps set the range
            axes.set_ylim(norms.min() / 2, norms.max() * 2)
        legend_below(figure, axes, 2)

    return draw(name, paint)


def _paint_steps(axes: Axes, trace: dict[str, np.ndarray], colour: str) -> None:
    fired = trace["used_sam"] == 1
    for chosen, label, paint, marker in (
        (~fired, "‖g‖², one gradient", "#a8a8a8", "o"),
        (fired, "‖g‖², SAM fired", colour, "^"),
    ):
        axes.plot(
            trace["step"][chosen],
            trace["squared_norm"][chosen],
            linestyle="none",
            marker=marker,
            color=paint,
            markersize=4.3,
            markeredgewidth=0,
            label=label,
        )
