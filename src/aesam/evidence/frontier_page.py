# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""Score against cost on a bench, as a table, a figure and sentences."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aesam.evidence.benches import SEARCH_SEEDS, Bench
from aesam.evidence.contenders import CONTENDERS, Contender
from aesam.evidence.standing import (
    FEWEST,
    Difference,
    Standing,
    costs,
    difference,
    front,
    holm,
    is_timed,
)
from aesam.lab.lab_methods import colour_of, label_of, marker_of, record_of
from aesam.lab.show import wording
from aesam.lab.show.canvas import Drawing, draw, shortened
from aesam.lab.show.labels import Mark, label_marks
from aesam.lab.show.table import Line, Sheet, as_text

COLUMNS = (
    "method", "score", "in training", "n", "− SAM, 95 %", "p (Holm)", "% SAM", "batches /step",
    "time, × ERM", "settings", "remark",
)  # fmt: skip
CAPTION = (
    "Score: test {measure}, mean ± standard deviation over seeds. Settings of each row's own, "
    "chosen by the {measure} on held-out training samples with clean labels with seeds "
    "{search}, reported on the test set with seeds {fresh}, which are others. − SAM: mean "
    "difference paired by seed and its 95 % t-interval{better}; p against SAM, corrected for "
    "the number of rows (Holm). Batches per step: gradients counted in units of a batch, a "
    "forward alone a third, times the length of the training. Time: processor time on one "
    "thread as a multiple of ERM's, measured step by step in turn with ERM. ↟ on the front: "
    "nobody is better at the same or a lower {cost}. ERM twice as long is ERM at the time of "
    "SAM; ERM stopped early has its length from the held-out samples, others have their weight "
    "decay or smoothing from there, and ERM with all tuned has these and its learning rate. Runs "
    "that diverged count. Edge: the best value is the smallest or largest that was tried, so the "
    "row takes part in no verdict."
)
#: So many rows in a figure all have their names in it.
ROOM = 14

MEASURED, COUNTED = "training time (multiple of ERM's)", "gradients counted (batches per step)"
SAM, ERMS = "sam", ("erm", "erm-early", "erm-long", "erm-decay", "erm-smooth", "erm-tuned")


def caption_of(
    bench: Bench, standings: Sequence[Standing], search: Sequence[int], fresh: Sequence[int]
) -> str:
    """What the columns mean on this bench, with the seeds."""
    return CAPTION.format(
        measure=bench.measure,
        search=listed(search),
        fresh=listed(fresh),
        better="; above 0 is better than SAM" + (", a lower loss" * (bench.measure == "loss")),
        cost="measured time" if is_timed(standings) else "count of batches",
    )


def listed(seeds: Sequence[int]) -> str:
    """Seeds as readers write them.

    >>> listed((0, 1, 2)), listed((3, 5))
    ('0 to 2', '3, 5')
    """
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


def label_of_row(contender: Contender) -> str:
    """What readers call a row: its method, and what sets it apart from others of that method."""
    if contender.length != 1.0:
        return label_of(contender.name)
    if contender.label:
        return contender.label
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


def as_page(sheet: Sheet, told: Sequence[str]) -> str:
    """The table and the sentences as they are published."""
    return as_text(sheet) + "".join(f"\n- {sentence}" for sentence in told) + "\n"


def sheet_of(bench: Bench, standings: Sequence[Standing], seeds: Sequence[int]) -> Sheet:
    """All rows, the best first; ``seeds`` are those that were asked for."""
    caption = caption_of(bench, standings, SEARCH_SEEDS, seeds)
    apart, on_front = differences(standings), front(standings, costs(standings))
    corrected = holm({name: each.p_value for name, each in apart.items()})
    ordered = sorted(standings, key=lambda s: -s.spread.mean)
    lines = [
        Line(
            (
                ("↟ " if s.name in on_front else "") + label_of_row(CONTENDERS[s.name]),
                shown_score(bench, s),
                wording.NOTHING if s.trained is None else f"{s.trained:.{places_of(bench)}f}",
                str(len(s.scores)),
                shown_difference(bench, apart.get(s.name)),
                f"{corrected[s.name]:.3f}" if s.name in corrected else wording.NOTHING,
                f"{s.percent_sam:.0f}",
                f"{s.samples:.2f}",
                wording.NOTHING if s.time is None else f"{s.time:.2f}",
                wording.settings(s.settings) + ("; edge" if s.at_edge else ""),
                remark(s),
            ),
            best=s is ordered[0],
        )
        for s in ordered
    ]
    return Sheet(bench.title, COLUMNS, (tuple(lines),), caption, words=("settings", "remark"))


def remark(standing: Standing) -> str:
    """Runs that diverged or did not learn and steps that were skipped, where there are any."""
    n = len(standing.scores)
    told = [f"† {standing.diverged} of {n} diverged"] * bool(standing.diverged)
    told += [f"{standing.unlearnt} of {n} did not learn"] * bool(standing.unlearnt)
    skipped = f"{standing.skipped} of {standing.steps} steps skipped"
    return ", ".join(told + [skipped] * bool(standing.skipped))


def places_of(bench: Bench) -> int:
    """Digits behind the point."""
    return 2 if bench.measure == "accuracy" else 3


def shown_score(bench: Bench, standing: Standing) -> str:
    """In the bench's own units: losses are kept with the other sign."""
    found, places = standing.spread, places_of(bench)
    value = abs(found.mean) if bench.measure == "loss" else found.mean
    return f"{value:.{places}f}" + ("" if found.std is None else f" ± {found.std:.{places}f}")


def shown_difference(bench: Bench, found: Difference | None) -> str:
    """The mean with its interval, higher being better."""
    if found is None:
        return wording.NOTHING
    mean, low, high = (f"{v:+.{places_of(bench)}f}" for v in (found.mean, found.low, found.high))
    return f"{mean} ({low} to {high})".replace("-", "−")


def drawings_of(bench: Bench, standings: Sequence[Standing]) -> list[Drawing]:
    """Against counted gradients, and against measured time where all rows have one.

    The first has the bench's own name, and is of the measured time where there is one.
    """
    counted = {s.name: s.samples for s in standings}
    if not is_timed(standings):
        return [drawing_of(bench, standings, counted, bench.name, COUNTED)]
    times = costs(standings)
    return [
        drawing_of(bench, standings, times, bench.name, MEASURED),
        drawing_of(bench, standings, counted, f"{bench.name}-counted", COUNTED),
    ]


def drawing_of(
    bench: Bench,
    standings: Sequence[Standing],
    cost: Mapping[str, float],
    name: str,
    unit: str,
) -> Drawing:
    """Score against a cost; the front as a line, those on it and the controls named.

    All are where there is room. Rows without this kind of cost are left out.
    """
    on_front = front(standings, cost)
    standings = [s for s in standings if s.name in cost]
    named = {*on_front, SAM, *ERMS, "ae-sam", "ae-looksam"}
    if len(standings) <= ROOM:
        named = {s.name for s in standings}
    sign = 1.0 if bench.measure == "accuracy" else -1.0

    def mark(s: Standing) -> Mark:
        row, high = CONTENDERS[s.name], s.spread.std or 0.0
        label = shortened(label_of_row(row)) if s.name in named else ""
        colour = colour_of(row.method)
        return Mark(cost[s.name], sign * s.spread.mean, label, high=high, colour=colour)

    def paint(figure: Figure, axes: Axes) -> None:
        for s in standings:
            method = CONTENDERS[s.name].method
            axes.errorbar(
                cost[s.name],
                sign * s.spread.mean,
                yerr=s.spread.std,
                color=colour_of(method),
                marker="x" if s.diverged else marker_of(method),
                markersize=7,
                elinewidth=1.0,
                alpha=1.0 if s.name in named else 0.45,
            )
        line = [s for row in on_front for s in standings if s.name == row]
        means = [sign * s.spread.mean for s in line]
        axes.plot([cost[s.name] for s in line], means, color="#888888", drawstyle="steps-post")
        axes.set_xlabel(unit)
        axes.set_ylabel(f"test {bench.measure}" + (" (%)" if sign > 0 else ""))
        if sign < 0:
            axes.invert_yaxis()  # up is better here too
        axes.margins(0.12)
        _fit_to_means(axes, [sign * s.spread.mean for s in standings])
        figure.draw_without_rendering()  # the layout must be known to place labels on it
        label_marks(axes, list(map(mark, standings)), size=9.0)

    return Drawing(
        name,
        f"{bench.title}: {bench.measure} against cost",
        "Up is better, left is cheaper. Bars are one standard deviation over seeds; the line joins "
        "those that nobody beats at the same or a lower cost; a cross has runs that diverged.",
        draw(f"frontier-{name}", paint),
    )


def _fit_to_means(axes: Axes, means: Sequence[float]) -> None:
    """Every mean is seen; a bar that is longer than all of them are apart leaves the picture."""
    low, high = min(means), max(means)
    room = 0.12 * (high - low) or 1.0
    downward = axes.yaxis_inverted()
    axes.set_ylim(*((high + room, low - room) if downward else (low - room, high + room)))


def findings(bench: Bench, standings: Sequence[Standing]) -> list[str]:
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
        f"{label_of_row(CONTENDERS[s.name])} ({s.samples:.2f} batches per step, "
        f"{shown_difference(bench, apart[s.name])})"
        for s in sorted(good, key=lambda s: s.samples)
    )
    told = f"as good as tuned SAM (interval above −{bench.margin:g}) at less cost"
    return [f"{bench.title}: {told}: {shown or 'none'}."]
