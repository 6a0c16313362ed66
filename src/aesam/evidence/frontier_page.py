# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""Score against cost on a bench, as a table, a figure and sentences."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aesam.evidence.benches import Bench
from aesam.evidence.contenders import Contender
from aesam.evidence.standing import FEWEST, Difference, Standing, difference, front, holm
from aesam.lab.lab_methods import colour_of, label_of, marker_of, record_of
from aesam.lab.show import wording
from aesam.lab.show.canvas import Drawing, draw
from aesam.lab.show.table import Line, Sheet

COLUMNS = (
    "method", "score", "n", "− SAM, 95 %", "p (Holm)", "% SAM", "batches /step", "time, × ERM",
    "settings",
)  # fmt: skip
CAPTION = (
    "Settings of each row's own, chosen on held-out training samples with seeds {search}, reported "
    "on the test set with seeds {fresh}. − SAM: mean difference paired by seed and its 95 % "
    "t-interval; p against SAM, corrected for the number of rows (Holm). Batches per step: "
    "gradients in units of a batch, a forward alone a third. ↟ on the front: nobody is better at "
    "the same or a lower cost. Edge: the best value is the smallest or largest that was tried, so "
    "the row takes part in no verdict."
)
SAM = "sam"


def label_of_row(contender: Contender) -> str:
    """What readers call a row: its method, and what sets it apart from others of that method."""
    if contender.length != 1.0:
        return label_of(contender.name)
    if contender.lengths:
        return "ERM, stopped early"
    usual = record_of(contender.method).defaults
    own = {k: v for k, v in contender.fixed.items() if usual.get(k) != v}
    label = label_of(contender.method)
    return f"{label} ({wording.settings(own)})" if own else label


def differences(standings: Sequence[Standing]) -> dict[str, Difference]:
    """Every row's difference to SAM, by its name."""
    (sam,) = [s for s in standings if s.name == SAM] or [None]
    if sam is None:
        return {}
    found = {s.name: difference(s.scores, sam.scores) for s in standings if s is not sam}
    return {name: each for name, each in found.items() if each is not None}


def sheet_of(
    bench: Bench,
    standings: Sequence[Standing],
    contenders: Mapping[str, Contender],
    caption: str,
) -> Sheet:
    """All rows, the best first."""
    apart, on_front = differences(standings), front(standings)
    corrected = holm({name: each.p_value for name, each in apart.items()})
    ordered = sorted(standings, key=lambda s: -s.spread.mean)
    lines = [
        Line(
            (
                ("↟ " if s.name in on_front else "") + label_of_row(contenders[s.name]),
                _score(bench, s),
                str(len(s.scores)),
                _apart(apart.get(s.name)),
                f"{corrected[s.name]:.3f}" if s.name in corrected else wording.NOTHING,
                f"{s.percent_sam:.0f}",
                f"{s.samples:.2f}",
                wording.NOTHING if s.time is None else f"{s.time:.2f}",
                wording.settings(s.settings) + ("; edge" if s.at_edge else ""),
            ),
            best=s is ordered[0],
        )
        for s in ordered
    ]
    return Sheet(bench.title, COLUMNS, (tuple(lines),), caption, words=("settings",))


def _score(bench: Bench, standing: Standing) -> str:
    found = standing.spread
    return wording.plus_minus(found if bench.measure == "accuracy" else found.scaled(-1.0), 2)


def _apart(found: Difference | None) -> str:
    if found is None:
        return wording.NOTHING
    return f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})".replace("-", "−")


def drawing_of(
    bench: Bench, standings: Sequence[Standing], contenders: Mapping[str, Contender]
) -> Drawing:
    """Score against cost; the front as a line, those on it named."""
    on_front = front(standings)
    sign = 1.0 if bench.measure == "accuracy" else -1.0

    def paint(_: Figure, axes: Axes) -> None:
        for s in standings:
            method = contenders[s.name].method
            axes.errorbar(
                s.cost,
                sign * s.spread.mean,
                yerr=s.spread.std,
                color=colour_of(method),
                marker=marker_of(method),
                markersize=7,
                elinewidth=1.0,
                alpha=1.0 if s.name in on_front or s.name in (SAM, "erm-early") else 0.45,
            )
        line = [s for name in on_front for s in standings if s.name == name]
        axes.plot([s.cost for s in line], [sign * s.spread.mean for s in line], color="#888888")
        named = {*on_front, SAM, "erm", "erm-early", "ae-sam", "ae-looksam"}
        for s in standings:
            if s.name in named:
                axes.annotate(
                    label_of_row(contenders[s.name]),
                    (s.cost, sign * s.spread.mean),
                    xytext=(6, 5),
                    textcoords="offset points",
                    fontsize=9,
                )
        timed = all(s.time is not None for s in standings)
        axes.set_xlabel("training time (multiple of ERM's)" if timed else "batches per step")
        axes.set_ylabel(f"test {bench.measure}" + (" (%)" if sign > 0 else ""))

    heading = f"{bench.title}: {bench.measure} against cost"
    return Drawing(
        f"frontier-{bench.name}",
        heading,
        "Bars are one standard deviation over seeds; the line joins those that nobody beats at the "
        "same or a lower cost.",
        draw(f"frontier-{bench.name}", paint),
    )


def findings(
    bench: Bench, standings: Sequence[Standing], contenders: Mapping[str, Contender]
) -> list[str]:
    """Who is as good as tuned SAM at a lower cost, in sentences; only with seeds enough."""
    by_name = {s.name: s for s in standings}
    apart = differences(standings)
    if SAM not in by_name or len(by_name[SAM].scores) < FEWEST:
        return [f"{bench.title}: fewer than {FEWEST} fresh seeds of SAM, so no verdict."]
    good = [
        by_name[name]
        for name, each in apart.items()
        if each.n >= FEWEST and each.low >= -bench.margin and not by_name[name].at_edge
        if by_name[name].samples < by_name[SAM].samples
    ]
    if by_name[SAM].at_edge:
        return [f"{bench.title}: SAM's own ρ is at an edge, so no verdict."]
    shown = ", ".join(
        f"{label_of_row(contenders[s.name])} ({s.samples:.2f} batches per step, "
        f"{_apart(apart[s.name])})"
        for s in sorted(good, key=lambda s: s.samples)
    )
    told = f"as good as tuned SAM (interval above −{bench.margin:g}) at less cost"
    return [f"{bench.title}: {told}: {shown or 'none'}."]
