"""The figures of a comparison, with what they show in words."""

from aesam.lab.show.canvas import Drawing
from aesam.lab.show.comparison import Comparison
from aesam.lab.show.curves import adaptive_rows, curves, decision_trace, drawn_rows, has, thinning
from aesam.lab.show.tradeoff import accuracy_against_cost, has_times

RISE = (
    "By how much the loss is higher at w + ε, from the steps that took a second gradient: the "
    "median of each epoch."
)


def figures(comparison: Comparison, prefix: str = "figure") -> list[Drawing]:
    """All figures of a comparison; ``prefix`` keeps several comparisons on one page apart."""
    cost = _cost(comparison, prefix)
    return [cost, *_curves(comparison, prefix), *_traces(comparison, prefix)]


def _cost(comparison: Comparison, prefix: str) -> Drawing:
    unit = (
        "Time is training time without evaluation, divided by ERM's mean."
        if has_times(comparison)
        else "Cost is gradients per step, since no ERM run is there to divide times by."
    )
    better = "Down" if comparison.score == "loss" else "Up"
    return Drawing(
        f"{prefix}-cost",
        f"{comparison.score.capitalize()} against cost",
        f"{better} is better, left is cheaper. {unit} Bars are one standard deviation over seeds.",
        accuracy_against_cost(comparison, f"{prefix}-cost"),
    )


def _curves(comparison: Comparison, prefix: str) -> list[Drawing]:
    split = comparison.measured_on
    noisy = (
        "; part of the training labels are wrong"
        if comparison.settings["data"].get("noise")
        else ""
    )
    band = "Mean over seeds; the band is one standard deviation"
    few = len(drawn_rows(comparison)) < len(comparison.rows)
    best = " Of each method the best three settings are drawn." if few else ""
    wanted = (
        ("percent_sam", "% SAM over training", f"Share of the steps so far that used SAM. {band}."),
        (f"{split}_accuracy", f"{split.capitalize()} accuracy", f"{band}.{best}"),
        ("train_accuracy", "Training accuracy", f"{band}{noisy}.{best}"),
        (f"{split}_loss", f"{split.capitalize()} loss", f"{band}.{best}"),
        ("train_loss", "Training loss", f"{band}{noisy}.{best}"),
        ("percent_rise", "Rise of the loss at w + ε", f"{RISE} {band}.{best}"),
    )
    return [
        Drawing(
            f"{prefix}-{quantity.replace('_', '-')}",
            heading,
            caption,
            curves(comparison, quantity, f"{prefix}-{quantity.replace('_', '-')}"),
        )
        for quantity, heading, caption in wanted
        if any(has(row, quantity) for row in comparison.rows)
    ]


def _traces(comparison: Comparison, prefix: str) -> list[Drawing]:
    return [
        Drawing(
            f"{prefix}-trace-{place}",
            f"Decisions of {row.label}",
            f"The run with seed {row.seeds[0]}: SAM is used where the squared norm of the gradient "
            f"reaches the threshold.{_left_out(thinning(row))}",
            decision_trace(row, f"{prefix}-trace-{place}"),
        )
        for place, row in enumerate(adaptive_rows(comparison))
    ]


def _left_out(every: int) -> str:
    return f" One in {every} of the recorded steps is drawn." if every > 1 else ""
