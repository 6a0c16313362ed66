"""Gradients over epochs: their variance, their mean squared norm, and the full gradient's norm."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from aesam.lab.show import Comparison, MethodRow
from aesam.lab.show.canvas import Drawing
from aesam.lab.show.curves import curves, over_epochs
from aesam.paper import by_seed, claims
from aesam.paper.claims import Claim, Quantity
from aesam.paper.finished import Find, comparison_for
from aesam.paper.outcome import Result
from aesam.paper.plan import Panel, method_rows, seeds_of
from aesam.paper.setups import Options, Setup

HEADINGS = {
    "gradient_variance": "Variance of the stochastic gradient",
    "mean_squared_norm": "Mean squared norm of the stochastic gradient",
    "full_squared_norm": "Squared norm of the full gradient",
    "train_loss": "Training loss",
}
VANISHED = 100.0  # how many times smaller counts as “converges to 0”
HOW = (
    "After each epoch, on batches of the training's size with their own BatchNorm statistics, of "
    "shuffled passes over the training set without augmentation (one pass, or 20 batches if that "
    "is more): the mean of the batches' squared gradient norms, the squared norm of the mean "
    "gradient, and their difference, the variance (Eq. 3)."
)


def measured_panel(setup: Setup, names: Sequence[str], seeds: Sequence[int], kind: str) -> Panel:
    """The methods on a setup, each run recording what ``kind`` names (``Training.measure``)."""
    training = replace(setup.base.training, measure=kind)
    measuring = replace(setup, base=replace(setup.base, training=training))
    return Panel(setup.title, tuple(method_rows(measuring, names, seeds)))


def sam_against_erm(options: Options, found: Sequence[Setup]) -> list[Panel]:
    return [measured_panel(b, ("erm", "sam"), seeds_of(options, 5), "gradients") for b in found]


def ae_sam_against_ss_sam(options: Options, found: Sequence[Setup]) -> list[Panel]:
    seeds = seeds_of(options, 5)
    return [measured_panel(b, ("ss-sam", "ae-sam"), seeds, "gradients") for b in found]


def show(panels: Sequence[Panel], find: Find, quantity: str) -> Result:
    """One curve of SAM and one of ERM on every panel, and which is lower at the end."""
    return _result(panels, find, (quantity,), smaller_with_sam)


def show_convergence(panels: Sequence[Panel], find: Find) -> Result:
    return _result(panels, find, ("full_squared_norm", "train_loss"), converged)


def _result(
    panels: Sequence[Panel],
    find: Find,
    quantities: Sequence[str],
    judged: Callable[[Comparison, str], list[str]],
) -> Result:
    comparisons = [c for panel in panels if (c := comparison_for(panel, find)) is not None]
    shown = [
        (c, q, f"{q.replace('_', '-')}-{i}")
        for i, c in enumerate(comparisons, 1)
        for q in quantities
    ]
    return Result(
        drawings=[_drawing(comparison, q, name) for comparison, q, name in shown],
        findings=[said for comparison, q, _ in shown for said in judged(comparison, q)],
        notes=[HOW],
        data={"curves": [_numbers(comparison, quantities) for comparison in comparisons]},
        runs=[run for comparison in comparisons for row in comparison.rows for run in row.runs],
    )


def _drawing(comparison: Comparison, quantity: str, name: str) -> Drawing:
    caption = f"Mean over n = {comparison.n} seeds; the band is one standard deviation."
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


def smaller_with_sam(comparison: Comparison, quantity: str) -> list[str]:
    """“SAM is smaller than ERM” at the end of training, by seed."""
    measured = by_seed.at_the_end(quantity, HEADINGS[quantity].lower())
    return _sentences(comparison, [Claim("sam", "erm")], measured)


def converged(comparison: Comparison, quantity: str) -> list[str]:
    """“Converges to 0” for each method, and “comparable speeds” by seed."""
    name = HEADINGS[quantity].lower()
    parts = [_fell(row, quantity) for row in comparison.rows]
    falls = [fall for row in comparison.rows for fall in by_seed.fall(row, quantity).values()]
    reached = all(fall >= VANISHED for fall in falls)  # a curve that is not finite did not
    word = "holds here" if reached else "disagrees: not all fell so far"
    speeds = [Claim("ae-sam", "ss-sam", comparable=True)]
    vanished = (
        f"{comparison.title}: {name} converges to 0 (falls to a hundredth in every run) → {word} "
        f"({'; '.join(parts)})."
    )
    return [vanished, *_sentences(comparison, speeds, by_seed.speed(quantity, name))]


def _sentences(comparison: Comparison, claimed: list[Claim], measured: Quantity) -> list[str]:
    found = claims.judge(comparison, claimed, measured)
    untested = f"{comparison.title}: fewer than two seeds of both, so nothing can be tested."
    return [verdict.sentence() for verdict in found] or [untested]


def _fell(row: MethodRow, quantity: str) -> str:
    means = over_epochs(row.runs, quantity)[1]
    return f"{row.label} from {means[0]:.3g} to {by_seed.end_of(means):.3g}, n = {row.n}"
