"""The thresholds λ1 ≤ λ2 of the schedule: what they do to % SAM and to accuracy."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from aesam.lab.show import Comparison, MethodRow, PairedTest, paired_t_test, wording
from aesam.lab.show.canvas import Drawing, draw, legend_below
from aesam.lab.show.report_files import as_json
from aesam.lab.show.table import Line, Sheet
from aesam.paper import setups
from aesam.paper.claims import FEWEST, SIGNIFICANT
from aesam.paper.finished import Find, comparison_for
from aesam.paper.outcome import Result
from aesam.paper.plan import Panel, Row, seeds_of
from aesam.paper.setups import Options, Setup

Pair = tuple[float, float]
VALUES = (-2.0, -1.0, 0.0, 1.0, 2.0)
#: From light to dark with λ2, readable without colour too: each has a marker of its own.
LOOKS = {
    -2.0: ("#56B4E9", "o"),
    -1.0: ("#009E73", "s"),
    0.0: ("#E69F00", "^"),
    1.0: ("#D55E00", "v"),
    2.0: ("#000000", "D"),
}


def where(options: Options) -> list[Setup]:
    """AE-SAM on clean labels and AE-LookSAM at 80 % noise, as the paper has it."""
    clean = [b for b in setups.cifar(options) if b.paper_model == "resnet18"]
    return [*clean[: 1 if options.is_small else None], *setups.noisy(options, levels=(0.8,))]


def panels(options: Options, found: Sequence[Setup]) -> list[Panel]:
    seeds = seeds_of(options, 5)
    return [
        Panel(f"{'AE-LookSAM' if b.noise else 'AE-SAM'}: {b.title}", tuple(_rows(b, seeds)))
        for b in found
    ]


def _rows(setup: Setup, seeds: Sequence[int]) -> list[Row]:
    method = "ae-looksam" if setup.noise else "ae-sam"
    pairs = [(low, high) for low in VALUES for high in VALUES if low <= high]
    return [
        Row(
            method,
            f"λ1 = {low:g}, λ2 = {high:g}".replace("-", "−"),
            tuple(setup.run(method, seed, lambda1=low, lambda2=high) for seed in seeds),
        )
        for low, high in pairs
    ]


def show(panels: Sequence[Panel], find: Find) -> Result:
    comparisons = [c for panel in panels if (c := comparison_for(panel, find)) is not None]
    return Result(
        sheets=[_sheet(comparison) for comparison in comparisons],
        drawings=[
            _drawing(comparison, quantity, f"{quantity.replace('_', '-')}-{i}")
            for i, comparison in enumerate(comparisons, 1)
            for quantity in ("percent_sam", "accuracy")
        ],
        findings=[s for found in comparisons for s in (*shares(found), trend(found))],
        data={"comparisons": as_json(comparisons, "")["comparisons"]},
        runs=[run for comparison in comparisons for row in comparison.rows for run in row.runs],
    )


def _sheet(comparison: Comparison) -> Sheet:
    rows = sorted(comparison.rows, key=_pair)
    lines = tuple(
        Line(
            (
                row.label,
                wording.plus_minus(row.accuracy, 2),
                wording.plus_minus(row.percent_sam, 1),
                str(row.n),
            ),
            best=row.best_overall,
        )
        for row in rows
    )
    columns = ("thresholds", f"{comparison.measured_on} accuracy", "% SAM", "n")
    return Sheet(comparison.title, columns, (lines,), _caption(comparison))


def _caption(comparison: Comparison) -> str:
    row = comparison.rows[0]
    own = {name: row.settings.get(name) for name in ("rho", "alpha")}
    epochs = comparison.settings["training"]["epochs"]
    return (
        f"Mean ± standard deviation over seeds {wording.whole_numbers(comparison.seeds)}; "
        f"{epochs} epochs; {wording.settings(own)}, chosen at other thresholds. The paper shows "
        "these as figures only."
    )


def _pair(row: MethodRow) -> Pair:
    return row.settings["lambda1"], row.settings["lambda2"]


def by_lambda2(comparison: Comparison) -> dict[float, list[MethodRow]]:
    """The lines of the figure: for each λ2 its rows from the lowest λ1 up."""
    rows = sorted(comparison.rows, key=_pair)
    return {high: [row for row in rows if _pair(row)[1] == high] for high in VALUES}


def _drawing(comparison: Comparison, quantity: str, name: str) -> Drawing:
    heading = "Share of SAM" if quantity == "percent_sam" else "Accuracy"
    unit = "steps that used SAM (%)" if quantity == "percent_sam" else "accuracy (%)"

    def paint(figure: Figure, axes: Axes) -> None:
        for high, rows in by_lambda2(comparison).items():
            colour, marker = LOOKS[high]
            spreads = [getattr(row, quantity) for row in rows]
            axes.errorbar(
                [_pair(row)[0] for row in rows],
                [spread.mean for spread in spreads],
                yerr=[spread.std or 0.0 for spread in spreads],
                label=f"λ2 = {high:g}".replace("-", "−"),
                color=colour,
                marker=marker,
                capsize=3,
            )
        axes.set_xlabel("λ1, the threshold at the end of training")
        axes.set_xticks(VALUES)
        axes.set_ylabel(unit)
        legend_below(figure, axes, 5)

    caption = f"Mean over n = {comparison.n} seeds; bars are one standard deviation."
    return Drawing(name, f"{heading}: {comparison.title}", caption, draw(name, paint))


def shares(comparison: Comparison) -> list[str]:
    """“Increasing λ1, or λ2, reduces the share of SAM”, between neighbours, by seed."""
    rows = {_pair(row): row for row in comparison.rows}
    return [_falls(comparison.title, rows, which) for which in (0, 1)]


def _falls(title: str, rows: Mapping[Pair, MethodRow], which: int) -> str:
    """Every pair of neighbours; one that rises beyond chance is named."""
    claim = f"{title}: increasing λ{which + 1} reduces the share of SAM"
    pairs = [(row, rows[after]) for at, row in rows.items() if (after := _next(at, which)) in rows]
    if not pairs:
        return f"{claim} → cannot tell: no neighbouring thresholds are finished."
    changes = [_change(low, high) for low, high in pairs]
    falls, ties = sum(c < 0.0 for c in changes), sum(c == 0.0 for c in changes)
    certain = [f"{low.label} → {high.label}" for low, high in pairs if _rises(low, high)]
    told = [f"it falls at {falls} of {len(pairs)} steps"]
    told += [f"stays the same at {ties}"] if ties else []
    told += [f"rises beyond chance at {'; '.join(certain)}"] if certain else []
    if certain:
        word = "disagrees"
    elif falls == len(pairs):
        word = "holds here"
    else:
        word = "holds here but for ties" if falls + ties == len(pairs) else "not seen everywhere"
    return f"{claim} → {word} ({', '.join(told)})."


def _next(pair: Pair, which: int) -> Pair:
    return (pair[0] + 1.0, pair[1]) if which == 0 else (pair[0], pair[1] + 1.0)


def _change(low: MethodRow, high: MethodRow) -> float:
    return high.percent_sam.mean - low.percent_sam.mean


def _rises(low: MethodRow, high: MethodRow) -> bool:
    """Whether the share of SAM rises, and a paired t-test by seed says that it is no chance."""
    test = paired_t_test(_shares(high), _shares(low))
    return test is not None and test.difference > 0.0 and 0.0 < test.p_value < SIGNIFICANT


def _shares(row: MethodRow) -> dict[int, float]:
    return {run.seed: float(run.summary["percent_sam"]) for run in row.runs}


def trend(comparison: Comparison) -> str:
    """“A similar trend is observed on the accuracy”: does it fall where the share of SAM does?

    A rank correlation over the thresholds for each seed, and a t-test of these: the thresholds of
    one seed share their first batches, so they are no independent sample themselves.
    """
    claim = f"{comparison.title}: accuracy falls with the share of SAM"
    found = {seed: _correlation(comparison, seed) for seed in comparison.seeds}
    test = paired_t_test(found, dict.fromkeys(found, 0.0))
    if not all(math.isfinite(value) for value in found.values()):
        return f"{claim} → not tested: with some seed share of SAM or accuracy are all the same."
    shown = ", ".join(f"{value:+.2f}" for value in found.values()).replace("-", "−")
    best = max(comparison.rows, key=lambda row: row.accuracy.mean)
    tested = f"; {wording.p_statement(test)}, n = {test.n}" if test and test.p_value > 0.0 else ""
    return (
        f"{claim} → {_trend_word(test)} (Spearman's rank correlation {shown} by seed{tested}; the "
        f"most accurate is {best.label} with {best.percent_sam.mean:.0f} % SAM)."
    )


def _correlation(comparison: Comparison, seed: int) -> float:
    """Of share and accuracy over the thresholds that are finished with this seed."""
    shares = [_shares(row)[seed] for row in comparison.rows if seed in row.accuracies]
    accuracies = [row.accuracies[seed] for row in comparison.rows if seed in row.accuracies]
    if min(len(set(shares)), len(set(accuracies))) < 2:
        return math.nan
    found: Any = stats.spearmanr(shares, accuracies)
    return float(found.statistic)


def _trend_word(test: PairedTest | None) -> str:
    if test is None or test.n < FEWEST:
        return "cannot tell: fewer than three seeds"
    if test.p_value >= SIGNIFICANT:
        return "same direction, not significant" if test.difference > 0.0 else "not seen here"
    return "holds here" if test.difference > 0.0 else "disagrees"
