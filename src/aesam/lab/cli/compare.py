"""``aesam compare``: methods × seeds × noise levels, side by side."""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from aesam.lab import demo, method_records, validation
from aesam.lab.cli.console import console, say
from aesam.lab.cli.options import RunOptions, given_settings, run_of
from aesam.lab.config import Method, Run
from aesam.lab.errors import UsageError
from aesam.lab.fit import smallest_pass
from aesam.lab.folders import folder_of
from aesam.lab.grid import Job, Outcome, Watch, epochs_done, run_all
from aesam.lab.show import as_rich, results_sheet, write_report


@dataclass(frozen=True)
class Compare(RunOptions):
    """Compare methods over seeds and noise levels, and write a report.

    Without any flag: the seven methods of the paper × 3 seeds on handwritten digits with 60 % of
    the training labels wrong, each with settings that were chosen on a validation split. Runs that
    are finished are never run again, so a larger comparison only adds what is missing.
    """

    methods: tuple[str, ...] = tuple(method_records.PAPER)
    """What to compare; see `aesam train --help` for all names."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of each method for each."""
    noise: tuple[float, ...] = (0.6,)
    """Shares of wrong training labels."""
    out: Path = Path("runs/compare")
    """Where the runs, results.json and report.html go."""
    jobs: int = 2
    """Runs at the same time."""
    engine: str = "local"
    """local (this machine's cores), dask or ray (a cluster)."""
    address: str | None = None
    """The scheduler of the dask or ray cluster; one is started on this machine if left out."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Say nothing on the way."""

    def __call__(self) -> int:
        jobs = self.plan()
        check_all(jobs, self.engine, self.out)
        outcomes = finish(jobs, self.jobs, self.engine, self.address, self.quiet)
        report([o.job for o in outcomes if o.error is None], self.out, self._notes())
        return tell_failures(outcomes)

    def plan(self) -> list[Job]:
        for name in self.methods:
            method_records.check(name)
        if not (self.methods and self.seeds and self.noise):
            raise UsageError("methods, seeds and noise must each name at least one")
        known = {name for method in self.methods for name in method_records.SETTINGS[method]}
        foreign = [name for name in given_settings(self) if name not in known]
        if foreign:
            raise UsageError(f"none of these methods has a setting {' or '.join(foreign)}")
        return [
            Job(run, folder_of(run, self.out))
            for noise in dict.fromkeys(self.noise)
            for seed in dict.fromkeys(self.seeds)
            for method in dict.fromkeys(self.methods)
            for run in [self._run(method, seed, noise)]
        ]

    def _run(self, method: str, seed: int, noise: float) -> Run:
        tuned = demo.tuned(method) if self.dataset == "digits" else {}
        return run_of(self, method, seed, noise, strict=False, **tuned)

    def _notes(self) -> list[str]:
        usual = Compare(methods=self.methods, seeds=self.seeds, out=self.out, jobs=self.jobs)
        return demo.NOTES if replace(self, quiet=False) == usual else []


def check_all(jobs: list[Job], engine: str, out: Path) -> None:
    """Refuse before anything is trained; what the data say is looked up once per kind of run."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: choose a folder")
    for job in jobs:
        validation.check(job.run)
    if engine == "local":  # on a cluster the data need not be here
        kinds = {
            (replace(job.run, method=Method(), seed=0), smallest_pass(job.run)): job.run
            for job in jobs
        }
        for run in kinds.values():
            validation.check_with_data(run)


def finish(
    jobs: list[Job], workers: int, engine: str, address: str | None, quiet: bool
) -> list[Outcome]:
    """Run what is not finished, with a bar over the epochs of all runs."""
    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    epochs = sum(job.run.training.epochs for job in jobs)
    with bar:
        task = bar.add_task(f"{len(jobs)} runs", total=epochs, state="")
        ended: list[Outcome] = []

        def done(outcome: Outcome) -> None:
            ended.append(outcome)
            if not quiet:
                say(line_of(outcome, len(ended), len(jobs)))
            bar.update(task, state=f"{len(ended)} finished")

        with Watch(lambda: bar.update(task, completed=epochs_done(jobs))):
            return run_all(jobs, workers=workers, engine=engine, address=address, done=done)


def line_of(outcome: Outcome, number: int, total: int) -> str:
    run = outcome.job.run
    what = f"{run.method.name} seed {run.seed} noise {run.data.noise:g}"
    name = f"[{number}/{total}] {what}, {run.training.epochs} epochs"
    if outcome.error is not None:
        return f"{name}: failed twice: {outcome.error.strip().splitlines()[-1]}"
    return f"{name}: finished" + {0: " before", 1: ""}.get(outcome.tries, " at the second try")


def report(jobs: list[Job], out: Path, notes: list[str]) -> None:
    """The table, results.json and report.html of the finished jobs."""
    if not jobs:
        return
    command = shlex.join(["aesam", *sys.argv[1:]])
    comparisons = write_report([job.folder for job in jobs], out, command=command, notes=notes)
    for comparison in comparisons:
        console.print(as_rich(results_sheet(comparison, narrow=True), console.width))
    say(f"written: {out / 'report.html'}, {out / 'results.json'}")


def tell_failures(outcomes: list[Outcome]) -> int:
    failed = [o for o in outcomes if o.error is not None]
    for outcome in failed:
        say(f"\nfailed: {outcome.job.folder}\n{outcome.error}")
    return 1 if failed else 0
