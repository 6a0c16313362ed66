"""The thresholds λ1 ≤ λ2 of the schedule: what they do to % SAM and to accuracy."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from aesam.lab.report import Comparison, MethodRow, paired_t_test, wording
from aesam.lab.report.canvas import draw, legend_below
from aesam.lab.report.figures import Drawing
from aesam.lab.report.results import as_json
from aesam.lab.reproduce import benches
from aesam.lab.reproduce.benches import Bench, Options
from aesam.lab.reproduce.claims import SIGNIFICANT
from aesam.lab.reproduce.finished import Find, comparison_for
from aesam.lab.reproduce.plan import Panel, Row, seeds_of
from aesam.lab.reproduce.results import Result
from aesam.lab.reproduce.sheet import Line, Sheet

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


def where(options: Options) -> list[Bench]:
    """AE-SAM on clean labels and AE-LookSAM at 80 % noise, as the paper has it."""
    clean = [b for b in benches.cifar(options) if b.paper_model == "resnet18"]
    return [*clean[: 1 if options.is_small else None], *benches.noisy(options, levels=(0.8,))]


def panels(options: Options, found: Sequence[Bench]) -> list[Panel]:
    seeds = seeds_of(options, 5)
    return [
        Panel(f"{'AE-LookSAM' if b.noise else 'AE-SAM'}: {b.title}", tuple(_rows(b, seeds)))
        for b in found
    ]


def _rows(bench: Bench, seeds: Sequence[int]) -> list[Row]:
    method = "ae-looksam" if bench.noise else "ae-sam"
    pairs = [(low, high) for low in VALUES for high in VALUES if low <= high]
    return [
        Row(
            method,
            f"λ1 = {low:g}, λ2 = {high:g}".replace("-", "−"),
            tuple(bench.run(method, seed, lambda1=low, lambda2=high) for seed in seeds),
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


def _drawing(comparison: Comparison, quantity: str, name: str) -> Drawing:
    heading = "Share of SAM" if quantity == "percent_sam" else "Accuracy"
    unit = "steps that used SAM (%)" if quantity == "percent_sam" else "accuracy (%)"

    def paint(figure: Figure, axes: Axes) -> None:
        for high in VALUES:
            rows = sorted((r for r in comparison.rows if _pair(r)[1] == high), key=_pair)
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

    caption = f"Mean over n = {len(comparison.seeds)} seeds; bars are one standard deviation."
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
    """“A similar trend is observed on the accuracy”: does it fall where the share of SAM does?"""
    rows = comparison.rows
    shares, accuracies = zip(*((r.percent_sam.mean, r.accuracy.mean) for r in rows), strict=True)
    if min(len(set(shares)), len(set(accuracies))) < 2:
        return f"{comparison.title}: share of SAM or accuracy are all the same: no trend to test."
    test: Any = stats.spearmanr(shares, accuracies)
    certain = test.pvalue < SIGNIFICANT
    agrees = "holds here" if test.statistic > 0 else "disagrees"
    best = max(rows, key=lambda row: row.accuracy.mean)
    return (
        f"{comparison.title}: accuracy falls with the share of SAM → "
        f"{agrees if certain else 'not seen here'} (Spearman's rank correlation "
        f"{test.statistic:+.2f}, p = {test.pvalue:.2g}, n = {len(rows)} pairs of thresholds; the "
        f"most accurate is {best.label} with {best.percent_sam.mean:.0f} % SAM)."
    ).replace("-0", "−0")
