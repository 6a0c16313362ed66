"""Are squared gradient norms normal? Histogram, Q–Q plot and a test at three times of training."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from aesam.lab.show.canvas import Drawing, draw, legend_below
from aesam.lab.show.finished_runs import FinishedRun
from aesam.lab.show.table import Line, Sheet
from aesam.paper.convergence import measured_panel
from aesam.paper.finished import Find, runs_of_row
from aesam.paper.outcome import Result
from aesam.paper.plan import Panel, only_seed
from aesam.paper.setups import Options, Setup

COLOURS = ("#0072B2", "#E69F00", "#D55E00")  # from early to late
MARKERS = ("o", "s", "^")
LEVEL = 0.05
NOTE = (
    "One run of AE-SAM, the method that relies on it. The test is D'Agostino and Pearson's of "
    "skewness and kurtosis together (scipy.stats.normaltest); a p-value below 0.05, divided by "
    "the number of samples, speaks against a normal distribution. The batches are those of one "
    "shuffled pass after another, without augmentation and with their own BatchNorm statistics; "
    "with few training images they overlap."
)


@dataclass(frozen=True)
class Sample:
    """The squared norms at one epoch, and what a normal distribution says of them."""

    where: str
    epoch: int
    norms: np.ndarray
    mean: float
    std: float
    skewness: float
    p_value: float
    straightness: float  # correlation of the Q–Q plot's points: 1 on a line

    @property
    def is_testable(self) -> bool:
        """Norms that are not finite, or all the same, have no distribution to test."""
        return bool(np.isfinite(self.norms).all()) and self.std > 0.0

    @property
    def scaled(self) -> np.ndarray:
        """In standard deviations from their mean; unchanged if they do not vary."""
        return (self.norms - self.mean) / (self.std or 1.0)


def panels(options: Options, found: Sequence[Setup]) -> list[Panel]:
    seed = only_seed(options)
    return [measured_panel(setup, ("ae-sam",), (seed,), "norms") for setup in found]


def show(panels: Sequence[Panel], find: Find) -> Result:
    found = [(panel, run) for panel in panels for run in runs_of_row(panel.rows[0], find)]
    samples = [recorded(run, panel.title) for panel, run in found]
    every = [sample for of_panel in samples for sample in of_panel]
    return Result(
        sheets=[_sheet(every)] if every else [],
        drawings=[d for i, of_panel in enumerate(samples, 1) for d in _drawings(of_panel, i)],
        findings=[finding(every)] if every else [],
        data={"samples": [_numbers(sample) for sample in every]},
        runs=[run for _, run in found],
    )


def recorded(run: FinishedRun, where: str) -> list[Sample]:
    """The epochs at which the run recorded its norms."""
    return [
        sample_of(where, line["epoch"], line["norms"]) for line in run.metrics if "norms" in line
    ]


def sample_of(where: str, epoch: int, norms: Sequence[float]) -> Sample:
    values = np.asarray(norms, dtype=np.float64)
    if not np.isfinite(values).all() or np.ptp(values) == 0.0:
        return Sample(where, epoch, values, float(values.mean()), *[math.nan] * 4)
    test: Any = stats.normaltest(values)
    quantiles: Any = stats.probplot(values)
    return Sample(
        where,
        epoch,
        values,
        float(values.mean()),
        float(values.std(ddof=1)),
        float(stats.skew(values)),
        float(test.pvalue),
        float(quantiles[1][2]),
    )


def _sheet(samples: Sequence[Sample]) -> Sheet:
    lines = tuple(
        Line(
            (
                f"{s.where}, epoch {s.epoch}",
                f"{s.mean:.3g}",
                f"{s.std:.3g}",
                f"{s.skewness:.2f}".replace("-", "−"),
                f"{s.p_value:.2g}",
                f"{s.straightness:.3f}",
                str(len(s.norms)),
            )
        )
        for s in samples
    )
    columns = (
        "where",
        "mean of ‖g‖²",
        "standard deviation",
        "skewness",
        "p of normality",
        "Q–Q correlation",
        "batches",
    )
    return Sheet("Squared gradient norms of mini-batches", columns, (lines,), NOTE)


def _drawings(samples: Sequence[Sample], number: int) -> list[Drawing]:
    samples = [sample for sample in samples if sample.is_testable]
    if not samples:
        return []
    where = samples[0].where
    batches = f"{len(samples[0].norms)} mini-batches at each epoch."
    histogram, quantiles = f"histogram-{number}", f"quantiles-{number}"
    return [
        Drawing(
            histogram,
            f"Distribution: {where}",
            f"{batches} The lines are normal densities with the same mean and deviation.",
            draw(histogram, lambda figure, axes: _paint_histogram(figure, axes, samples)),
        ),
        Drawing(
            quantiles,
            f"Q–Q plot: {where}",
            f"{batches} Normal values would lie on the line.",
            draw(quantiles, lambda figure, axes: _paint_quantiles(figure, axes, samples)),
        ),
    ]


def _paint_histogram(figure: Figure, axes: Axes, samples: Sequence[Sample]) -> None:
    """In units of each epoch's own mean: the norms shrink by orders of magnitude on the way."""
    for sample, colour in zip(samples, COLOURS, strict=False):
        unit = sample.mean or 1.0
        axes.hist(sample.norms / unit, bins=30, density=True, color=colour, alpha=0.35)
        if sample.std > 0:
            grid = np.linspace(sample.norms.min() / unit, sample.norms.max() / unit, 200)
            density = stats.norm.pdf(grid, 1.0, sample.std / unit)
            axes.plot(grid, density, color=colour, label=_label(sample))
    axes.set_xlabel("‖g‖² / mean of ‖g‖²")
    axes.set_ylabel("density")
    legend_below(figure, axes, 2)


def _paint_quantiles(figure: Figure, axes: Axes, samples: Sequence[Sample]) -> None:
    for sample, colour, marker in zip(samples, COLOURS, MARKERS, strict=False):
        (normal, ordered), _ = stats.probplot(sample.scaled)
        axes.plot(
            normal, ordered, marker, color=colour, markersize=3, alpha=0.6, label=_label(sample)
        )
    axes.axline((0.0, 0.0), slope=1.0, color="#444444", linewidth=1.0)
    axes.set_xlabel("quantile of the normal distribution")
    axes.set_ylabel("quantile of ‖g‖² (standardised)")
    legend_below(figure, axes, 2)


def _label(sample: Sample) -> str:
    return f"epoch {sample.epoch}, p = {sample.p_value:.2g}"


def finding(samples: Sequence[Sample]) -> str:
    """“Approximately normal”, by the test on each sample that can be tested."""
    tested = [s for s in samples if s.is_testable]
    if not tested:
        return "Squared gradient norms are normal → no sample could be tested."
    level = LEVEL / len(tested)  # Bonferroni: of many normal samples some would fail by chance
    against = sum(s.p_value < level for s in tested)
    skewed = sum(s.skewness > 0 for s in tested)
    straight = [s.straightness for s in tested]
    word = "not rejected" if not against else "disagrees"
    left = len(samples) - len(tested)
    more = f", {left} more could not be tested" if left else ""
    return (
        f"Squared gradient norms are normal → {word} (p < {LEVEL} / {len(tested)} in {against} of "
        f"{len(tested)} samples{more}; {skewed} have the longer tail to the right; Q–Q correlation "
        f"{min(straight):.3f} to {max(straight):.3f}, 1 being a line)."
    )


def _numbers(sample: Sample) -> dict[str, Any]:
    kept = ("where", "epoch", "mean", "std", "skewness", "p_value")
    found = {name: getattr(sample, name) for name in kept}
    norms = [float(f"{v:.5g}") for v in sample.norms]
    return {**found, "qq_correlation": sample.straightness, "norms": norms}
