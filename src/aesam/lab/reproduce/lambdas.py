"""The thresholds λ1 ≤ λ2 of the schedule: what they do to % SAM and to accuracy."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aesam.lab.report import Comparison, MethodRow, wording
from aesam.lab.report.canvas import draw, legend_below
from aesam.lab.report.figures import Drawing
from aesam.lab.report.results import as_json
from aesam.lab.reproduce import benches
from aesam.lab.reproduce.benches import Bench, Options
from aesam.lab.reproduce.finished import Find, comparison_for
from aesam.lab.reproduce.plan import Panel, Row, seeds_of
from aesam.lab.reproduce.results import Result
from aesam.lab.reproduce.sheet import Line, Sheet

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
        findings=[_monotone(comparison) for comparison in comparisons],
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
    return Sheet(comparison.title, columns, (lines,), "The paper shows these as figures only.")


def _pair(row: MethodRow) -> tuple[float, float]:
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


def _monotone(comparison: Comparison) -> str:
    """Whether a larger λ1 always means less SAM, as the paper says."""
    shares = {_pair(row): row.percent_sam.mean for row in comparison.rows}
    rises = [
        f"{low:g} → {after:g} with λ2 = {high:g}".replace("-", "−")
        for (low, high), share in shares.items()
        for (after, same), other in shares.items()
        if same == high and after == low + 1 and other >= share
    ]
    best = max(comparison.rows, key=lambda row: row.accuracy.mean)
    claim = "holds here" if not rises else f"does not hold here for λ1 of {', '.join(rises)}"
    return (
        f"{comparison.title}: “increasing λ1 reduces the share of SAM” {claim}; the most accurate "
        f"is {best.label} with {best.percent_sam.mean:.0f} % SAM."
    )
