# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""Accuracy or loss over the values of a setting, as ``aesam tune`` found it: a figure and a table.

Both are made from the methods of ``tune.json``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from aesam.lab.lab_methods import colour_of, label_of, marker_of, symbol_of
from aesam.lab.show.canvas import draw, legend_below
from aesam.lab.show.curves import LARGEST
from aesam.lab.show.table import Line, Sheet

WIDE = 1000  # times the smallest value: beyond, the axis has room for powers of ten only
BAR = 12  # letters of the longest bar in the table
Found = Mapping[str, Any]


def curve_svg(methods: Sequence[Found], setting: str) -> str:
    """Validation accuracy or loss over one setting, a line for each method; its best is ringed.

    Bars are one standard deviation over seeds. A value with a run that diverged is a cross, and no
    part of the line.
    """

    def paint(figure: Figure, axes: Axes) -> None:
        for method in methods:
            for curve in method["curves"]:
                if curve["setting"] == setting:
                    _paint_curve(axes, method, setting, _drawable(curve["points"]))
        symbol = symbol_of(setting)
        axes.set_xlabel(f"{symbol} ({setting})" if symbol not in ("", setting) else setting)
        axes.set_ylabel("validation loss" if _is_loss(methods) else "validation accuracy (%)")
        _set_scale(axes, [point["value"] for point in _points(methods, setting)])
        legend_below(figure, axes, 3)

    return draw(f"tune-{setting}", paint)


def _points(methods: Sequence[Found], setting: str) -> list[Found]:
    curves = [c for method in methods for c in method["curves"] if c["setting"] == setting]
    return [point for curve in curves for point in _drawable(curve["points"])]


def _drawable(points: Sequence[Found]) -> list[Found]:
    """Those that an axis has room for; what is beyond all use is in the table only."""
    return [point for point in points if abs(point["value"]) <= LARGEST]


def _set_scale(axes: Axes, values: Sequence[float]) -> None:
    """Values that are doubled are equally far apart, where there is a logarithm of all of them."""
    if not values or min(values) <= 0:
        return
    wide = max(values) > WIDE * min(values)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _paint_curve(axes: Axes, method: Found, setting: str, points: Sequence[Found]) -> None:
    name, colour = method["method"], colour_of(method["method"])
    alive = [point for point in points if not point["diverged"]]
    gone = [point for point in points if point["diverged"]]
    best = [point for point in alive if point["value"] == chosen_of(method).get(setting)]
    axes.errorbar(
        [point["value"] for point in alive],
        [_value(point) for point in alive],
        yerr=[point["std"] or 0.0 for point in alive],
        label=label_of(name),
        color=colour,
        marker=marker_of(name),
        markeredgecolor="white",
        markeredgewidth=0.4,
        elinewidth=1.2,
        capsize=2.5,
    )
    for some, look in (
        (gone, {"marker": "x", "markersize": 8.0}),
        (best, {"marker": "o", "markersize": 14.0, "fillstyle": "none"}),
    ):
        axes.plot(
            [point["value"] for point in some],
            [_value(point) for point in some],
            linestyle="none",
            color=colour,
            **look,  # pyright: ignore[reportArgumentType]
        )


def chosen_of(method: Found) -> Mapping[str, float]:
    """The settings that were found best; none where there are none."""
    return method["chosen"] or {}


def curves_sheet(methods: Sequence[Found]) -> Sheet:
    """A group for each method and setting: its values, rising, with a bar for what counts."""
    loss = _is_loss(methods)
    return Sheet(
        "validation loss" if loss else "validation accuracy",
        ("method", "settings", "loss" if loss else "accuracy %", "n", "curve"),
        tuple(_lines(method, curve) for method in methods for curve in method["curves"]),
        marked=2,
        words=("settings", "curve"),
    )


def _lines(method: Found, curve: Found) -> tuple[Line, ...]:
    setting, points = curve["setting"], curve["points"]
    heights = [_value(point) for point in points if not point["diverged"]]
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    beside = "".join(f", {name} {value:g}" for name, value in curve["at"].items())
    lines: list[Line] = []
    for point in points:
        value, gone = _value(point), point["diverged"]
        told = f" († {gone} of {point['n']} diverged)" if gone else ""
        share = (value - low) / (high - low) if high > low and not gone else 0.0
        cells = (
            label_of(method["method"]),
            f"{setting} {point['value']:g}{beside}{told}",
            _shown(point),
            str(point["n"]),
            "" if gone else "█" * (1 + round(share * (BAR - 1))),
        )
        best = not gone and point["value"] == chosen_of(method).get(setting)
        lines.append(Line(cells, best=best))
    return tuple(lines)


def in_words(method: Found, rows: Sequence[Found]) -> list[str]:
    """What was found for a method, and what is to be known of it, a line each."""
    label = label_of(method["method"])
    told = f"{label}: no best setting"
    for row in rows:
        unit = " %" if "validation_accuracy" in row else ""
        if row["method"] == method["method"] and row["best"]:
            settings = ", ".join(f"{name} {value:g}" for name, value in chosen_of(method).items())
            told = f"{label}: best {settings} ({_shown(row)}{unit}, n = {row['n']})"
    return [told, *(f"{label}: {note}" for note in method["notes"])]


def _is_loss(methods: Sequence[Found]) -> bool:
    """Whether it is the loss that counted, and not the accuracy."""
    points = [p for method in methods for curve in method["curves"] for p in curve["points"]]
    return any("validation_loss" in point for point in points)


def _value(numbers: Found) -> float:
    """What counted; not finite where a loss was lost."""
    found = numbers.get("validation_accuracy", numbers.get("validation_loss"))
    return math.inf if found is None else float(found)


def _shown(numbers: Found) -> str:
    places = 2 if "validation_accuracy" in numbers else 3
    deviation = "" if numbers["std"] is None else f" ± {numbers['std']:.{places}f}"
    return f"{_value(numbers):.{places}f}{deviation}"
