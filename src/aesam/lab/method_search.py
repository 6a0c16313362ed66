"""The search for a method's settings, by runs: which to make, and what they say.

The search itself is :class:`aesam.searching.WideningSearch`; here its trainings are jobs, and their
validation accuracies (or losses, where these count) its scores. Finished runs are never run again,
so it goes on after a kill.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from aesam.lab import validation
from aesam.lab.config import Method
from aesam.lab.data.data_records import Score
from aesam.lab.errors import UsageError
from aesam.lab.folders import RunFolder
from aesam.lab.grid import Job
from aesam.lab.show.stats import mean, sample_std
from aesam.lab.summaries import is_diverged
from aesam.searching import Range, Try, WideningSearch

MakeJob = Callable[[Mapping[str, float], int], Job]


@dataclass(frozen=True)
class Scored:
    """A method with settings, over all its seeds that were run.

    ``score`` is the mean validation accuracy or loss. Every run counts, also one that diverged; a
    loss that was lost is infinite.
    """

    method: Method
    score: float
    std: float | None
    n: int
    diverged: int


def scored(jobs: Iterable[Job], score: Score = "accuracy") -> list[Scored]:
    """Finished jobs by their methods and settings, as they were first asked for."""
    found: dict[Method, list[Mapping[str, Any]]] = {}
    for job in jobs:
        found.setdefault(job.run.method, []).append(validated(job))
    return [_scored(method, summaries, score) for method, summaries in found.items()]


def validated(job: Job) -> Mapping[str, Any]:
    """The summary of a finished job, which must be of a run with a held-out part."""
    summary = RunFolder(job.folder).read_summary(job.run)
    if summary["validation_accuracy"] is None:
        raise UsageError(f"{job.folder} has no validation accuracy: move the folder away")
    return summary


def _scored(method: Method, summaries: Sequence[Mapping[str, Any]], score: Score) -> Scored:
    found = [summary[f"validation_{score}"] for summary in summaries]
    values = [math.inf if value is None else float(value) for value in found]
    std = sample_std(values) if all(map(math.isfinite, values)) else None
    return Scored(method, mean(values), std, len(values), sum(map(is_diverged, summaries)))


@dataclass(frozen=True)
class ScoredCurve:
    """One setting's values, rising, and what each scored; ``at`` are the settings beside it."""

    setting: str
    at: Mapping[str, float]
    points: Mapping[float, Scored]


class MethodSearch:
    """The search of one method: make the :attr:`jobs`, then :meth:`go_on`, until there are none.

    Args:
        method: the method's name.
        ranges: its settings, the one to search first first.
        seeds: of the runs.
        limit: how many values may be added to those of each setting.
        make_job: the job of settings and a seed.
        score: what of the held-out part counts, ``"accuracy"`` (the default) or ``"loss"``.
    """

    def __init__(
        self,
        method: str,
        ranges: Sequence[Range],
        *,
        seeds: Sequence[int],
        limit: int,
        make_job: MakeJob,
        score: Score = "accuracy",
    ) -> None:
        self.method, self._make_job = method, make_job
        self.score: Score = score
        self._search = WideningSearch(
            ranges, seeds=seeds, limit=limit, higher_is_better=score == "accuracy"
        )
        self._failed, self._refused = 0, dict[str, None]()
        self.done: list[Job] = []
        self._planned = self._plan()

    def starting_jobs(self) -> list[Job]:
        """The runs of the values to start from, each beside the usual values of the others."""
        usual = {each.name: each.usual for each in self._search.ranges}
        points = [{**usual, each.name: v} for each in self._search.ranges for v in each.start]
        return [self._make_job(at, seed) for at, seed in product(points, self._search.seeds)]

    @property
    def jobs(self) -> list[Job]:
        """The runs of this round; none where the search is over or cannot go on."""
        return [] if self._failed else list(self._planned.values())

    def _plan(self) -> dict[Try, Job]:
        """The jobs of the next round that has any.

        A value that widening led to and that the method does not take counts as the worst.
        """
        while self._search.round is not None:
            planned: dict[Try, Job] = {}
            for one in self._search.round.tries:
                job = self._make_job(one.settings, one.seed)
                try:
                    validation.check(job.run)
                except UsageError as error:
                    self._refused[f"what cannot be tried counts as worst: {error}"] = None
                else:
                    planned[one] = job
            if planned:
                return planned
            self._search.tell(dict.fromkeys(self._search.round.tries))
        return {}

    def go_on(self, failed: Collection[Path]) -> None:
        """To the next round, with what the runs of this one scored; not past ``failed`` ones."""
        now = self._search.round
        if now is None or self._failed:
            return
        done = {one: job for one, job in self._planned.items() if job.folder not in failed}
        self.done += done.values()
        self._failed = len(self._planned) - len(done)
        if not self._failed:
            scores = {one: self._score_of(validated(job)) for one, job in done.items()}
            self._search.tell(dict.fromkeys(now.tries) | scores)
            self._planned = self._plan()

    def _score_of(self, summary: Mapping[str, Any]) -> float | None:
        return None if is_diverged(summary) else summary[f"validation_{self.score}"]

    # What there is to say ------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.method} {self._search.round}"

    @property
    def chosen(self) -> dict[str, float] | None:
        """The best settings; None where the search is not over, or everything diverged."""
        return None if self._failed else self._search.best

    @property
    def at_edge(self) -> list[str]:
        """The settings whose best value is at the edge of what was tried."""
        return list(self._search.at_edge)

    @property
    def notes(self) -> list[str]:
        """What is to be known of the result, in sentences."""
        failed = f"runs failed ({self._failed}): the search is not over; run it again to go on"
        return [*self._search.notes, *self._refused, *([failed] if self._failed else [])]

    def rung_of(self, n: int) -> int | None:
        """For how many rounds of more and more seeds a setting with ``n`` runs went on."""
        return sum(size <= n for size in self._search.rungs)

    def curves(self) -> list[ScoredCurve]:
        """Every setting that was searched to its end."""
        done = {job.folder for job in self.done}
        curves: list[ScoredCurve] = []
        for curve in self._search.curves:
            points: dict[float, Scored] = {}
            for trial in curve.trials:
                jobs = [self._make_job(trial.settings, seed) for seed in self._search.seeds]
                own = [job for job in jobs if job.folder in done]
                if own:  # and not refused
                    (points[trial.settings[curve.setting]],) = scored(own, self.score)
            at = {k: v for k, v in curve.trials[0].settings.items() if k != curve.setting}
            curves.append(ScoredCurve(curve.setting, at, points))
        return curves


class PlainGrid:
    """Every combination of the values to start from and nothing else, as in the paper.

    It is used as :class:`MethodSearch` is; there is one round.
    """

    def __init__(
        self,
        method: str,
        ranges: Sequence[Range],
        *,
        seeds: Sequence[int],
        make_job: MakeJob,
        score: Score = "accuracy",
    ) -> None:
        self.method, self._ranges = method, ranges
        self.score: Score = score
        names, values = [each.name for each in ranges], [each.start for each in ranges]
        points = [dict(zip(names, point, strict=True)) for point in product(*values)]
        self.jobs = [make_job(point, seed) for point in points for seed in seeds]
        self.done: list[Job] = []

    def starting_jobs(self) -> list[Job]:
        """All of its runs."""
        return self.jobs

    def go_on(self, failed: Collection[Path]) -> None:
        """To the end; what failed is left out."""
        self.done += [job for job in self.jobs if job.folder not in failed]
        self.jobs = []

    def __str__(self) -> str:
        return f"{self.method}, its whole grid"

    @property
    def _best(self) -> Scored | None:
        alive = [one for one in scored(self.done, self.score) if not one.diverged]
        return max(alive, key=self._goodness, default=None)

    def _goodness(self, one: Scored) -> float:
        return one.score if self.score == "accuracy" else -one.score

    @property
    def chosen(self) -> dict[str, float] | None:
        """The best settings, of equal ones the first; None where everything diverged."""
        best = self._best
        return (
            None if best is None else {r.name: best.method.settings[r.name] for r in self._ranges}
        )

    @property
    def at_edge(self) -> list[str]:
        """The settings whose best value is the first or last of several and no natural bound."""
        chosen = self.chosen or {}
        return [
            each.name
            for each in self._ranges
            if chosen and chosen[each.name] in (each.start[0], each.start[-1])
            if len(each.start) > 1 and not each.is_bound(chosen[each.name])
        ]

    @property
    def notes(self) -> list[str]:
        """What is to be known of the result, in sentences."""
        chosen = self.chosen
        if chosen is None:
            return ["every setting that was tried diverged"] if self.done else []
        return [
            f"the best {name} is at the edge of its grid, {chosen[name]:g}: search without "
            "--plain-grid to go beyond"
            for name in self.at_edge
        ]

    def rung_of(self, n: int) -> int | None:  # noqa: ARG002
        """None: everything has all seeds."""
        return None

    def curves(self) -> list[ScoredCurve]:
        """Of each setting's values the best over those of the others."""
        found = scored(self.done, self.score)
        worst_first = sorted(found, key=lambda one: (not one.diverged, self._goodness(one)))
        curves: list[ScoredCurve] = []
        for each in self._ranges:
            best_of = {one.method.settings[each.name]: one for one in worst_first}
            curves.append(
                ScoredCurve(each.name, {}, {value: best_of[value] for value in sorted(best_of)})
            )
        return curves
