"""One bench from its searches to its finished runs, all kept in its book."""

import os
import platform
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aesam.evidence import results, settings
from aesam.evidence.benches import Bench
from aesam.evidence.book import Book
from aesam.evidence.contenders import Contender
from aesam.evidence.timing import StepTime, step_times
from aesam.lab import lab_methods
from aesam.lab.cli.compare import check_all, finish
from aesam.lab.cli.console import command_line, say
from aesam.lab.cli.run_flags import RunnerFlags
from aesam.lab.crew import Crew
from aesam.lab.folders import folder_of
from aesam.lab.grid import Job, Outcome
from aesam.lab.method_search import MethodSearch
from aesam.lab.training.trainer import versions


@dataclass(frozen=True)
class Places:
    """Where a course finds and leaves things, and who makes its runs.

    Args:
        out: where runs go.
        book: the file that keeps them.
        runner: how they are made.
        crew: the workers who make them.
        train: whether what is missing is made; False shows what there is.
    """

    out: Path
    book: Path
    runner: RunnerFlags
    crew: Crew
    train: bool


class Course:
    """A bench and its rows; what is finished is never made again.

    Args:
        bench: where.
        contenders: who.
        places: see there.
    """

    def __init__(self, bench: Bench, contenders: Sequence[Contender], places: Places) -> None:
        self.bench, self.contenders, self._places = bench, list(contenders), places
        self.book = Book(places.book, bench)
        self.book.unpack(places.out)
        self._searches = settings.searches(bench, self.contenders, places.out)
        self.failed: list[Outcome] = []
        for search in self._searches.values():
            _go_through_finished(search)
        self.book.about["settings"] = {**self._of_other_rows(), **self.found()}

    def search(self) -> None:
        """Settings for each row that has any to search."""
        searches = self._searches.values()
        while self._places.train and (jobs := [job for s in searches for job in s.jobs]):
            if not self._places.runner.quiet:
                asked = "; ".join(str(search) for search in searches if search.jobs)
                say(f"{self.bench.title}: {asked}: {len(jobs)} runs")
            with self._kept(jobs):
                failed = {outcome.job.folder for outcome in self._make(jobs)}
            for search in searches:
                search.go_on(failed)

    def make(self, seeds: Sequence[int], rows: Sequence[Contender] | None = None) -> None:
        """The runs that count, with these seeds, of every row whose settings are found.

        ``rows`` are all unless given.
        """
        if self._places.train:
            searched = [job for search in self._searches.values() for job in search.done]
            jobs = self._fresh(seeds, self.contenders if rows is None else rows)
            with self._kept([*searched, *jobs]):
                self._make(jobs)

    def measure_times(self) -> None:
        """The cost of a step of each row, beside ERM's, with the settings that were found.

        What a method of the lab's own does beside its steps is in no step, so it has no time here.
        """
        found = self.found()
        runs = {
            contender.name: runs[0]
            for contender in self.contenders
            if not lab_methods.is_own(contender.method)
            and (runs := results.runs_of(self.bench, contender, found, (0,)))
        }

        def tell(name: str, time: StepTime) -> None:
            if not self._places.runner.quiet:
                shown = {"plain": time.plain, "with a second gradient": time.fired}
                said = [f"{value:.2f} {kind}" for kind, value in shown.items() if value is not None]
                say(f"{self.bench.title}: {name}: × ERM's step: {', '.join(said)}")

        times = {name: vars(time) for name, time in step_times(runs, tell).items()}
        self._write(time={**self.book.about.get("time", {}), **times})

    def found(self) -> dict[str, Any]:
        """What the searches chose; nothing is searched for rows that have nothing to search."""
        over = {name: search for name, search in self._searches.items() if not search.jobs}
        done = {name: settings.found_by(search) for name, search in over.items()}
        free = [c.name for c in self.contenders if c.name not in self._searches]
        return done | dict.fromkeys(free, settings.NOTHING_SEARCHED)

    # ---------------------------------------------------------------------------------------------

    def _of_other_rows(self) -> dict[str, Any]:
        """The book's settings without those that a search of ours has yet to confirm.

        A search that has since learnt to look further has values left to try.
        """
        kept: dict[str, Any] = self.book.about.get("settings", {})
        return {name: each for name, each in kept.items() if name not in self._searches}

    def _fresh(self, seeds: Sequence[int], rows: Sequence[Contender]) -> list[Job]:
        found = self.found()
        runs = [r for c in rows for r in results.runs_of(self.bench, c, found, seeds)]
        return [Job(run, folder_of(run, self._places.out)) for run in runs]

    @contextmanager
    def _kept(self, jobs: Sequence[Job]) -> Generator[None]:
        """Those that are finished after the block are in the book, also if it is interrupted."""
        try:
            yield
        finally:
            self.book.take(jobs)
            self._write()

    def _write(self, **more: Any) -> None:
        before = self.book.about
        about = {
            "bench": self.bench.name,
            "title": self.bench.title,
            "command": command_line(),
            "versions": versions(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "settings": {**before.get("settings", {}), **self.found()},
            "time": before.get("time", {}),
        }
        self.book.write(**{**about, **more})

    def _make(self, jobs: list[Job]) -> list[Outcome]:
        """What is not finished, each once: rows of two names may ask for the same run."""
        missing = list({job.folder: job for job in jobs if not job.is_finished}.values())
        if not missing:
            return []
        check_all(missing, self._places.runner, self._places.out)
        ended = finish(missing, self._places.runner, self._places.crew)
        failed = [outcome for outcome in ended if outcome.error is not None]
        self.failed += failed
        return failed


def _go_through_finished(search: MethodSearch) -> None:
    """To the first round that has something left to run."""
    while search.jobs and all(job.is_finished for job in search.jobs):
        search.go_on(())
