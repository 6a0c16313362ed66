"""Where each contender stands on a bench: its scores, its cost, and how far it is from SAM."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aesam.evidence.contenders import CONTENDERS
from aesam.evidence.timing import StepTime
from aesam.lab.config import Run
from aesam.lab.lab_methods import compares_outputs, is_own, samples_of_method
from aesam.lab.show.stats import Spread, mean, sample_std, spread
from aesam.lab.summaries import is_diverged, skipped_steps

#: A forward without its backward, as a share of a gradient.
FORWARD = 1 / 3
#: Percent of the training labels: who ends below has a tenth of them by guessing, and no more.
LEARNT = 20.0

#: Verdicts need as many fresh seeds.
FEWEST = 10


@dataclass(frozen=True)
class Difference:
    """Two rows on their common seeds: the mean difference, its 95 % interval and p."""

    n: int
    mean: float
    low: float
    high: float
    p_value: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Standing:
    """One contender on one bench.

    Args:
        name: the contender's.
        settings: what was found for it.
        at_edge: those of them whose best value is at the edge of what was tried.
        scores: by seed, higher is better.
        percent_sam: steps with a second gradient.
        samples: gradient-samples per step, in batches.
        diverged: how many of its runs did.
        time: measured, as a multiple of ERM's in the same measurement; None where it was not.
        skipped: steps that its runs skipped since a gradient was not finite, of ``steps``.
        steps: of all its runs.
        trained: mean training accuracy or loss at the end, as it counts on the bench.
        unlearnt: how many of its runs end with a training accuracy below :data:`LEARNT`.
    """

    name: str
    settings: Mapping[str, float]
    at_edge: Sequence[str]
    scores: Mapping[int, float]
    percent_sam: float
    samples: float
    diverged: int
    time: float | None = None
    skipped: int = 0
    steps: int = 0
    trained: float | None = None
    unlearnt: int = 0

    @property
    def spread(self) -> Spread:
        return spread(list(self.scores.values()))


def standing_of(
    name: str,
    found: Iterable[tuple[Run, Mapping[str, Any]]],
    measure: str,
    settings: Mapping[str, float],
    at_edge: Sequence[str],
    length: float,
    time: StepTime | None,
    lost: float = math.inf,
) -> Standing | None:
    """A contender's from its finished runs; None where there are none.

    ``length`` is theirs as a multiple of the bench's, and ``lost`` what a run counts that has no
    finite loss.
    """
    runs = list(found)
    if not runs:
        return None
    summaries = [summary for _, summary in runs]
    share = mean([summary["percent_sam"] for summary in summaries]) / 100.0
    sign = -1.0 if measure == "loss" else 1.0

    def number(summary: Mapping[str, Any], split: str) -> float:
        value = summary.get(f"{split}_{measure}")
        return float(lost if value is None else value)

    return Standing(
        name,
        settings,
        at_edge,
        {run.seed: sign * number(summary, "test") for run, summary in runs},
        100.0 * share,
        gradient_samples(runs[0][0], share) * length,
        sum(map(is_diverged, summaries)),
        None if time is None else time.mean(share) * length,
        sum(map(skipped_steps, summaries)),
        sum(summary["steps"] for summary in summaries),
        mean([number(summary, "train") for summary in summaries]),
        sum(summary.get("train_accuracy", LEARNT) < LEARNT for summary in summaries),
    )


def gradient_samples(run: Run, fired: float) -> float:
    """Gradients of a step in units of its batch, where a share of the steps takes the second."""
    batch = run.training.batch_size
    samples = samples_of_method(run.method)
    some = samples.count(batch) / batch
    if samples.first_rows is not None:
        return len(range(batch)[samples.first_rows]) / batch + 1.0
    if samples.looks_first:
        return FORWARD + some + fired * some
    look = FORWARD if samples.selects_rows else 0.0
    beside = FORWARD if compares_outputs(run.method) else 0.0
    return 1.0 + beside + fired * (some + look)


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Paired by seed, with the t-interval; None for fewer than two seeds in common."""
    from scipy.stats import t  # pyright: ignore[reportMissingTypeStubs]

    seeds = sorted(ours.keys() & theirs.keys())
    apart = [ours[seed] - theirs[seed] for seed in seeds]
    deviation = sample_std(apart)
    if deviation is None:
        return None
    middle, error = mean(apart), deviation / len(seeds) ** 0.5
    if error == 0.0:
        return Difference(len(seeds), middle, middle, middle, 1.0 if middle == 0.0 else 0.0)
    half = float(t.ppf(0.975, len(seeds) - 1)) * error  # pyright: ignore
    p_value = 2.0 * float(t.sf(abs(middle) / error, len(seeds) - 1))  # pyright: ignore
    return Difference(len(seeds), middle, middle - half, middle + half, p_value)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction of a family of tests.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected: dict[str, float] = {}
    least = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(p_values) - rank) * p))
        corrected[name] = round(least, 12)
    return corrected


def costs(standings: Iterable[Standing]) -> dict[str, float]:
    """What each row costs, by its name: measured times if they are known, else gradient-samples.

    One kind of cost is never set against the other: where times are known, rows that have none
    have no cost.
    """
    rows = list(standings)
    if is_timed(rows):
        return {s.name: s.time for s in rows if s.time is not None}
    return {s.name: s.samples for s in rows}


def is_timed(standings: Iterable[Standing]) -> bool:
    """Whether the time of every row was measured that is an optimizer alone.

    What else a method of the lab does is in no step (:mod:`aesam.evidence.timing`).
    """
    return all(s.time is not None for s in standings if not is_own(CONTENDERS[s.name].method))


def front(standings: Iterable[Standing], cost: Mapping[str, float]) -> list[str]:
    """Those that nobody beats in score at the same or a lower cost, the cheapest first."""
    best: list[Standing] = []
    known = [s for s in standings if s.name in cost]
    for each in sorted(known, key=lambda s: (cost[s.name], -s.spread.mean)):
        if not best or each.spread.mean > best[-1].spread.mean:
            best.append(each)
    return [each.name for each in best]
