"""Methods side by side: the numbers of each, who is best, and whether differences are chance."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aesam.lab.data.data_records import Score, data_record, list_data_sets
from aesam.lab.errors import UsageError
from aesam.lab.files import is_number
from aesam.lab.lab_methods import lab_method, takes_fewer_steps
from aesam.lab.show import grouping
from aesam.lab.show.finished_runs import FinishedRun
from aesam.lab.show.stats import PairedTest, Spread, paired_t_test, spread


@dataclass(frozen=True)
class Against:
    """The paired test against another row of the table; no test with fewer than two seeds."""

    label: str
    test: PairedTest | None


@dataclass(frozen=True)
class MethodRow:
    """One method with one setting, over its seeds. Accuracies and % SAM are in percent.

    Losses are there where they are what counts.
    """

    method: str
    label: str
    settings: dict[str, Any]
    runs: tuple[FinishedRun, ...]
    accuracies: dict[int, float]
    accuracy: Spread
    percent_sam: Spread
    seconds: Spread
    train_accuracy: Spread
    gradients_per_step: float
    best_in_group: bool = False
    best_overall: bool = False
    times_erm: Spread | None = None
    against_sam: Against | None = None
    against_baseline: Against | None = None
    losses: dict[int, float] | None = None
    loss: Spread | None = None

    @property
    def counted(self) -> Spread:
        """What rows are ranked by: the loss if that is what counts, or else the accuracy."""
        return self.loss or self.accuracy

    @property
    def goodness(self) -> float:
        """The mean of what counts, such that higher is better."""
        return -self.loss.mean if self.loss else self.accuracy.mean

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def diverged_seeds(self) -> list[int]:
        """The seeds whose runs diverged; they count in every mean."""
        return [run.seed for run in self.runs if run.diverged]

    @property
    def skipped_steps(self) -> int:
        return sum(run.skipped_steps for run in self.runs)


@dataclass(frozen=True)
class Comparison:
    """Runs that differ only in method and seed; ``groups`` are rows of similar % SAM."""

    title: str
    settings: dict[str, Any]
    measured_on: str
    groups: tuple[tuple[MethodRow, ...], ...]

    @property
    def rows(self) -> list[MethodRow]:
        return [row for group in self.groups for row in group]

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for row in self.rows for seed in row.seeds})

    @property
    def n(self) -> str:
        """How many seeds a row has: ``3``, or ``1 to 3`` where some are not finished."""
        least, most = min(row.n for row in self.rows), max(row.n for row in self.rows)
        return f"{most}" if least == most else f"{least} to {most}"

    @property
    def best(self) -> MethodRow:
        return max(self.rows, key=lambda row: row.goodness)

    @property
    def score(self) -> Score:
        """What its rows are ranked and tested by."""
        return "loss" if self.rows[0].loss else "accuracy"


def compare(runs: Iterable[FinishedRun]) -> list[Comparison]:
    """One comparison for each set of runs that differ only in method, seed and place of data."""
    sets = grouping.comparable(list(runs))
    shared = [grouping.shared_settings(members[0]) for members in sets]
    titles = grouping.titles_of(shared)
    return [
        _comparison(title, settings, members)
        for title, settings, members in zip(titles, shared, sets, strict=True)
    ]


def _comparison(title: str, settings: dict[str, Any], runs: list[FinishedRun]) -> Comparison:
    return comparison_of(title, settings, grouping.variants(runs))


def comparison_of(
    title: str, settings: dict[str, Any], named: Sequence[tuple[str, list[FinishedRun]]]
) -> Comparison:
    """Rows of one's own choice, each a label and its runs, grouped, marked and tested."""
    measured_on = _measured_on([run for _, runs in named for run in runs])
    steps = _usual_steps([run for _, runs in named for run in runs])
    rows = [_row(label, own, measured_on, steps) for label, own in named]
    if _counts_losses(settings, named, measured_on):
        rows = [_with_losses(row, measured_on) for row in rows]
    rows = [_set_against(row, rows) for row in rows]
    indices = grouping.by_percent_sam([row.percent_sam.mean for row in rows])
    rows = _mark(rows, range(len(rows)), "best_overall")
    for group in indices:
        rows = _mark(rows, group, "best_in_group")
    groups = tuple(tuple(rows[i] for i in group) for group in indices)
    return Comparison(title, settings, measured_on, groups)


def _usual_steps(runs: Sequence[FinishedRun]) -> float:
    """What gradients are counted per: the steps of the shortest, so that who trains longer pays.

    Runs whose method takes fewer, on fewer samples or epochs, do not count where there are others.
    """
    whole = [run for run in runs if not takes_fewer_steps(run.method)]
    return max(1, min(run.summary["steps"] for run in whole or runs))


def _measured_on(runs: Sequence[FinishedRun]) -> str:
    """The split whose accuracy all runs have: the test set, or else what they held out."""
    for split in ("test", "validation"):
        if all(is_number(run.summary.get(f"{split}_accuracy")) for run in runs):
            return split
    folders = ", ".join(sorted(str(run.folder) for run in runs))
    raise UsageError(
        f"some runs have only a test accuracy and some only a validation accuracy, although their "
        f"settings are the same: report them apart ({folders})"
    )


def _row(label: str, runs: list[FinishedRun], measured_on: str, steps: float) -> MethodRow:
    def over_seeds(number: Callable[[dict[str, Any]], float]) -> Spread:
        return spread([float(number(run.summary)) for run in runs])

    return MethodRow(
        method=runs[0].method,
        label=label,
        settings=grouping.method_settings(runs[0]),
        runs=tuple(runs),
        accuracies={run.seed: float(run.summary[f"{measured_on}_accuracy"]) for run in runs},
        accuracy=over_seeds(lambda summary: summary[f"{measured_on}_accuracy"]),
        percent_sam=over_seeds(lambda summary: summary["percent_sam"]),
        seconds=over_seeds(lambda summary: summary["seconds"]),
        train_accuracy=over_seeds(lambda summary: summary["train_accuracy"]),
        gradients_per_step=over_seeds(lambda summary: summary["gradients"] / steps).mean,
    )


def _counts_losses(
    settings: dict[str, Any], named: Sequence[tuple[str, list[FinishedRun]]], measured_on: str
) -> bool:
    """Whether the data set's record says so, and every run has a loss."""
    name = settings.get("data", {}).get("name")
    known = name in list_data_sets() and data_record(name).score == "loss"
    runs = [run for _, own in named for run in own]
    return known and all(is_number(run.summary.get(f"{measured_on}_loss")) for run in runs)


def _with_losses(row: MethodRow, measured_on: str) -> MethodRow:
    losses = {run.seed: float(run.summary[f"{measured_on}_loss"]) for run in row.runs}
    return replace(row, losses=losses, loss=spread(list(losses.values())))


def _set_against(row: MethodRow, rows: Sequence[MethodRow]) -> MethodRow:
    """The row with its cost as a multiple of ERM's and its tests against SAM and its baseline."""
    erm = [run.summary["seconds"] for other in rows if other.method == "erm" for run in other.runs]
    mean_erm = spread(erm).mean if erm else 0.0
    return replace(
        row,
        times_erm=row.seconds.scaled(1 / mean_erm) if mean_erm else None,
        against_sam=_against(row, "sam", rows),
        against_baseline=_against(row, lab_method(row.method).baseline, rows),
    )


def _against(row: MethodRow, method: str, rows: Sequence[MethodRow]) -> Against | None:
    """The test against a method; of several settings, the best of those with similar % SAM."""

    def distance(other: MethodRow) -> float:
        return abs(other.percent_sam.mean - row.percent_sam.mean)

    others = [other for other in rows if other.method == method]
    if row.method == method or not others:
        return None
    reach = max(grouping.REACH, min(distance(other) for other in others))
    near = [other for other in others if distance(other) <= reach]
    chosen = max(near, key=lambda other: other.goodness)
    ours, theirs = row.losses or row.accuracies, chosen.losses or chosen.accuracies
    return Against(chosen.label, paired_t_test(ours, theirs))


def _mark(rows: list[MethodRow], members: Sequence[int], field: str) -> list[MethodRow]:
    """Set a mark on the best of several; rows that read the same in the table share it."""
    if len(members) < 2:
        return rows
    best = max(_as_shown(rows[i]) for i in members)
    return [
        replace(row, **{field: True}) if i in members and _as_shown(row) == best else row
        for i, row in enumerate(rows)
    ]


def _as_shown(row: MethodRow) -> float:
    return round(row.goodness, 3 if row.loss else 2)
