"""Gradients over epochs: their variance, their mean squared norm, and the full gradient's norm."""

import math
from collections.abc import Callable, Sequence

from aesam.lab.report import (
    Comparison,
    FinishedRun,
    MethodRow,
    label_of,
    paired_t_test,
    wording,
)
from aesam.lab.report.curves import curves, over_epochs
from aesam.lab.report.figures import Drawing
from aesam.lab.reproduce.benches import Bench, Options
from aesam.lab.reproduce.finished import Find, comparison_for
from aesam.lab.reproduce.measured import measured_panel
from aesam.lab.reproduce.plan import Panel, seeds_of
from aesam.lab.reproduce.results import Result

HEADINGS = {
    "gradient_variance": "Variance of the stochastic gradient",
    "mean_squared_norm": "Mean squared norm of the stochastic gradient",
    "full_squared_norm": "Squared norm of the full gradient",
    "train_loss": "Training loss",
}
HOW = (
    "After each epoch, on the training set without augmentation, in batches of the training's size "
    "with their own BatchNorm statistics: the mean of the batches' squared gradient norms, the "
    "squared norm of the mean gradient, and their difference, the variance (Eq. 3)."
)


def sam_against_erm(options: Options, found: Sequence[Bench]) -> list[Panel]:
    return [measured_panel(b, ("erm", "sam"), seeds_of(options, 5), "gradients") for b in found]


def ae_sam_against_ss_sam(options: Options, found: Sequence[Bench]) -> list[Panel]:
    seeds = seeds_of(options, 5)
    return [measured_panel(b, ("ss-sam", "ae-sam"), seeds, "gradients") for b in found]


def show(panels: Sequence[Panel], find: Find, quantity: str) -> Result:
    """One curve of SAM and one of ERM on every panel, and which is lower at the end."""
    return _result(panels, find, (quantity,), _lower)


def show_convergence(panels: Sequence[Panel], find: Find) -> Result:
    return _result(panels, find, ("full_squared_norm", "train_loss"), _converged)


def _result(
    panels: Sequence[Panel],
    find: Find,
    quantities: Sequence[str],
    finding: Callable[[Comparison, str], str],
) -> Result:
    comparisons = [c for panel in panels if (c := comparison_for(panel, find)) is not None]
    shown = [
        (c, q, f"{q.replace('_', '-')}-{i}")
        for i, c in enumerate(comparisons, 1)
        for q in quantities
    ]
    return Result(
        drawings=[_drawing(comparison, q, name) for comparison, q, name in shown],
        findings=[finding(comparison, q) for comparison, q, _ in shown],
        notes=[HOW],
        data={"curves": [_numbers(comparison, quantities) for comparison in comparisons]},
        runs=[run for comparison in comparisons for row in comparison.rows for run in row.runs],
    )


def _drawing(comparison: Comparison, quantity: str, name: str) -> Drawing:
    caption = f"Mean over n = {len(comparison.seeds)} seeds; the band is one standard deviation."
    heading = f"{HEADINGS[quantity]}: {comparison.title}"
    return Drawing(name, heading, caption, curves(comparison, quantity, name))


def _numbers(comparison: Comparison, quantities: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {"title": comparison.title, "n": len(comparison.seeds)}
    for row in comparison.rows:
        found[row.label] = {
            quantity: [_short(v) for v in over_epochs(row.runs, quantity)[1]]
            for quantity in quantities
        }
    return found


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _end(row: MethodRow, quantity: str) -> float:
    """The mean over the last tenth of the epochs: single epochs jump."""
    return _end_of(row.runs, quantity)


def _end_of(runs: Sequence[FinishedRun], quantity: str) -> float:
    means = over_epochs(runs, quantity)[1]
    return float(means[-max(1, len(means) // 10) :].mean())


def _lower(comparison: Comparison, quantity: str) -> str:
    ends = {row.method: _end(row, quantity) for row in comparison.rows}
    if not {"sam", "erm"} <= ends.keys():
        return f"{comparison.title}: not all runs are there."
    sam, erm = ends["sam"], ends["erm"]
    rows = {row.method: row for row in comparison.rows}
    by_seed = {m: {r.seed: _end_of([r], quantity) for r in rows[m].runs} for m in ("sam", "erm")}
    test = paired_t_test(by_seed["sam"], by_seed["erm"])
    word = "smaller" if sam < erm else "larger"
    certain = f"{wording.p_statement(test)}, n = {test.n}" if test else "one seed, nothing tested"
    return (
        f"{comparison.title}: “SAM is smaller than ERM”: it is {word} at the end of training "
        f"({label_of('sam')} {sam:.3g}, {label_of('erm')} {erm:.3g}, mean of the last tenth of the "
        f"epochs; paired t-test: {certain})."
    )


def _converged(comparison: Comparison, quantity: str) -> str:
    parts: list[str] = []
    for row in comparison.rows:
        means = over_epochs(row.runs, quantity)[1]
        parts.append(f"{row.label} from {means[0]:.3g} to {_end(row, quantity):.3g}")
    return f"{comparison.title}, {HEADINGS[quantity].lower()}: {', '.join(parts)}."
