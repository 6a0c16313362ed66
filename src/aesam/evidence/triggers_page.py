# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""One trigger against another at equal cost, as a table, a figure and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aesam.evidence.benches import Bench
from aesam.evidence.contenders import CONTENDERS
from aesam.evidence.frontier_page import places_of, shown_difference, shown_score
from aesam.evidence.standing import FEWEST, Difference, Standing
from aesam.lab.lab_methods import colour_of
from aesam.lab.show import wording
from aesam.lab.show.canvas import Drawing, draw
from aesam.lab.show.table import Line, Sheet

COLUMNS = (
    "trigger", "reuse", "score", "n", "adaptive − it, 95 %", "p (Holm)", "% SAM", "settings",
)  # fmt: skip
CAPTION = (
    "Every trigger takes a second gradient on half of the steps, with settings of its own from the "
    "search; without reuse (other steps are plain) and with it (they reuse LookSAM's direction). "
    "The last columns but two: the adaptive trigger's score less this one's, paired by seed, with "
    "its 95 % t-interval, and p corrected for all of these comparisons (Holm)."
)
REUSE = "-reuse"


@dataclass(frozen=True)
class TriggerPair:
    """The adaptive trigger against another, both with reuse or both without."""

    ours: str
    theirs: str
    found: Difference
    p_holm: float


def _trigger(name: str) -> str:
    return name.removesuffix(REUSE)


def sheet_of(bench: Bench, standings: Sequence[Standing], pairs: Sequence[TriggerPair]) -> Sheet:
    """Two groups: without reuse, and with it."""
    by_name = {pair.theirs: pair for pair in pairs}

    def line(s: Standing) -> Line:
        pair = by_name.get(s.name)
        return Line(
            (
                _trigger(s.name),
                "yes" if s.name.endswith(REUSE) else "no",
                shown_score(bench, s),
                str(len(s.scores)),
                shown_difference(bench, pair.found if pair else None),
                f"{pair.p_holm:.3f}" if pair else wording.NOTHING,
                f"{s.percent_sam:.0f}",
                wording.settings(s.settings) + ("; edge" if s.at_edge else ""),
            )
        )

    groups = [
        tuple(line(s) for s in standings if s.name.endswith(REUSE) == reuse)
        for reuse in (False, True)
    ]
    title = f"{bench.title}: which steps take the second gradient"
    return Sheet(title, COLUMNS, tuple(g for g in groups if g), CAPTION, words=("settings",))


def sentences(
    bench: Bench, standings: Sequence[Standing], pairs: Sequence[TriggerPair], wanted: float
) -> list[str]:
    """Whether the adaptive trigger is better than each other, worse, or as good; with reasons."""
    edge = {s.name for s in standings if s.at_edge}
    return [_sentence(bench, pair, wanted, edge & {pair.ours, pair.theirs}) for pair in pairs]


def _sentence(bench: Bench, pair: TriggerPair, wanted: float, edge: set[str]) -> str:
    reuse = "with reuse" if pair.ours.endswith(REUSE) else "without reuse"
    about = (
        f"{bench.title}, {reuse}: adaptive against {_trigger(pair.theirs)} "
        f"{shown_difference(bench, pair.found)}, n = {pair.found.n}, p = {pair.p_holm:.3f}"
    )
    return f"{about}: {_told(bench, pair, wanted, edge)}."


def _told(bench: Bench, pair: TriggerPair, wanted: float, edge: set[str]) -> str:
    found = pair.found
    if edge:
        return f"no verdict, since the settings of {' and '.join(sorted(edge))} are at an edge"
    if found.n < FEWEST:
        return f"no verdict with fewer than {FEWEST} seeds"
    if pair.p_holm < 0.05:
        return "the adaptive trigger is " + ("better" if found.mean > 0 else "worse")
    if found.low >= -bench.margin and found.high <= bench.margin:
        return f"as good as each other, within {bench.margin:g}"
    narrow = found.half_width <= wanted
    told = "no difference was found, and a small one is not ruled out"
    places = places_of(bench)
    return told if narrow else f"{told} (± {found.half_width:.{places}f}, {wanted:g} was asked for)"


def drawing_of(bench: Bench, pairs: Sequence[TriggerPair]) -> Drawing:
    """The intervals of all differences, around a line at none."""

    def paint(_: Figure, axes: Axes) -> None:
        for place, pair in enumerate(pairs):
            found = pair.found
            axes.errorbar(
                found.mean,
                -place,
                xerr=found.half_width,
                color=colour_of(CONTENDERS[pair.theirs].method),
                marker="o",
                capsize=3,
            )
        axes.axvline(0.0, color="#888888", linewidth=1.0)
        axes.axvspan(-bench.margin, bench.margin, color="#888888", alpha=0.12)
        labels = [
            _trigger(p.theirs) + (" (reuse)" if p.theirs.endswith(REUSE) else "") for p in pairs
        ]
        axes.set_yticks([-place for place in range(len(pairs))], labels)
        unit = "points" if bench.measure == "accuracy" else "loss"
        axes.set_xlabel(f"adaptive less the other ({unit}; right of 0 it is better)")

    return Drawing(
        f"triggers-{bench.name}",
        f"{bench.title}: the adaptive trigger against others at equal cost",
        "Paired differences with their 95 % intervals; within the band two are as good as each "
        "other.",
        draw(f"triggers-{bench.name}", paint),
    )
