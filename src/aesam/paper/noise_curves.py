"""Accuracy over epochs under label noise, all methods of the paper."""

from collections.abc import Sequence

from aesam.lab.lab_methods import methods_of
from aesam.lab.show import Comparison, MethodRow
from aesam.lab.show.canvas import Drawing
from aesam.lab.show.curves import curves, over_epochs
from aesam.lab.show.report_files import as_json
from aesam.paper import by_seed, claims
from aesam.paper.claims import Claim, Verdict
from aesam.paper.finished import Find, comparison_for
from aesam.paper.outcome import Result
from aesam.paper.plan import Panel, method_rows, seeds_of
from aesam.paper.setups import Options, Setup

#: SAM is robust, ERM and SS-SAM overfit, AE-SAM and LookSAM less so, AE-LookSAM as little as SAM.
CLAIMS = (
    Claim("sam", "erm"),
    Claim("sam", "ss-sam"),
    Claim("ae-sam", "erm"),
    Claim("looksam", "erm"),
    Claim("ae-looksam", "sam", comparable=True),
)


def panels(options: Options, found: Sequence[Setup]) -> list[Panel]:
    """The methods' runs of the noise table, without its controls."""
    seeds = seeds_of(options, 5)
    return [Panel(b.title, tuple(method_rows(b, methods_of("paper"), seeds))) for b in found]


def show(panels: Sequence[Panel], find: Find) -> Result:
    comparisons = [c for panel in panels if (c := comparison_for(panel, find)) is not None]
    verdicts = [verdict for comparison in comparisons for verdict in judge(comparison)]
    return Result(
        drawings=[
            _drawing(comparison, split, f"{split}-{i}")
            for i, comparison in enumerate(comparisons, 1)
            for split in ("train", comparison.measured_on)
        ],
        verdicts=verdicts,
        data={
            "comparisons": as_json(comparisons, "")["comparisons"],
            "curves": [_numbers(comparison) for comparison in comparisons],
            "verdicts": [verdict.as_json() for verdict in verdicts],
        },
        runs=[run for comparison in comparisons for row in comparison.rows for run in row.runs],
    )


def _drawing(comparison: Comparison, split: str, name: str) -> Drawing:
    noisy = " The training labels are the wrong ones too." if split == "train" else ""
    return Drawing(
        name,
        f"{'Training' if split == 'train' else 'Testing'} accuracy: {comparison.title}",
        f"Mean over n = {comparison.n} seeds; the band is one standard deviation.{noisy}",
        curves(comparison, f"{split}_accuracy", name),
    )


def _numbers(comparison: Comparison) -> dict[str, object]:
    quantities = ("train_accuracy", f"{comparison.measured_on}_accuracy")
    rows = {row.label: {q: _curve(row, q) for q in quantities} for row in comparison.rows}
    return {"title": comparison.title, **rows}


def _curve(row: MethodRow, quantity: str) -> dict[str, object]:
    epochs, means, _ = over_epochs(row.runs, quantity)
    return {"epoch": epochs.tolist(), "mean": [round(float(mean), 3) for mean in means]}


def judge(comparison: Comparison) -> list[Verdict]:
    """How much of the best accuracy on the way is lost at the end: the paper's overfitting."""
    return claims.judge(comparison, CLAIMS, by_seed.lost_points(comparison.measured_on))
