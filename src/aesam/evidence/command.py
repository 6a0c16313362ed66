"""``aesam frontier``: score against cost, every method with settings of its own."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from aesam.evidence import settings
from aesam.evidence.benches import BENCHES, FRESH_SEEDS, SEARCH_SEEDS, Bench, bench_of
from aesam.evidence.book import Book
from aesam.evidence.contenders import ALL, SHARES, TRIGGERS, Contender
from aesam.evidence.frontier_page import CAPTION, drawing_of, findings, sheet_of
from aesam.evidence.standing import Standing, standing_of
from aesam.lab import files
from aesam.lab.cli.compare import check_all, finish, tell_failures
from aesam.lab.cli.console import command_line, console, say
from aesam.lab.cli.run_flags import RunnerFlags
from aesam.lab.config import Run
from aesam.lab.crew import Crew
from aesam.lab.errors import UsageError, unknown
from aesam.lab.folders import folder_of
from aesam.lab.grid import Job, Outcome
from aesam.lab.method_search import MethodSearch
from aesam.lab.show.table import as_rich, as_text
from aesam.lab.training.trainer import versions

CONTENDERS: dict[str, Contender] = {c.name: c for c in (*ALL, *TRIGGERS, *SHARES)}


@dataclass(frozen=True)
class Frontier:
    """Score against cost of all methods and controls on a bench, and who is on the front.

    On each bench every row's settings are searched on held-out training samples until the best is
    inside what was tried, and its runs are made with fresh seeds on all of them. Finished runs are
    kept in one file for each bench in PUBLISH and are never made again.
    """

    benches: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="{" + ",".join(BENCHES) + "} [...]")
    ] = tuple(BENCHES)
    """Where to compare."""
    rows: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROW [ROW ...]")] = tuple(
        c.name for c in ALL
    )
    """Who is compared; methods with a part of their settings fixed."""
    seeds: tuple[int, ...] = FRESH_SEEDS
    """Of what is reported; those of the search are others."""
    root: Path = Path("data")
    """Where data sets lie."""
    train: bool = True
    """--no-train shows what is finished so far and trains nothing."""
    out: Path = Path("runs/frontier")
    """Where runs go."""
    publish: Path = Path("results/frontier")
    """Where the finished runs, tables and figures are kept."""
    runner: RunnerFlags = field(default_factory=RunnerFlags)

    def __call__(self) -> int:
        self.runner.check()
        self._check()
        failed: list[Outcome] = []
        with Crew() as crew:
            for name in dict.fromkeys(self.benches):
                bench = self._rooted(bench_of(name))
                failed += _Course(self, bench, crew).run()
        return tell_failures(failed)

    def _check(self) -> None:
        for name in self.rows:
            if name not in CONTENDERS:
                raise unknown("row", name, list(CONTENDERS))
        both = sorted({*self.seeds} & {*SEARCH_SEEDS})
        if both or not self.seeds:
            raise UsageError(
                f"seeds must be others than those of the search, {SEARCH_SEEDS}, got {both}"
            )

    def _rooted(self, bench: Bench) -> Bench:
        data = replace(bench.base.data, root=str(self.root))
        return replace(bench, base=replace(bench.base, data=data))

    @property
    def contenders(self) -> list[Contender]:
        return [CONTENDERS[name] for name in dict.fromkeys(self.rows)]


class _Course:
    """One bench from its searches to its table."""

    def __init__(self, asked: Frontier, bench: Bench, crew: Crew) -> None:
        self._asked, self._bench, self._crew = asked, bench, crew
        self._path = asked.publish / f"{bench.name}.json"
        self._book = Book(self._path, bench)
        self._book.unpack(asked.out)

    def run(self) -> list[Outcome]:
        searches = settings.searches(self._bench, self._asked.contenders, self._asked.out)
        failed: list[Outcome] = []
        found: dict[str, Any] = {}
        for search in searches.values():
            _go_through_finished(search)
        try:
            while self._asked.train and (jobs := [j for s in searches.values() for j in s.jobs]):
                failed += self._finish(jobs, searches)
            found = self._found(searches)
            if self._asked.train:
                failed += self._make(self._fresh(found))
        finally:
            if self._asked.train:  # what an interrupted command finished is kept
                self._keep(searches, found)
        self._show(found)
        return failed

    def _finish(self, jobs: list[Job], searches: Mapping[str, MethodSearch]) -> list[Outcome]:
        asked = "; ".join(str(search) for search in searches.values() if search.jobs)
        if not self._asked.runner.quiet:
            say(f"{self._bench.title}: {asked}: {len(jobs)} runs")
        failed = self._make(jobs)
        for search in searches.values():
            search.go_on({outcome.job.folder for outcome in failed})
        self._keep(searches, {})
        return failed

    def _make(self, jobs: list[Job]) -> list[Outcome]:
        missing = [job for job in jobs if not job.is_finished]
        if not missing:
            return []
        check_all(missing, self._asked.runner, self._asked.out)
        ended = finish(missing, self._asked.runner, self._crew)
        return [outcome for outcome in ended if outcome.error is not None]

    def _found(self, searches: Mapping[str, MethodSearch]) -> dict[str, Any]:
        """What the searches chose; nothing is searched for rows that have nothing to search."""
        done = {
            name: settings.found_by(s, self._bench) for name, s in searches.items() if not s.jobs
        }
        free = [c.name for c in self._asked.contenders if c.name not in searches]
        return done | dict.fromkeys(free, settings.NOTHING_SEARCHED)

    def _runs(self, name: str, found: Mapping[str, Any]) -> list[Run]:
        chosen = found[name]["chosen"] if name in found else None
        if chosen is None:
            return []
        contender, base = CONTENDERS[name], self._bench.base
        return [settings.run_of(base, contender, seed, **chosen) for seed in self._asked.seeds]

    def _fresh(self, found: Mapping[str, Any]) -> list[Job]:
        runs = [run for c in self._asked.contenders for run in self._runs(c.name, found)]
        return [Job(run, folder_of(run, self._asked.out)) for run in runs]

    def _keep(self, searches: Mapping[str, MethodSearch], found: Mapping[str, Any]) -> None:
        self._book.take(job for search in searches.values() for job in (*search.done, *search.jobs))
        self._book.take(self._fresh(found))
        before: dict[str, Any] = files.read_json(self._path) if self._path.exists() else {}
        self._book.write(
            bench=self._bench.name,
            title=self._bench.title,
            command=command_line(),
            versions=versions(),
            machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            settings={**before.get("settings", {}), **found},
        )

    def _show(self, found: Mapping[str, Any]) -> None:
        standings = self.standings(found)
        if not standings:
            say(f"{self._bench.title}: no row is finished yet")
            return
        seeds = {"search": _listed(SEARCH_SEEDS), "fresh": _listed(self._asked.seeds)}
        sheet = sheet_of(self._bench, standings, CONTENDERS, CAPTION.format(**seeds))
        told = findings(self._bench, standings, CONTENDERS)
        text = as_text(sheet) + "".join(f"\n- {sentence}" for sentence in told) + "\n"
        files.write_text(self._path.with_suffix(".txt"), text)
        drawing = drawing_of(self._bench, standings, CONTENDERS)
        files.write_text(self._path.with_suffix(".svg"), drawing.svg + "\n")
        if not self._asked.runner.quiet:
            console.print(as_rich(sheet, console.width))
        for sentence in told:
            say(sentence)
        say(f"written: {self._path}, .txt and .svg")

    def standings(self, found: Mapping[str, Any]) -> list[Standing]:
        """Of every row that has finished runs."""
        shown = [self._standing(c, found) for c in self._asked.contenders]
        return [each for each in shown if each is not None]

    def _standing(self, contender: Contender, found: Mapping[str, Any]) -> Standing | None:
        runs = self._runs(contender.name, found)
        kept = [(run, s) for run in runs if (s := self._book.summary(run)) is not None]
        if not kept:
            return None
        chosen = found[contender.name]
        length = kept[0][0].training.epochs / self._bench.base.training.epochs
        return standing_of(
            contender.name,
            kept,
            f"test_{self._bench.measure}",
            chosen["chosen"],
            chosen["at_edge"],
            length,
            None,
        )


def _go_through_finished(search: MethodSearch) -> None:
    """To the first round that has something left to run."""
    while search.jobs and all(job.is_finished for job in search.jobs):
        search.go_on(())


def _listed(seeds: Sequence[int]) -> str:
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))
