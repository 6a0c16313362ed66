"""``aesam tune``: the paper's grids on a held-out part of the training set."""

from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import tyro

from aesam.lab import files, lab_methods
from aesam.lab.cli.compare import check_all, finish, tell_failures
from aesam.lab.cli.console import command_line, console, say
from aesam.lab.cli.run_flags import RunFlags, RunnerFlags, grids_class, plural
from aesam.lab.config import Data, Method
from aesam.lab.errors import UsageError
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.grid import Job
from aesam.lab.show import Line, Sheet, as_rich
from aesam.lab.summaries import is_diverged
from aesam.registry import list_methods


@dataclass(frozen=True)
class Tune(RunFlags):
    """Search rho, alpha and what else a method has a grid for, never on the test set.

    Each setting's validation accuracy is of a held-out tenth of the training set. Prints them and
    the best one, and writes tune.json. The paper then repeats the training on all of the training
    set: use the setting with `aesam compare`.
    """

    data: Data = field(default_factory=lambda: Data(holdout=0.1))
    methods: tuple[str, ...] = field(
        default_factory=lambda: tuple(
            name for name in lab_methods.methods_of("paper") if lab_methods.searched(name)
        )
    )
    """What to search for."""
    seeds: tuple[int, ...] = (0,)
    """The best is that of the mean over them."""
    noise: float = 0.0
    """Share of the training labels that are wrong; those held out are right."""
    out: Path = Path("runs/tune")
    """Where the runs and tune.json go."""
    grids: tyro.conf.Suppress[Any] = None  # --rhos, --alphas, …: see `more_flags`
    runner: RunnerFlags = field(default_factory=RunnerFlags)

    METHOD_HELP: ClassVar[str] = "What to search for."

    @classmethod
    def more_flags(cls) -> list[tuple[str, Any, Any]]:
        kind = grids_class(list_methods())
        return [("grids", kind, kind())]

    def __call__(self) -> int:
        self._check()
        jobs = [job for method in dict.fromkeys(self.methods) for job in self.grid_of(method)]
        check_all(jobs, self.runner, self.out)
        outcomes = finish(jobs, self.runner)
        rows = ranked([o.job for o in outcomes if o.error is None])
        files.write_json(self.out / "tune.json", {"command": command_line(), "rows": rows})
        console.print(as_rich(_table(rows), console.width))
        say(f"written: {self.out / 'tune.json'}")
        return tell_failures(outcomes)

    def _check(self) -> None:
        grids = {f.name: getattr(self.grids, f.name) for f in fields(self.grids)}
        if not (self.methods and self.seeds) or () in grids.values():
            named = ", ".join(("methods", "seeds", *grids))
            raise UsageError(f"{named} must each name at least one")
        if not self.data.holdout > 0.0:
            raise UsageError(f"holdout must be above 0 to tune on, got {self.data.holdout}")
        searched = {plural(s) for name in self.methods for s in lab_methods.searched(name)}
        foreign = [name for name, values in grids.items() if values and name not in searched]
        if foreign:
            raise UsageError(f"none of these methods is searched for {' or '.join(foreign)}")
        for name in self.given_settings():
            if plural(name) in grids:
                raise UsageError(f"tune searches {name}: give --{plural(name)}")

    def grid_of(self, method: str) -> list[Job]:
        """Every combination of the values to try of the method's searched settings."""
        seeds = dict.fromkeys(self.seeds)
        runs = [self.run(method, seed, self.noise, strict=False) for seed in seeds]
        points: list[dict[str, float]] = [{}]
        for name, own in lab_methods.searched(method).items():
            values = dict.fromkeys(getattr(self.grids, plural(name)) or own)
            points = [{**point, name: v} for point in points for v in values]
        chosen = [
            replace(run, method=lab_methods.fill(run.method.but(**point)))
            for point in points
            for run in runs
        ]
        return [Job(run, folder_of(run, self.out)) for run in chosen]


def ranked(jobs: list[Job]) -> list[dict[str, Any]]:
    """Mean validation accuracy over seeds of each setting, best first within its method.

    A setting with a run that diverged comes after those without, whatever its accuracy is.
    """
    found: dict[Method, list[dict[str, Any]]] = {}
    for job in jobs:
        summary = RunFolder(job.folder).read_summary(job.run)
        if summary["validation_accuracy"] is None:
            raise UsageError(f"{job.folder} has no validation accuracy: move the folder away")
        found.setdefault(job.run.method, []).append(summary)
    rows: list[dict[str, Any]] = [
        {
            "method": method.name,
            "settings": method.settings,
            "validation_accuracy": sum(s["validation_accuracy"] for s in own) / len(own),
            "n": len(own),
            "diverged": sum(map(is_diverged, own)),
        }
        for method, own in found.items()
    ]
    order = {name: i for i, name in enumerate(list_methods())}
    rows.sort(
        key=lambda row: (order[row["method"]], row["diverged"] > 0, -row["validation_accuracy"])
    )
    for i, row in enumerate(rows):
        row["best"] = i == 0 or rows[i - 1]["method"] != row["method"]
    return rows


def _table(rows: list[dict[str, Any]]) -> Sheet:
    """A group for each method, its best setting marked."""
    groups = [list(own) for _, own in groupby(rows, key=lambda row: row["method"])]
    return Sheet(
        "validation accuracy",
        ("method", "settings", "accuracy %", "n"),
        tuple(tuple(_line(row) for row in group) for group in groups),
        marked=2,
        words=("settings",),
    )


def _line(row: dict[str, Any]) -> Line:
    settings = ", ".join(f"{k} {v}" for k, v in row["settings"].items() if k != "normalize")
    if row["diverged"]:
        settings = f"{settings} († {row['diverged']} of {row['n']} diverged)"
    accuracy = f"{row['validation_accuracy']:.2f}"
    return Line((row["method"], settings, accuracy, str(row["n"])), best=row["best"])
