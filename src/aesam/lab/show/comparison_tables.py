"""A comparison as tables: its results, every run, and the settings of each method."""

from collections.abc import Callable

from aesam.lab import summaries
from aesam.lab.show import wording
from aesam.lab.show.comparison import Against, Comparison, MethodRow
from aesam.lab.show.finished_runs import FinishedRun
from aesam.lab.show.table import Line, Sheet

EXPLANATION = (
    "Rows with similar % SAM stand together. Time is a multiple of ERM's. p is of a two-sided "
    "paired t-test by seed, against SAM and against the method's own baseline"
)
BASELINE = "p vs baseline"
REMARK = "remark"
DIVERGED = "†"  # before a remark, and behind the name of the row that it is of
SHORT = {"% SAM": "% SAM", "gradients per step": "grads\n/step"}
Shown = Callable[[MethodRow], str]


def results_sheet(comparison: Comparison, *, narrow: bool = False) -> Sheet:
    """The paper's kind of table: a group for each share of SAM.

    To be ``narrow`` (80 columns hold it) it goes without the number of seeds where all rows have
    the same, without the names of the baselines, and without deviations of what is not ranked by.
    """
    columns = _columns(comparison)
    if narrow:
        columns[BASELINE] = lambda row: p_against(row.against_baseline)
        columns["% SAM"] = lambda row: f"{row.percent_sam.mean:.1f}"
        columns["train accuracy"] = lambda row: f"{row.train_accuracy.mean:.2f}"
    if narrow and len({row.n for row in comparison.rows}) == 1:
        del columns["n"]
    return Sheet(
        comparison.title,
        tuple(columns),
        tuple(tuple(_line(row, columns) for row in group) for group in comparison.groups),
        explanation(comparison),
        subtitle(comparison),
        marked=list(columns).index(counted(comparison)),
        named=() if narrow else (BASELINE,),
        short=SHORT,
        tight=True,
    )


def explanation(comparison: Comparison) -> str:
    """What the columns mean, with the baseline of each row that has one."""
    found: dict[str, list[str]] = {}
    for row in comparison.rows:
        if row.against_baseline is not None:
            found.setdefault(row.against_baseline.label, []).append(row.label)
    named = "; ".join(f"of {', '.join(rows)}: {label}" for label, rows in found.items())
    first = f"{EXPLANATION} ({named})." if named else f"{EXPLANATION}."
    return " ".join((first, *judged_by(comparison), *went_astray(comparison)))


def judged_by(comparison: Comparison) -> list[str]:
    """Which weights an accuracy is of, if not the last ones; and what runs were too short for."""
    return [
        f"{told}."
        for row in comparison.rows
        for name, before in (("evaluated", "accuracy of "), ("left_undone", ""))
        for told in _said_of_runs(row, name, before)
    ]


def _said_of_runs(row: MethodRow, name: str, before: str) -> list[str]:
    """What summaries say under a name; with the seeds, where not all of them say the same."""
    seeds: dict[str, list[int]] = {}
    for run in row.runs:
        if run.summary.get(name):
            seeds.setdefault(wording.printable(run.summary[name]), []).append(run.seed)
    of_all = len(row.runs)
    return [
        f"{row.label}{'' if len(of) == of_all else f' (seed {wording.whole_numbers(of)})'}: "
        f"{before}{text}"
        for text, of in seeds.items()
    ]


def went_astray(comparison: Comparison) -> list[str]:
    """A sentence for each row with runs that diverged or skipped steps."""
    told: list[str] = []
    for row in comparison.rows:
        if row.diverged_seeds:
            seeds = wording.whole_numbers(row.diverged_seeds)
            runs = f"{len(row.diverged_seeds)} of {row.n} run{'s' * (row.n > 1)}"
            told.append(
                f"{DIVERGED} {row.label}: {runs} diverged (seed {seeds}) and counted as such."
            )
        if row.skipped_steps:
            steps = sum(run.summary["steps"] for run in row.runs)
            told.append(f"{row.label} skipped {row.skipped_steps} of {steps:g} steps.")
    return told


def runs_sheet(comparison: Comparison) -> Sheet:
    """Every run's own numbers, a group for each method, with the interval of its mean."""
    columns = ("method", "seed", counted(comparison), "train accuracy", "% SAM", "gradients",
               "seconds", f"95 % interval of the mean {comparison.score}")  # fmt: skip
    astray = bool(went_astray(comparison))
    groups = tuple(
        tuple(_run_line(row, run, astray) for run in row.runs) for row in comparison.rows
    )
    more = (REMARK,) if astray else ()
    return Sheet(f"Every run on {comparison.title}", (*columns, *more), groups, words=more)


def settings_sheet(comparison: Comparison) -> Sheet:
    """The settings of each method."""
    lines = tuple(
        Line((row.label, wording.settings(row.settings)), method=row.method)
        for row in comparison.rows
    )
    title = f"Settings of each method on {comparison.title}"
    return Sheet(title, ("method", "settings"), (lines,), words=("settings",))


def subtitle(comparison: Comparison) -> str:
    """What the numbers are of: which split, how many seeds, and which are missing."""
    seeds = comparison.seeds
    several = len(seeds) > 1
    text = (
        f"{counted(comparison)}{'' if comparison.score == 'loss' else ' in %'}, "
        f"{'mean ± standard deviation over ' if several else ''}"
        f"{len(seeds)} seed{'s' if several else ''} ({wording.whole_numbers(seeds)})"
    )
    return "; ".join((text, *missing(comparison)))


def missing(comparison: Comparison) -> list[str]:
    """The rows that lack seeds which others have: their means are of fewer runs."""
    seeds = comparison.seeds
    lacking = {row.label: [s for s in seeds if s not in row.seeds] for row in comparison.rows}
    return [
        f"{label} lacks seed{'s' if len(gone) > 1 else ''} {wording.whole_numbers(gone)}"
        for label, gone in lacking.items()
        if gone
    ]


def p_against(other: Against | None) -> str:
    """The p-value of a test that may not have been possible."""
    return wording.p_value(other.test if other else None)


def against(other: Against | None) -> str:
    """A p-value with the name of what it is against."""
    return f"{p_against(other)} {other.label}" if other and other.test else wording.NOTHING


def counted(comparison: Comparison) -> str:
    """What rows are ranked by, as a column names it."""
    return f"{comparison.measured_on} {comparison.score}"


def _accuracy(row: MethodRow) -> str:
    return wording.plus_minus(row.accuracy, 2)


def _columns(comparison: Comparison) -> dict[str, Shown]:
    """What stands in each column of the results, by its name."""
    return {
        "method": lambda row: f"{row.label} {DIVERGED}" if row.diverged_seeds else row.label,
        "n": lambda row: str(row.n),
        counted(comparison): lambda row: wording.plus_minus(row.counted, 3 if row.loss else 2),
        **({"accuracy": _accuracy} if comparison.score == "loss" else {}),
        "% SAM": lambda row: wording.plus_minus(row.percent_sam, 1),
        "time": lambda row: wording.times(row.times_erm),
        "gradients per step": lambda row: f"{row.gradients_per_step:.2f}",
        "train accuracy": lambda row: wording.plus_minus(row.train_accuracy, 2),
        "p vs SAM": lambda row: p_against(row.against_sam),
        BASELINE: lambda row: against(row.against_baseline),
    }


def _line(row: MethodRow, columns: dict[str, Shown]) -> Line:
    cells = tuple(shown(row) for shown in columns.values())
    return Line(cells, row.best_overall, row.best_in_group, row.method)


def _run_line(row: MethodRow, run: FinishedRun, astray: bool) -> Line:
    is_first = run is row.runs[0]
    interval, places = row.counted.interval, 3 if row.loss else 2
    shown = wording.NOTHING
    if interval:
        shown = f"{interval[0]:.{places}f} to {interval[1]:.{places}f}"
    cells = (
        row.label if is_first else "",
        str(run.seed),
        f"{(row.losses or row.accuracies)[run.seed]:.{places}f}",
        f"{run.summary['train_accuracy']:.2f}",
        f"{run.summary['percent_sam']:.1f}",
        f"{run.summary['gradients']:g}",
        f"{run.summary['seconds']:.2f}",
        shown if is_first else "",
        *([summaries.remarks(run.summary)] if astray else []),
    )
    return Line(cells, method=row.method if is_first else "")
