# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""Names beside the marks of a figure, each where it covers least."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from matplotlib.axes import Axes

TYPE = 11.5  # points
MARK = 6.0  # points from a mark's middle within which a label would touch it
WIDTH = 0.6  # of a letter, as a share of its size
INK = "#222222"


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


@dataclass(frozen=True)
class Mark:
    """A mark on the axes, what it is called, how far its error bars reach, and its colour.

    A mark without text is only kept clear of the others' labels.
    """

    x: float
    y: float
    text: str
    wide: float = 0.0
    high: float = 0.0
    colour: str = INK


def label_marks(axes: Axes, marks: Sequence[Mark], size: float = TYPE) -> None:
    """Put each label where it covers least: marks and labels before it, and the border.

    A thin line leads from each to its mark, and both are of its colour. The layout must be known:
    call ``figure.draw_without_rendering()`` before.
    """
    to_points = 72 / axes.figure.dpi
    extent = axes.get_window_extent()
    room = Box(*(edge * to_points for edge in extent.extents))
    taken = [box for mark in marks for box in _covered(axes, mark, to_points)]
    labels: list[Box] = []
    for mark in filter(lambda mark: mark.text, marks):
        x, y = axes.transData.transform((mark.x, mark.y)) * to_points
        width, height = WIDTH * size * len(mark.text), 1.1 * size
        options = [_beside(x, y, width, height, dx, dy) for dx, dy in DIRECTIONS]
        chosen = min(options, key=lambda box: _harm(box, taken, labels, room))
        labels.append(chosen)
        axes.annotate(
            mark.text,
            (mark.x, mark.y),
            xytext=((chosen.left + chosen.right) / 2 - x, (chosen.bottom + chosen.top) / 2 - y),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=size,
            color=mark.colour,
            arrowprops={
                "arrowstyle": "-",
                "color": mark.colour,
                "linewidth": 0.6,
                "alpha": 0.6,
                "shrinkA": 0.0,
                "shrinkB": MARK / 2,
            },
            in_layout=False,
        )


def _harm(box: Box, taken: Sequence[Box], labels: Sequence[Box], room: Box) -> float:
    """What a label there covers: another label is worse than a mark, the border worse still."""
    covered = sum(map(box.overlap, taken)) + 2 * sum(map(box.overlap, labels))
    return covered + 3 * box.outside(room)


def _covered(axes: Axes, mark: Mark, to_points: float) -> list[Box]:
    """What a mark and its error bars cover; axes may point downward."""
    boxes: list[Box] = []
    for dx, dy in ((0.0, 0.0), (mark.wide, 0.0), (0.0, mark.high)):
        one = axes.transData.transform((mark.x - dx, mark.y - dy)) * to_points
        other = axes.transData.transform((mark.x + dx, mark.y + dy)) * to_points
        pad = MARK if dx == dy else 2.0
        bottom, top = sorted((one[1], other[1]))
        boxes.append(Box(one[0] - pad, bottom - pad, other[0] + pad, top + pad))
    return boxes


# Near ones first, right and left before straight up and down, which run along the error bar.
DIRECTIONS = sorted(
    product((1, -1, 0, 1.6, -1.6), (0.8, -0.8, 0, 1.7, -1.7, 2.6, -2.6, 3.5, -3.5)),
    key=lambda d: (abs(d[1]) > 1.7, abs(d[0]) > 1.0, d[0] == 0),
)
DIRECTIONS.remove((0, 0))


def _beside(x: float, y: float, width: float, height: float, dx: float, dy: float) -> Box:
    """The box of a label that stands off a mark in a direction."""
    gap = MARK + 2
    middle_x, middle_y = x + dx * (gap + width / 2), y + dy * (gap + height / 2)
    return Box(
        middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2
    )
