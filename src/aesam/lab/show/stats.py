# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false
"""The statistics of a comparison: spread over seeds, and differences paired by seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
ROUNDING = 1e-9  # differences that agree to this share of their size are equal up to rounding


@dataclass(frozen=True)
class Spread:
    """A number over seeds: its mean, sample deviation and the 95 % interval of its mean."""

    mean: float
    std: float | None
    interval: tuple[float, float] | None

    def scaled(self, factor: float) -> "Spread":
        """The same numbers in another unit."""
        return Spread(
            self.mean * factor,
            None if self.std is None else self.std * factor,
            None
            if self.interval is None
            else (self.interval[0] * factor, self.interval[1] * factor),
        )


@dataclass(frozen=True)
class PairedTest:
    """Two methods on their common seeds: mean difference (ours − theirs) and two-sided p."""

    n: int
    difference: float
    p_value: float


def spread(values: Sequence[float]) -> Spread:
    """Mean, sample deviation and bootstrap interval of one number per seed."""
    return Spread(mean(values), sample_std(values), bootstrap_interval(values))


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def sample_std(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n − 1 in the denominator); None for a single value."""
    if len(values) < 2:
        return None
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=1))


def paired_t_test(ours: Mapping[int, float], theirs: Mapping[int, float]) -> PairedTest | None:
    """The two-sided paired t-test over the seeds that both have; None for fewer than two.

    Where all differences are equal the t statistic divides by zero. Its limit is taken: p = 1 if
    they are all zero (nothing to tell apart), p = 0 if not.
    """
    from scipy.stats import ttest_rel

    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return None
    a, b = [ours[s] for s in seeds], [theirs[s] for s in seeds]
    differences = [x - y for x, y in zip(a, b, strict=True)]
    size = max(abs(x) for x in (*a, *b))
    if max(differences) - min(differences) <= ROUNDING * size:
        p_value = 1.0 if abs(mean(differences)) <= ROUNDING * size else 0.0
    else:
        p_value = float(ttest_rel(a, b).pvalue)
    return PairedTest(len(seeds), mean(differences), p_value)


def bootstrap_interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float] | None:
    """The 95 % percentile bootstrap interval of the mean; None for a single value.

    Our own few lines and not ``scipy.stats.bootstrap``: its default (BCa) is undefined for equal
    values, and its argument for the seed changed its name between versions.
    """
    if len(values) < 2:
        return None
    data = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(data), size=(RESAMPLES, len(data)))
    low, high = np.quantile(data[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)
