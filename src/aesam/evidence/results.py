"""What a bench's book says: the runs of each row, and where it stands."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aesam.evidence import settings
from aesam.evidence.benches import FRESH_SEEDS, Bench
from aesam.evidence.book import Book
from aesam.evidence.contenders import CONTENDERS, Contender
from aesam.evidence.standing import Standing, standing_of
from aesam.evidence.timing import StepTime
from aesam.lab.config import Run

#: What was found for each row, by its name: as :func:`aesam.evidence.settings.found_by` gives it.
Found = Mapping[str, Any]


def runs_of(bench: Bench, contender: Contender, found: Found, seeds: Sequence[int]) -> list[Run]:
    """The runs that count, with what was found; none where nothing was found yet."""
    chosen = found[contender.name]["chosen"] if contender.name in found else None
    if chosen is None:
        return []
    return [settings.run_of(bench.base, contender, seed, **chosen) for seed in seeds]


def standings(
    bench: Bench, contenders: Iterable[Contender], book: Book, seeds: Sequence[int]
) -> list[Standing]:
    """Of every row that has finished runs, with the settings that the book has for it."""
    found: Found = book.about.get("settings", {})
    shown = [_standing(bench, contender, book, found, seeds) for contender in contenders]
    return [each for each in shown if each is not None]


def published(bench: Bench, folder: Path) -> list[Standing]:
    """Of all rows of a bench that are finished in the book that a folder has of it."""
    book = Book(folder / f"{bench.name}.json", bench)
    return standings(bench, CONTENDERS.values(), book, FRESH_SEEDS)


def _standing(
    bench: Bench, contender: Contender, book: Book, found: Found, seeds: Sequence[int]
) -> Standing | None:
    runs = runs_of(bench, contender, found, seeds)
    kept = [(run, s) for run in runs if (s := book.summary(run)) is not None]
    if not kept:
        return None
    chosen, timed = found[contender.name], book.about.get("time", {}).get(contender.name)
    return standing_of(
        contender.name,
        kept,
        bench.measure,
        chosen["chosen"],
        chosen["at_edge"],
        kept[0][0].training.epochs / bench.base.training.epochs,
        None if timed is None else StepTime(**timed),
        lost=bench.lost,
    )
