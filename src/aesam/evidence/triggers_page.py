# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""One trigger against another at equal cost, as a table, a figure and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aesam.evidence.benches import Bench
from aesam.evidence.contenders import CONTENDERS, TRIGGER_GROUPS, TriggerGroup
from aesam.evidence.frontier_page import places_of, shown_difference, shown_score
from aesam.evidence.standing import FEWEST, Difference, Standing
from aesam.lab.lab_methods import colour_of
from aesam.lab.show import wording
from aesam.lab.show.canvas import Drawing, draw
from aesam.lab.show.table import Line, Sheet

COLUMNS = (
    "trigger", "score", "n", "adaptive − it, 95 %", "p (Holm)", "% SAM", "settings",
)  # fmt: skip
CAPTION = (
    "Score: test {measure}, mean ± standard deviation over seeds. Triggers of a group take as "
    "many second gradients, each with settings of its own from the search; other steps are "
    "plain, or reuse LookSAM's direction. Adaptive − it: the adaptive trigger's score less this "
    "one's{lower}, paired by seed, with its 95 % t-interval; p corrected for all of these "
    "comparisons (Holm). In the first groups adaptive and inverted spend a budget at one rate "
    "all the time on the largest and the smallest ‖g‖² for their time. In the last two the rule "
    "is the paper's, ‖g‖² ≥ μ + cσ with c from 1 to −1, so that second gradients are rare at "
    "first and frequent at the end; the coins and the inversion have its schedule; the first "
    "coin takes as many as the rule did, the second half of the steps, for which the rule is "
    "meant."
)

#: Of the figure, in inches; it grows with its lines.
WIDTH, HEIGHT, LINE = 9.0, 1.3, 0.26


@dataclass(frozen=True)
class TriggerPair:
    """The adaptive trigger of a group against another, which is told by its row's name."""

    group: TriggerGroup
    theirs: str
    found: Difference
    p_holm: float

    @property
    def label(self) -> str:
        """What readers call the other."""
        (label,) = [label for label, row in self.group.others.items() if row.name == self.theirs]
        return label


def sheet_of(bench: Bench, standings: Sequence[Standing], pairs: Sequence[TriggerPair]) -> Sheet:
    """The groups one below the other, each under its title."""
    by_name, pair_of = {s.name: s for s in standings}, {pair.theirs: pair for pair in pairs}

    def line(label: str, s: Standing) -> Line:
        pair = pair_of.get(s.name)
        return Line(
            (
                label,
                shown_score(bench, s),
                str(len(s.scores)),
                shown_difference(bench, pair.found if pair else None),
                f"{pair.p_holm:.3f}" if pair else wording.NOTHING,
                f"{s.percent_sam:.0f}",
                wording.settings(s.settings) + ("; edge" if s.at_edge else ""),
            )
        )

    groups = [
        tuple(
            line(f"{label} ({group.title})", by_name[row.name])
            for label, row in group.rows.items()
            if row.name in by_name
        )
        for group in TRIGGER_GROUPS
    ]
    title = f"{bench.title}: which steps take the second gradient"
    lower = " (a lower loss is a higher score)" if bench.measure == "loss" else ""
    caption = CAPTION.format(measure=bench.measure, lower=lower)
    return Sheet(title, COLUMNS, tuple(g for g in groups if g), caption, words=("settings",))


def sentences(
    bench: Bench, standings: Sequence[Standing], pairs: Sequence[TriggerPair], wanted: float
) -> list[str]:
    """Whether the adaptive trigger is better than each other, worse, or as good; with reasons."""
    edge = {s.name for s in standings if s.at_edge}
    return [
        _sentence(bench, pair, wanted, edge & {pair.group.ours.name, pair.theirs}) for pair in pairs
    ]


def _sentence(bench: Bench, pair: TriggerPair, wanted: float, edge: set[str]) -> str:
    about = (
        f"{bench.title}, {pair.group.title}: adaptive against {pair.label} "
        f"{shown_difference(bench, pair.found)}, n = {pair.found.n}, {_p(pair.p_holm)}"
    )
    return f"{about}: {_told(bench, pair, wanted, edge)}."


def _p(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


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

    def paint(figure: Figure, axes: Axes) -> None:
        figure.set_size_inches(WIDTH, HEIGHT + LINE * len(pairs))
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
        labels = [f"{pair.label} ({pair.group.title})" for pair in pairs]
        axes.set_yticks([-place for place in range(len(pairs))], labels)
        unit = "points" if bench.measure == "accuracy" else "loss"
        axes.set_xlabel(f"adaptive less the other ({unit})")

    return Drawing(
        f"triggers-{bench.name}",
        f"{bench.title}: the adaptive trigger against others at equal cost",
        "Paired differences with their 95 % intervals, right of 0 the adaptive trigger is better; "
        "within the band two are as good as each other.",
        draw(f"triggers-{bench.name}", paint),
    )
