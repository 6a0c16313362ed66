"""``aesam tune``: the paper's grids on a held-out part of the training set."""

import shlex
import sys
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tyro

from aesam.lab import files, method_records
from aesam.lab.cli.compare import check_all, finish, tell_failures
from aesam.lab.cli.console import console, say
from aesam.lab.cli.options import RunOptions, given_settings, run_of
from aesam.lab.config import Method
from aesam.lab.errors import UsageError
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.grid import Job
from aesam.lab.show import Line, Sheet, as_rich

RHOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
ALPHAS = (0.1, 0.3, 0.6, 0.9)


@dataclass(frozen=True)
class Tune(RunOptions):
    """Search rho and alpha on a held-out tenth of the training set, never on the test set.

    Prints each setting's validation accuracy and the best one, and writes tune.json. The paper then
    repeats the training on all of the training set: use the setting with `aesam compare`.
    """

    methods: tuple[str, ...] = tuple(n for n in method_records.PAPER if n != "erm")
    """What to search for; each gets a rho, and an alpha where it has one."""
    seeds: tuple[int, ...] = (0,)
    """The best is that of the mean over them."""
    noise: float = 0.0
    """Share of the training labels that are wrong; those held out are right."""
    holdout: float = 0.1
    """Share of the training set to choose on."""
    rhos: tuple[float, ...] = RHOS
    """Radii to try."""
    alphas: tuple[float, ...] = ALPHAS
    """Weights to try."""
    out: Path = Path("runs/tune")
    """Where the runs and tune.json go."""
    jobs: int = 2
    """Runs at the same time."""
    engine: str = "local"
    """local (this machine's cores), dask or ray (a cluster)."""
    address: str | None = None
    """The scheduler of the dask or ray cluster; one is started on this machine if left out."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Say nothing on the way."""

    def __call__(self) -> int:
        if not (self.methods and self.seeds and self.rhos and self.alphas):
            raise UsageError("methods, seeds, rhos and alphas must each name at least one")
        if not self.holdout > 0.0:
            raise UsageError(f"holdout must be above 0 to tune on, got {self.holdout}")
        if {"rho", "alpha"} & set(given_settings(self)):
            raise UsageError("tune searches rho and alpha: give --rhos and --alphas")
        jobs = [job for method in dict.fromkeys(self.methods) for job in self.grid_of(method)]
        check_all(jobs, self.engine, self.out)
        outcomes = finish(jobs, self.jobs, self.engine, self.address, self.quiet)
        rows = ranked([o.job for o in outcomes if o.error is None])
        command = shlex.join(["aesam", *sys.argv[1:]])
        files.write_json(self.out / "tune.json", {"command": command, "rows": rows})
        console.print(as_rich(_table(rows), console.width))
        say(f"written: {self.out / 'tune.json'}")
        return tell_failures(outcomes)

    def grid_of(self, method: str) -> list[Job]:
        """Every rho, and every alpha where the method has one."""
        method_records.check(method)
        known = method_records.SETTINGS[method]
        seeds = dict.fromkeys(self.seeds)
        runs = [run_of(self, method, seed, self.noise, strict=False) for seed in seeds]
        grid: list[dict[str, Any]] = [{}]
        for name, values in (("rho", self.rhos), ("alpha", self.alphas)):
            if name in known:
                grid = [{**point, name: v} for point in grid for v in dict.fromkeys(values)]
        chosen = [replace(run, method=_with(run.method, point)) for point in grid for run in runs]
        return [Job(run, folder_of(run, self.out)) for run in chosen]


def _with(method: Method, point: dict[str, Any]) -> Method:
    return replace(method, **point)


def ranked(jobs: list[Job]) -> list[dict[str, Any]]:
    """Mean validation accuracy over seeds of each setting, best first within its method."""
    found: dict[Method, list[float]] = {}
    for job in jobs:
        accuracy = RunFolder(job.folder).read_summary()["validation_accuracy"]
        found.setdefault(job.run.method, []).append(accuracy)
    rows: list[dict[str, Any]] = [
        {
            "method": method.name,
            "settings": {k: getattr(method, k) for k in method_records.SETTINGS[method.name]},
            "validation_accuracy": sum(accuracies) / len(accuracies),
            "n": len(accuracies),
        }
        for method, accuracies in found.items()
    ]
    order = {name: i for i, name in enumerate(method_records.NAMES)}
    rows.sort(key=lambda row: (order[row["method"]], -row["validation_accuracy"]))
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
    accuracy = f"{row['validation_accuracy']:.2f}"
    return Line((row["method"], settings, accuracy, str(row["n"])), best=row["best"])
