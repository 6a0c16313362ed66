"""``aesam frontier``: score against cost, every method with settings of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from aesam.evidence import results, verdict
from aesam.evidence.benches import BENCHES, FRESH_SEEDS, SEARCH_SEEDS, Bench, bench_of
from aesam.evidence.contenders import CONTENDERS, Contender, named
from aesam.evidence.course import Course, Places
from aesam.evidence.frontier_page import as_page, drawings_of, findings, sheet_of
from aesam.evidence.standing import Standing
from aesam.lab import files
from aesam.lab.cli.compare import tell_failures
from aesam.lab.cli.console import console, say
from aesam.lab.cli.run_flags import RunnerFlags
from aesam.lab.crew import Crew
from aesam.lab.data.run_samples import samples_of
from aesam.lab.errors import UsageError
from aesam.lab.grid import Outcome
from aesam.lab.show.table import as_rich


@dataclass(frozen=True)
class Frontier:
    """Score against cost of all methods and controls on a bench, and who is on the front.

    On each bench every row's settings are searched on held-out training samples until the best is
    inside what was tried, and its runs are made with fresh seeds on all of them. Finished runs are
    kept in one file for each bench in PUBLISH and are never made again. At the end it says whether
    any one rule is as good as SAM on three of four benches at nearly the cost of ERM.
    """

    benches: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="{" + ",".join(BENCHES) + "} [...]")
    ] = tuple(BENCHES)
    """Where to compare."""
    rows: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="ROW [ROW ...]", help_behavior_hint="")
    ] = ()
    """Who is compared: methods with a part of their settings fixed. Unless given, all on digits,
    and elsewhere ten finalists and some of plain training."""
    seeds: tuple[int, ...] = FRESH_SEEDS
    """Of what is reported; those of the search are others."""
    root: Path = Path("data")
    """Where data sets lie."""
    train: bool = True
    """--no-train shows what is finished so far and trains nothing."""
    time: bool = False
    """Measure what a step of each row costs, beside ERM's; best on a machine that rests."""
    out: Path = Path("runs/frontier")
    """Where runs go."""
    publish: Path = Path("results/frontier")
    """Where the finished runs, tables and figures are kept."""
    runner: RunnerFlags = field(default_factory=RunnerFlags)

    def __call__(self) -> int:
        self.runner.check()
        named(self.rows)
        check_seeds(self.seeds)
        benches = [rooted(bench_of(name), self.root) for name in dict.fromkeys(self.benches)]
        for bench in benches if self.train or self.time else ():
            samples_of(bench.base)  # what is not there is told before anything is trained
        with Crew() as crew:
            failed = [outcome for bench in benches for outcome in self._compare(bench, crew)]
        self._conclude()
        return tell_failures(failed)

    def _compare(self, bench: Bench, crew: Crew) -> list[Outcome]:
        rows: Sequence[Contender] = named(self.rows) or bench.contenders
        path = self.publish / f"{bench.name}.json"
        course = Course(bench, rows, Places(self.out, path, self.runner, crew, self.train))
        course.search()
        course.make(self.seeds)
        if self.time:
            course.measure_times()
        # Rows that were not asked for are shown if they are finished: the table is of the bench.
        standings = results.standings(bench, CONTENDERS.values(), course.book, self.seeds)
        self._show(bench, standings, path)
        return course.failed

    def _show(self, bench: Bench, standings: Sequence[Standing], path: Path) -> None:
        if not standings:
            say(f"{bench.title}: no row is finished yet")
            return
        sheet, told = sheet_of(bench, standings, self.seeds), findings(bench, standings)
        files.write_text(path.with_suffix(".txt"), as_page(sheet, told))
        for drawing in drawings_of(bench, standings):
            files.write_text(path.with_name(f"{drawing.name}.svg"), drawing.svg + "\n")
        if not self.runner.quiet:
            console.print(as_rich(sheet, console.width))
        for sentence in told:
            say(sentence)
        say(f"written: {path}, .txt and .svg")

    def _conclude(self) -> None:
        """What the published files of all four benches say together."""
        found = verdict.of_books(self.publish)
        files.write_json(self.publish / "verdict.json", found)
        for sentence in found["sentences"]:
            say(sentence)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that settings were chosen with, and none at all."""
    both = sorted({*seeds} & {*SEARCH_SEEDS})
    if both or not seeds:
        raise UsageError(
            f"seeds must be others than those of the search, {SEARCH_SEEDS}, got {both}"
        )


def rooted(bench: Bench, root: Path) -> Bench:
    """The bench with its data under another root, which is no part of what its runs are."""
    data = replace(bench.base.data, root=str(root))
    return replace(bench, base=replace(bench.base, data=data))
