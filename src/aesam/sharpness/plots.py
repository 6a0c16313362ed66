# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""One picture for each measure, on the axes given or on new ones.

Matplotlib is loaded when the first picture is drawn. Colours are Okabe and Ito's, and cividis for
contours: people with any of the common colour-blindnesses can read them.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = Sequence[float]
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
DASHES = ("--", ":")
MOST_BARS = 40  # more names than this cannot be read


def gradient_norms(
    squared_norms: Numbers, lines: Mapping[str, float], axes: "Axes | None"
) -> "Axes":
    """A histogram over batches with a line for each named number."""
    axes = axes or _new()
    axes.hist(squared_norms, bins=min(30, max(5, len(squared_norms) // 4)), color=BLUE, alpha=0.75)
    for (name, value), colour, dash in zip(lines.items(), (ORANGE, "black"), DASHES, strict=False):
        axes.axvline(value, color=colour, linestyle=dash, label=f"{name} {value:.3g}")
    axes.locator_params(axis="y", integer=True)
    axes.legend()
    return _labelled(axes, "squared norm of the gradient, ‖g‖²", "number of batches")


def full_gradient(
    names: Sequence[str], norms: Numbers, total: float, axes: "Axes | None"
) -> "Axes":
    """A bar for each parameter; of very many, the longest."""
    axes = axes or _new()
    longest = sorted(range(len(norms)), key=lambda i: -norms[i])[:MOST_BARS]
    rows = sorted(longest)
    axes.barh([names[i] for i in rows], [norms[i] for i in rows], color=BLUE)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize="x-small")
    return _labelled(
        axes,
        f"norm of the gradient over all samples (in all {total:.3g})",
        "parameter" if len(rows) == len(norms) else f"{len(rows)} longest parameters",
    )


def eigenvalues(values: Numbers, residuals: Numbers, axes: "Axes | None") -> "Axes":
    """A stem for each eigenvalue, with its residual as a bar."""
    axes = axes or _new()
    places = list(range(1, len(values) + 1))
    axes.vlines(places, 0.0, values, color=BLUE)
    axes.errorbar(places, values, yerr=residuals, fmt="o", color=BLUE, ecolor=ORANGE, capsize=3)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xticks(places)
    return _labelled(axes, "place, from the largest", "eigenvalue of the Hessian")


def trace(estimates: Numbers, axes: "Axes | None") -> "Axes":
    """The mean of the first estimates against their number, with its standard error."""
    axes = axes or _new()
    counts = list(range(2, len(estimates) + 1))
    means = [total / n for n, total in enumerate(itertools.accumulate(estimates), start=1)][1:]
    errors = [statistics.stdev(estimates[:n]) / math.sqrt(n) for n in counts]
    low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
    axes.plot(counts, means, color=BLUE, label="running mean")
    axes.fill_between(counts, low, high, color=BLUE, alpha=0.2, label="± standard error")
    axes.legend()
    return _labelled(axes, "random vectors", "trace of the Hessian")


def sharpness(
    kind: str,
    radii: Numbers,
    values: Numbers,
    errors: Numbers | None,
    axes: "Axes | None",
) -> "Axes":
    """Sharpness against radius; drawing another kind on the same axes adds a line."""
    axes = axes or _new()
    worst = errors is None
    axes.errorbar(
        radii,
        values,
        yerr=errors,
        color=ORANGE if worst else BLUE,
        marker="v" if worst else "o",
        capsize=3,
        label=kind if worst else f"{kind} ± standard error",
    )
    axes.legend()
    return _labelled(axes, "radius ρ of the ball around the weights", "rise of the loss")


def line(positions: Numbers, losses: Numbers, unit: str, axes: "Axes | None") -> "Axes":
    """The loss along a direction."""
    axes = axes or _new()
    axes.plot(positions, losses, color=BLUE, marker="o", markersize=3)
    axes.axvline(0.0, color="black", linewidth=0.8, linestyle=":")
    return _labelled(axes, f"distance from the weights ({unit})", "loss")


def contours(
    xs: Numbers,
    ys: Numbers,
    losses: Sequence[Numbers],
    unit: str,
    axes: "Axes | None",
) -> "Axes":
    """The loss over a plane; levels follow its quantiles, so that the valley shows."""
    axes = axes or _new()
    finite = sorted(x for row in losses for x in row if math.isfinite(x))
    levels = sorted({finite[i * (len(finite) - 1) // 14] for i in range(15)}) if finite else []
    if len(levels) > 1:
        from matplotlib.colors import BoundaryNorm

        even = BoundaryNorm(levels, ncolors=256)
        filled = axes.contourf(xs, ys, losses, levels=levels, cmap="cividis", norm=even)
        axes.contour(xs, ys, losses, levels=levels, colors="white", linewidths=0.4)
        axes.figure.colorbar(filled, ax=axes, label="loss", format="%.3g")
    axes.plot([0.0], [0.0], marker="x", color=ORANGE, linestyle="none")
    axes.set_aspect("equal")
    return _labelled(axes, f"first direction ({unit})", f"second direction ({unit})")


def _labelled(axes: "Axes", x: str, y: str) -> "Axes":
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def _new() -> "Axes":
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed: pip install 'aesam[lab]'"
        ) from error
    return pyplot.subplots(layout="constrained")[1]
