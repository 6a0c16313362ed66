"""``aesam compare``: methods × seeds × noise levels, side by side."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from aesam.lab import files, lab_methods, validation
from aesam.lab.cli.console import command_line, console, diverged, is_given, say
from aesam.lab.cli.run_flags import RunFlags, RunnerFlags
from aesam.lab.config import Method, Run
from aesam.lab.crew import Crew
from aesam.lab.data import data_record
from aesam.lab.errors import UsageError
from aesam.lab.fit import smallest_pass
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.grid import Job, Outcome, epochs_done, run_all, watched
from aesam.lab.show import as_rich, results_sheet, write_report
from aesam.lab.summaries import is_diverged

#: Where settings were tuned (:class:`aesam.lab.lab_methods.LabMethod`): its usual training.
TUNED_ON, TUNED_AT = "digits", (0.4,)

#: What of a training changes how fast it goes, or what is known of it, and not what is learned.
WITHOUT_EFFECT = ("channels_last", "compile", "cpu", "workers", "evaluate_every", "measure")

HOW_CHOSEN = (
    "How the settings were chosen: `aesam frontier --benches digits-40` searched for each method "
    "by itself, at 40 % wrong labels and with seeds 0 to 2, by the accuracy on a held-out tenth "
    "of the training set with clean labels; the test set was not looked at. ρ was doubled and "
    "halved until the best was inside what was tried, which for most methods is past the end of "
    "the paper's grid, 0.5; then α was searched at that ρ. For ERM stopped early it is the share "
    "of the epochs after which it ends. k = 2, λ1 = −1 and λ2 = 1 are the paper's under label "
    "noise; p, β and γ are its defaults."
)
HOW_FAR = (
    "How far this goes: three seeds show, they do not decide. The table with ten fresh seeds (10 "
    "to 19; those of the default comparison are the first three of them) and all controls is "
    "docs/evidence.md. ERM stopped early is a strong and cheap control: without it a table under "
    "label noise shows who memorises least. One small data set without augmentation and one small "
    "network, on which ERM memorises the wrong labels: it says nothing about clean or large data."
)
OTHER_LABELS = (
    "Settings that no flag gave were chosen at 40 % wrong labels: at other shares no method is "
    "sure to be at its best. `aesam tune --noise` finds each method's own."
)
NOT_TUNED = (
    "Settings that no flag gave are the defaults of the library, which nobody chose for this "
    "training: the table compares settings as much as methods. `aesam tune` finds each method's "
    "own, to be given as flags."
)


@dataclass(frozen=True)
class Compare(RunFlags):
    """Compare methods over seeds and noise levels, and write a report.

    Without any flag: the seven methods of the paper and ERM stopped early × 3 seeds on handwritten
    digits with 40 % of the training labels wrong, each with settings that were chosen on a
    validation split with other seeds. They are for that training: with other data, another model,
    other epochs or the like each method has the defaults of the library. Runs that are finished are
    never run again, so a larger comparison only adds what is missing.
    """

    methods: tuple[str, ...] = field(default_factory=lambda: tuple(lab_methods.default_methods()))
    """What to compare."""
    seeds: tuple[int, ...] = (10, 11, 12)
    """One run of each method for each; not 0 to 2, with which `aesam tune` chooses settings."""
    noise: tuple[float, ...] = (0.4,)
    """Shares of wrong training labels; unless given, none on text, where none can be changed."""
    out: Path = Path("runs/compare")
    """Where the runs, results.json and report.html go."""
    runner: RunnerFlags = field(default_factory=RunnerFlags)

    METHOD_HELP: ClassVar[str] = "What to compare."

    def __call__(self) -> int:
        jobs = self.plan()
        check_all(jobs, self.runner, self.out)
        outcomes = finish(jobs, self.runner)
        finished = [o.job for o in outcomes if o.error is None]
        report(finished, self.out, self.notes())
        for note in self._cautions():
            say(f"\n{note}")
        tell_diverged(finished)
        return tell_failures(outcomes)

    def plan(self) -> list[Job]:
        if not (self.methods and self.seeds and self.noise):
            raise UsageError("methods, seeds and noise must each name at least one")
        self.refuse_settings_of_none(self.methods)
        return [
            Job(run, folder_of(run, self.out))
            for noise in dict.fromkeys(self._levels())
            for seed in dict.fromkeys(self.seeds)
            for method in dict.fromkeys(self.methods)
            for run in [self._run(method, seed, noise)]
        ]

    def _levels(self) -> tuple[float, ...]:
        is_text = data_record(self.data.name).kind == "text"
        return (0.0,) if is_text and not is_given("--noise") else self.noise

    @classmethod
    def usual_settings(cls, method: str, dataset: str) -> dict[str, float]:
        tuned = lab_methods.tuned(method) if dataset == TUNED_ON else {}
        return {**super().usual_settings(method, dataset), **tuned}

    def _run(self, method: str, seed: int, noise: float) -> Run:
        usual = super().usual_settings(method, self.data.name)
        if self._is_as_tuned:
            usual = self.usual_settings(method, self.data.name)
        return self.run(method, seed, noise, strict=False, **usual)

    @property
    def _is_as_tuned(self) -> bool:
        """Whether the training is, but for its labels, the one that settings were tuned for."""
        usual, run = data_record(TUNED_ON).usual, self.run(self.methods[0], 0, 0.0, strict=False)
        own = replace(run.training, **{n: getattr(usual.training, n) for n in WITHOUT_EFFECT})
        here = (replace(run.data, root=usual.data.root), run.model, own)
        return here == (replace(usual.data, noise=0.0), usual.model, usual.training)

    def notes(self) -> list[str]:
        """What is to be said of the settings, for whatever methods and seeds."""
        default = self._is_as_tuned and self._levels() == TUNED_AT and not self.given_settings()
        return [HOW_CHOSEN, HOW_FAR] if default else self._cautions()

    def _cautions(self) -> list[str]:
        """Why methods may not be at their best here."""
        given = self.given_settings()
        if not any(lab_methods.searched(method).keys() - given for method in self.methods):
            return []
        if not self._is_as_tuned:
            return [NOT_TUNED]
        return [] if self._levels() == TUNED_AT else [OTHER_LABELS]


def check_all(jobs: list[Job], runner: RunnerFlags, out: Path) -> None:
    """Refuse before anything is trained; what the data say is looked up once per kind of run."""
    runner.check()
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: choose a folder")
    for job in jobs:
        validation.check(job.run)
    if runner.engine == "local":  # on a cluster the data need not be here
        kinds = {
            (
                replace(job.run, method=Method(), seed=0),
                smallest_pass(job.run),
                lab_methods.kept_share(job.run.method),
            ): job.run
            for job in jobs
        }
        for run in kinds.values():
            validation.check_with_data(run)
    files.make_writable_folder(out)  # here, where one sentence says it for all runs


def finish(jobs: list[Job], runner: RunnerFlags, crew: Crew | None = None) -> list[Outcome]:
    """Run what is not finished, with a bar over the epochs of all runs; a ``crew`` stays."""
    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
        console=console,
        disable=runner.quiet or not console.is_terminal,
    )
    epochs = sum(lab_methods.epochs_of(job.run) for job in jobs)
    with bar:
        task = bar.add_task(f"{len(jobs)} runs", total=epochs, state="")
        ended: list[Outcome] = []

        def done(outcome: Outcome) -> None:
            ended.append(outcome)
            if not runner.quiet:
                say(line_of(outcome, len(ended), len(jobs)))
            bar.update(task, state=f"{len(ended)} finished")

        with watched(lambda: bar.update(task, completed=epochs_done(jobs))):
            return run_all(
                jobs,
                workers=runner.jobs,
                engine=runner.engine,
                address=runner.address,
                done=done,
                crew=crew,
            )


def line_of(outcome: Outcome, number: int, total: int) -> str:
    run = outcome.job.run
    what = f"{run.method.name} seed {run.seed} noise {run.data.noise:g}"
    name = f"[{number}/{total}] {what}, {lab_methods.epochs_of(run)} epochs"
    if outcome.error is not None:
        return f"{name}: failed twice: {outcome.error.strip().splitlines()[-1]}"
    return f"{name}: finished" + {0: " before", 1: ""}.get(outcome.tries, " at the second try")


def report(jobs: list[Job], out: Path, notes: list[str]) -> None:
    """The table, results.json and report.html of the finished jobs."""
    if not jobs:
        return
    folders = [job.folder for job in jobs]
    comparisons = write_report(folders, out, command=command_line(), notes=notes)
    for comparison in comparisons:
        console.print(as_rich(results_sheet(comparison, narrow=True), console.width))
    say(f"written: {out / 'report.html'}, {out / 'results.json'}")


def tell_diverged(jobs: list[Job]) -> None:
    """Runs that diverged are finished, and told apart."""
    for job in jobs:
        summary = RunFolder(job.folder).read_summary(job.run)
        if is_diverged(summary):
            say(f"\n{diverged(summary, job.folder)}")


def tell_failures(outcomes: list[Outcome]) -> int:
    failed = [o for o in outcomes if o.error is not None]
    for outcome in failed:
        say(f"\nfailed: {outcome.job.folder}\n{outcome.error}")
    return 1 if failed else 0
