# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""The decision trace of one run: what the adaptive policy saw at each step, and when it fired."""

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aesam.lab.lab_methods import colour_of
from aesam.lab.show.canvas import INK, draw, legend_below
from aesam.lab.show.comparison import Comparison, MethodRow
from aesam.lab.show.finished_runs import FinishedRun

SHOWN = 1000  # steps in a figure; more would be a blur and a large file
WIDE = 30.0  # values that span more than this go on a logarithmic axis
SERIES = ("step", "squared_norm", "mean", "threshold", "used_sam")


def adaptive_rows(comparison: Comparison) -> list[MethodRow]:
    """The best setting of each method whose first run recorded a threshold."""
    best: dict[str, MethodRow] = {}
    for row in comparison.rows:
        if not np.isfinite(trace_of(row.runs[0])["threshold"]).any():
            continue
        if row.method not in best or row.accuracy.mean > best[row.method].accuracy.mean:
            best[row.method] = row
    return list(best.values())


def trace_of(run: FinishedRun) -> dict[str, np.ndarray]:
    """The recorded steps of all epochs in one; what was not recorded is NaN."""
    joined: dict[str, list[float]] = {name: [] for name in SERIES}
    for line in run.metrics:
        trace: dict[str, Any] = line.get("trace") or {}
        steps = len(trace.get("step") or ())
        for name in SERIES:
            values = trace.get(name) or [None] * steps
            joined[name] += [math.nan if v is None else float(v) for v in values]
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
        _set_scale(axes, trace["squared_norm"])
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


def _set_scale(axes: Axes, values: np.ndarray) -> None:
    positive = values[np.isfinite(values) & (values > 0)]
    if positive.size and positive.max() > WIDE * positive.min():
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_formatter("{x:g}")
        # A threshold may come near zero or fall below it; the steps set the range.
        axes.set_ylim(positive.min() / 2, positive.max() * 2)
