# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""From a painted matplotlib figure to SVG text that can stand in a page beside others.

The text is the same for the same data: no dates, fixed ids, and nobody's own matplotlib settings.
"""

import io
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SIZE = (5.8, 4.3)  # inches; the type below is legible at half of this
LEGEND_LINE = 0.23  # inches
LONGEST_LABEL = 48  # characters that fit the width
INK = "#222222"
SETTINGS = {
    "svg.fonttype": "none",  # text stays text: small, searchable, readable by machines
    "svg.hashsalt": "aesam",
    "text.parse_math": False,  # labels come from files; a dollar sign is a dollar sign
    "axes.formatter.use_mathtext": False,
    "font.size": 12.5,
    "axes.labelsize": 12.5,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 6.5,
    "lines.solid_capstyle": "round",
}
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Drawing:
    """One figure: SVG text, the name that its ids start with, and a caption."""

    name: str
    heading: str
    caption: str
    svg: str


def draw(name: str, paint: Callable[[Figure, Axes], None]) -> str:
    """SVG of what ``paint`` puts on one pair of axes; ``name`` keeps its ids apart from others."""
    text = io.StringIO()
    with style.context(["default", SETTINGS]), warnings.catch_warnings():
        # A label in a script that matplotlib's font lacks is drawn by the browser all the same.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=SIZE, layout="constrained")
        paint(figure, figure.subplots())
        figure.savefig(text, format="svg", metadata=NO_METADATA)
    return _tidy(text.getvalue(), name)


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """A legend under the axes, where it hides nothing; the figure grows with its lines."""
    handles, labels = axes.get_legend_handles_labels()
    lines = math.ceil(len(handles) / columns)
    figure.set_size_inches(SIZE[0], SIZE[1] + LEGEND_LINE * max(0, lines - 2))
    if handles:
        figure.legend(
            handles,
            [shortened(label) for label in labels],
            loc="outside lower center",
            ncols=columns,
            columnspacing=1.1,
            handletextpad=0.5,
            handlelength=1.8,
            markerscale=1.1,
        )


def shortened(label: str) -> str:
    """A label that fits into a figure."""
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


def _tidy(svg: str, name: str) -> str:
    """Only the element itself, as wide as its place, with ids and rules of its own."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', rf'\1 id="{name}"', svg, count=1)
    svg = re.sub(r'(?<= id=")(?!' + re.escape(name) + r'")', f"{name}-", svg)
    svg = re.sub(r'(?<=href="#)|(?<=url\(#)', f"{name}-", svg)
    return svg.replace("*{", f"#{name} *{{", 1)
