"""``aesam triggers``: at equal cost, is the adaptive trigger better than another?

Triggers of a group take the second gradient on as many steps, each with a radius (and a weight of
the reused direction) of its own; what is left to differ is which steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from aesam.evidence import results
from aesam.evidence.benches import BENCHES, Bench, bench_of
from aesam.evidence.book import Book
from aesam.evidence.command import check_seeds, rooted
from aesam.evidence.contenders import TRIGGER_GROUPS, TRIGGERS, TriggerGroup
from aesam.evidence.course import Course, Places
from aesam.evidence.frontier_page import as_page
from aesam.evidence.standing import Difference, Standing, difference, holm
from aesam.evidence.triggers_page import TriggerPair, drawing_of, sentences, sheet_of
from aesam.lab import files, validation
from aesam.lab.cli.compare import tell_failures
from aesam.lab.cli.console import console, say
from aesam.lab.cli.run_flags import RunnerFlags
from aesam.lab.crew import Crew
from aesam.lab.show.table import as_rich

#: Seeds are added so many at a time, from the first on that no search has used.
FIRST_SEED, AT_ONCE = 10, 10


@dataclass(frozen=True)
class Triggers:
    """Compare the adaptive trigger with others at equal cost, with seeds until it can be told.

    Settings are searched as by `aesam frontier`. Then seeds are added to each group of triggers,
    ten at a time, until every paired 95 % interval in it is as narrow as asked for, or there are
    MOST of them. Finished runs are kept in PUBLISH and are never made again, nor are those that
    `aesam frontier` kept there.
    """

    bench: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(BENCHES) + "}")] = "digits-40"
    """Where to compare."""
    half_width: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")] = (
        None
    )
    """Of the widest interval at the end; the bench's margin, 0.5 points on images, if left out."""
    most: int = 50
    """Seeds at the most."""
    root: Path = Path("data")
    """Where data sets lie."""
    train: bool = True
    """--no-train shows what is finished so far and trains nothing."""
    out: Path = Path("runs/frontier")
    """Where runs go."""
    publish: Path = Path("results/frontier")
    """Where the finished runs, the table and the figure are kept."""
    runner: RunnerFlags = field(default_factory=RunnerFlags)

    def __call__(self) -> int:
        self.runner.check()
        validation.check_whole({"most": (2, 10_000)}, {"most": self.most})
        bench = rooted(bench_of(self.bench), self.root)
        wanted = bench.margin if self.half_width is None else self.half_width
        validation.check_positive("half-width", wanted)
        path = self.publish / f"triggers-{bench.name}.json"
        Book(self.publish / f"{bench.name}.json", bench).unpack(self.out)
        with Crew() as crew:
            places = Places(self.out, path, self.runner, crew, self.train)
            course = Course(bench, TRIGGERS, places)
            course.search()
            standings = [s for g in TRIGGER_GROUPS for s in self._until_told(course, g, wanted)]
        self._show(bench, path, standings, wanted)
        return tell_failures(course.failed)

    def _until_told(self, course: Course, group: TriggerGroup, wanted: float) -> list[Standing]:
        """More seeds for a group until its widest interval is narrow enough, or all are used."""
        count = 0
        while True:
            count = min(self.most, count + AT_ONCE)
            seeds = range(FIRST_SEED, FIRST_SEED + count)
            check_seeds(seeds)
            rows = list(group.rows.values())
            course.make(seeds, rows)
            standings = results.standings(course.bench, rows, course.book, seeds)
            widest = max((a.half_width for a in apart(group, standings).values()), default=None)
            if not self.runner.quiet and widest is not None:
                title = f"{course.bench.title}, {group.title}"
                say(f"{title}: {count} seeds, ± {widest:.3g} at the widest")
            if count == self.most or course.failed or widest is None or widest <= wanted:
                return standings

    def _show(self, bench: Bench, path: Path, standings: Sequence[Standing], wanted: float) -> None:
        if not standings:
            say(f"{bench.title}: no trigger is finished yet")
            return
        pairs = compared(standings)
        sheet = sheet_of(bench, standings, pairs)
        told = sentences(bench, standings, pairs, wanted)
        files.write_text(path.with_suffix(".txt"), as_page(sheet, told))
        files.write_text(path.with_suffix(".svg"), drawing_of(bench, pairs).svg + "\n")
        if not self.runner.quiet:
            console.print(as_rich(sheet, console.width))
        for sentence in told:
            say(sentence)
        say(f"written: {path}, .txt and .svg")


def apart(group: TriggerGroup, standings: Sequence[Standing]) -> dict[str, Difference]:
    """The adaptive trigger's score less that of each other, by the other's name."""
    scores = {s.name: s.scores for s in standings}
    found = {
        row.name: difference(scores[group.ours.name], scores[row.name])
        for row in group.others.values()
        if group.ours.name in scores and row.name in scores
    }
    return {name: each for name, each in found.items() if each is not None}


def compared(standings: Sequence[Standing]) -> list[TriggerPair]:
    """The adaptive trigger against every other of its group, all corrected together (Holm)."""
    found = {name: (g, each) for g in TRIGGER_GROUPS for name, each in apart(g, standings).items()}
    p_values = holm({name: each.p_value for name, (_, each) in found.items()})
    return [TriggerPair(g, name, each, p_values[name]) for name, (g, each) in found.items()]
