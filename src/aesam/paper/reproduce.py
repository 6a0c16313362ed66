"""``aesam reproduce``: the paper's tables, figures and theorems."""

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.progress import Progress

from aesam.lab.cli.compare import check_all, finish, tell_failures
from aesam.lab.cli.console import command_line, console, is_given, say
from aesam.lab.cli.run_flags import RunnerFlags
from aesam.lab.config import Run
from aesam.lab.errors import UsageError
from aesam.lab.grid import Outcome
from aesam.lab.show.table import as_rich
from aesam.paper import tuning
from aesam.paper.entries import ENTRIES, Computed, Entry, Trained, entry_of
from aesam.paper.entry_files import text_of, write
from aesam.paper.finished import Shelf, publish, unfinished
from aesam.paper.outcome import Result
from aesam.paper.plan import runs_of
from aesam.paper.setups import Options, Preset, SmallData
from aesam.paper.verdicts import sheets_of, summary

_OWN = "(default: the entry's own)"
_OF_RUNS = ("--jobs", "--engine", "--address", "--cache", "--publish-runs")


def _shown(metavar: str | None, hint: str) -> Any:
    """How ``--help`` shows a flag whose value or default says too little by itself."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


@dataclass(frozen=True)
class Reproduce:
    """Make a table, a figure or a theorem of the paper from training runs.

    `aesam reproduce --list` names them all. The preset small (the default) is the experiment shrunk
    to two CPU cores; paper is the paper's set-up. Finished runs are never run again, so an entry
    that was interrupted goes on, and entries share their runs.
    """

    name: Annotated[
        str, tyro.conf.Positional, _shown("ENTRY", f"(one of {', '.join(ENTRIES)})")
    ] = ""
    """What to make; --list says more of each."""
    show_list: Annotated[bool, tyro.conf.arg(name="list"), tyro.conf.FlagCreatePairsOff] = False
    """Name all entries, with what each needs."""
    preset: Preset = "small"
    """The experiment shrunk to two cores, or the paper's set-up."""
    data: SmallData = "digits"
    """What the small preset trains on: digits (bundled) or cifar10 (2,500 images, in ROOT)."""
    root: Path = Path("data")
    """Where data sets lie."""
    seeds: Annotated[tuple[int, ...] | None, _shown("INT [INT ...]", _OWN)] = None
    """Seeds of the runs."""
    epochs: Annotated[int | None, _shown("INT", _OWN)] = None
    """Fewer epochs, to try it out."""
    noise: Annotated[tuple[float, ...] | None, _shown("FLOAT [FLOAT ...]", _OWN)] = None
    """Levels of label noise, for the entries that have them."""
    controls: Annotated[tyro.conf.DisallowNone[bool | None], _shown(None, _OWN)] = None
    """Add the controls that the paper lacks; the noise table has them by itself."""
    tune: Annotated[tyro.conf.DisallowNone[bool | None], _shown(None, _OWN)] = None
    """Search rho and alpha on a tenth of the training set first; the paper preset does."""
    train: bool = True
    """--no-train shows what is finished so far and trains nothing."""
    out: Path = Path("runs/reproduce")
    """Where runs, tables, figures and report.html go."""
    cache: Path = Path("results/runs")
    """Finished runs that are read and never written."""
    publish: Annotated[Path | None, _shown("PATH", "")] = None
    """Copy tables, numbers and figures to this folder too."""
    publish_runs: Annotated[Path | None, _shown("PATH", "")] = None
    """Copy the small files of each finished run to this folder, to serve as a cache."""
    runner: RunnerFlags = field(default_factory=RunnerFlags)

    def __call__(self) -> int:
        self.runner.check()
        if self.show_list:
            for entry in ENTRIES.values():
                say(described(entry))
            return 0
        if not self.name:
            raise UsageError(f"name what to reproduce: {', '.join(ENTRIES)} (see --list)")
        entry, options = entry_of(self.name), self._options()
        entry.refuse_unknown(options)
        if isinstance(entry, Computed):
            return self._end(entry, options, self._compute(entry, options))
        if isinstance(entry, Trained):
            return self._train(entry, options)
        raise TypeError(f"{entry.name} is neither trained nor computed")

    def _options(self) -> Options:
        return Options(
            self.preset,
            self.data,
            str(self.root),
            self.seeds,
            self.epochs,
            self.noise,
            self.controls,
            self.tune,
        )

    def _train(self, entry: Trained, options: Options) -> int:
        shelf = Shelf(self.out / "runs", [self.cache])
        found = entry.setups(options)
        if not options.is_small if options.tune is None else options.tune:
            searches = entry.searched(options, found)
            grids = [run for setup, names in searches for run in tuning.grids(setup, names)]
            failed = self._finish(shelf, grids)
            if failed:
                return tell_failures(failed)
            found = [tuning.chosen(setup, names, shelf.find) for setup, names in searches]
        panels = entry.panels(options, found)
        failed = self._finish(shelf, runs_of(panels))
        if any(shelf.find(run) for run in runs_of(panels)):
            result = entry.show(panels, shelf.find)
            notes = [*result.notes, *unfinished(panels, shelf.find)]
            self._end(entry, options, replace(result, notes=notes))
        elif not failed:
            raise UsageError(
                f"no run of {self.name} is finished in {self.out / 'runs'} or {self.cache}: leave "
                "out --no-train to make them"
            )
        return tell_failures(failed)

    def _finish(self, shelf: Shelf, runs: list[Run]) -> list[Outcome]:
        """Make the runs that are missing; those that failed twice come back."""
        try:
            return self._make(shelf, runs) if self.train else []
        finally:  # an interrupted command has published what it finished
            self._publish(shelf, runs)

    def _make(self, shelf: Shelf, runs: list[Run]) -> list[Outcome]:
        jobs = shelf.jobs(runs)
        missing = [job for job in jobs if not job.is_finished]
        check_all(missing, self.runner, self.out)
        if not self.runner.quiet and len(missing) < len(jobs):
            say(f"{len(jobs) - len(missing)} of {len(jobs)} runs were finished before")
        outcomes = finish(missing, self.runner)
        return [outcome for outcome in outcomes if outcome.error is not None]

    def _publish(self, shelf: Shelf, runs: list[Run]) -> None:
        if self.publish_runs is None:
            return
        for run in runs:
            folder = shelf.find(run)
            if folder is not None:
                publish(run, folder, self.publish_runs)

    def _compute(self, entry: Computed, options: Options) -> Result:
        if not self.train:
            raise UsageError(f"{entry.name} is computed at once: there is nothing to show before")
        for flag in filter(is_given, _OF_RUNS):
            raise UsageError(f"{flag} is for runs; {entry.name} is computed at once: leave it out")
        with Progress(console=console, disable=self.runner.quiet or not console.is_terminal) as bar:
            task = bar.add_task(entry.name, total=None)
            return entry.make(options, lambda done, of: bar.update(task, completed=done, total=of))

    def _end(self, entry: Entry, options: Options, result: Result) -> int:
        """Print and write what was found."""
        kind = options.data if options.is_small else options.preset
        name = entry.name if kind == "digits" else f"{entry.name}-{kind}"
        name += f"-epochs{options.epochs}" if options.epochs is not None else ""  # not the real one
        folder = self.out / name
        command = command_line()
        write(entry, options, result, folder, command)
        if not self.runner.quiet:
            _print(entry, options, result)
        if self.publish is not None:
            _copy(folder, self.publish / name)
        say(f"written: {folder / 'report.html'}, {folder / 'results.json'}")
        return 0


def _print(entry: Entry, options: Options, result: Result) -> None:
    """Tables with bold and underline on a terminal, plain text elsewhere."""
    if not console.is_terminal:
        say(text_of(entry, options, result))
        return
    if result.text:
        say(result.text)
    for each in (*result.sheets, *sheets_of(result.verdicts)):
        console.print(as_rich(each, console.width))
    counted = [summary(result.verdicts)] if result.verdicts else []
    for sentence in (*counted, *result.findings, *result.notes):
        say(f"- {sentence}")


def _copy(folder: Path, target: Path) -> None:
    """The page is left out: it can be made again from the rest."""
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.svg"):
        old.unlink()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".txt", ".svg"):
            shutil.copyfile(path, target / path.name)


def described(entry: Entry) -> str:
    needs = "\n".join(f"    {preset}: {what}" for preset, what in entry.needs.items())
    return f"{entry.name} ({entry.paper}): {entry.shows}\n{needs}"
