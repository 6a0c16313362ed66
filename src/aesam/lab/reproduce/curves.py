"""Accuracy over epochs under label noise, all methods of the paper."""

from collections.abc import Sequence

from aesam.lab import methods
from aesam.lab.report import Comparison
from aesam.lab.report.curves import curves, over_epochs
from aesam.lab.report.figures import Drawing
from aesam.lab.report.results import as_json
from aesam.lab.reproduce.benches import Bench, Options
from aesam.lab.reproduce.finished import Find, comparison_for
from aesam.lab.reproduce.plan import Panel, method_rows, seeds_of
from aesam.lab.reproduce.results import Result


def panels(options: Options, found: Sequence[Bench]) -> list[Panel]:
    """The methods' runs of the noise table, without its controls."""
    seeds = seeds_of(options, 5)
    return [Panel(b.title, tuple(method_rows(b, methods.PAPER, seeds))) for b in found]


def show(panels: Sequence[Panel], find: Find) -> Result:
    comparisons = [c for panel in panels if (c := comparison_for(panel, find)) is not None]
    return Result(
        drawings=[
            _drawing(comparison, split, f"{split}-{i}")
            for i, comparison in enumerate(comparisons, 1)
            for split in ("train", comparison.measured_on)
        ],
        findings=[sentence for c in comparisons for sentence in _overfitting(c)],
        data={
            "comparisons": as_json(comparisons, "")["comparisons"],
            "curves": [_numbers(comparison) for comparison in comparisons],
        },
        runs=[run for comparison in comparisons for row in comparison.rows for run in row.runs],
    )


def _drawing(comparison: Comparison, split: str, name: str) -> Drawing:
    noisy = " The training labels are the wrong ones too." if split == "train" else ""
    return Drawing(
        name,
        f"{'Training' if split == 'train' else 'Testing'} accuracy: {comparison.title}",
        f"Mean over n = {len(comparison.seeds)} seeds; the band is one standard deviation.{noisy}",
        curves(comparison, f"{split}_accuracy", name),
    )


def _numbers(comparison: Comparison) -> dict[str, object]:
    quantities = ("train_accuracy", f"{comparison.measured_on}_accuracy")
    found: dict[str, object] = {"title": comparison.title}
    for row in comparison.rows:
        found[row.label] = {
            quantity: {
                "epoch": over_epochs(row.runs, quantity)[0].tolist(),
                "mean": [round(float(v), 3) for v in over_epochs(row.runs, quantity)[1]],
            }
            for quantity in quantities
        }
    return found


def _overfitting(comparison: Comparison) -> list[str]:
    """How much of the best accuracy on the way is lost at the end: the paper's overfitting."""
    lost = {
        row.label: float(means.max() - means[-1])
        for row in comparison.rows
        for means in [over_epochs(row.runs, f"{comparison.measured_on}_accuracy")[1]]
    }
    shown = ", ".join(f"{label} {points:.1f}" for label, points in lost.items())
    return [f"{comparison.title}: points lost from the best epoch to the last: {shown}."]
