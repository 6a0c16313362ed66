"""Each contender's own settings, searched on a bench until the best is inside what was tried."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aesam.evidence.benches import SEARCH_SEEDS, Bench
from aesam.evidence.contenders import Contender
from aesam.lab import lab_methods
from aesam.lab.companions.early_end import shortened
from aesam.lab.config import Method, Run
from aesam.lab.folders import folder_of
from aesam.lab.grid import Job
from aesam.lab.method_search import MethodSearch
from aesam.searching import Range

#: Doublings and halvings beyond the values that a search begins with.
LIMIT = 6

#: What a search calls the epochs, as a multiple of the bench's.
LENGTH = "length"

#: What else of a training may be searched.
OF_TRAINING = ("lr", "weight_decay", "label_smoothing")

#: Which of these are told as multiples of what the bench has.
MULTIPLES = ("lr", "weight_decay")

#: What is known of a row that has nothing to search.
NOTHING_SEARCHED: dict[str, Any] = {"chosen": {}, "at_edge": [], "notes": []}


def run_of(base: Run, contender: Contender, seed: int, **settings: float) -> Run:
    """The contender's run on a bench, with the settings that were found for it."""
    length = settings.pop(LENGTH, contender.length)
    of_training: dict[str, Any] = {n: settings.pop(n) for n in OF_TRAINING if n in settings}
    method = lab_methods.fill(Method(contender.method, **{**contender.fixed, **settings}))
    epochs = shortened(length, base.training.epochs)
    training = replace(base.training, epochs=epochs, **of_training)
    return replace(base, method=method, training=training, seed=seed)


def ranges_of(bench: Bench, contender: Contender) -> list[Range]:
    """What is searched, radius first; nothing that is fixed or stands back for what is.

    The first is what a row depends on most, and a method may learn at one value and not at twice
    it, so that values between are tried, too. Smoothed labels have no place where the loss itself
    is what counts.
    """
    record = lab_methods.record_of(contender.method)
    back = {*record.standing_back(contender.fixed), *contender.fixed}
    papers = lab_methods.searched("sam")["rho"]
    ranges = [
        *(
            _of_training(bench, name, values)
            for name, values in contender.training.items()
            if bench.measure == "accuracy" or name != "label_smoothing"
        ),
        *(
            setting.range_from(
                bench.radii if (setting.name, setting.grid) == ("rho", papers) else setting.grid,
                setting.default,
            )
            for setting in record.settings
            if setting.grid and setting.default is not None and setting.name not in back
        ),
    ]
    return [replace(each, is_fine=place == 0) for place, each in enumerate(ranges)]


def _of_training(bench: Bench, name: str, values: tuple[float, ...]) -> Range:
    """Of a training's own settings, from the values that its contender begins with.

    What the bench has is the usual value, where it is one of them.
    """
    if name == LENGTH:
        return Range(name, values, values[0], least=0.0, most=1.0)
    own = getattr(bench.base.training, name)
    if name in MULTIPLES:
        return Range(name, tuple(own * value for value in values), own, least=0.0)
    usual = own if own in values else values[0]
    return Range(name, values, usual, least=0.0, most=1.0, is_open=0.0 not in values)


def searches(bench: Bench, contenders: Iterable[Contender], out: Path) -> dict[str, MethodSearch]:
    """A search for each contender that has anything to search, by its name."""
    found: dict[str, MethodSearch] = {}
    for contender in contenders:
        ranges = ranges_of(bench, contender)
        if ranges:
            found[contender.name] = _search(bench, contender, ranges, out)
    return found


def _search(bench: Bench, contender: Contender, ranges: Sequence[Range], out: Path) -> MethodSearch:
    def make_job(settings: Mapping[str, float], seed: int) -> Job:
        run = run_of(bench.search, contender, seed, **settings)
        return Job(run, folder_of(run, out))

    return MethodSearch(
        contender.name,
        ranges,
        seeds=SEARCH_SEEDS,
        limit=LIMIT,
        make_job=make_job,
        score=bench.measure,
    )


def found_by(search: MethodSearch) -> dict[str, Any]:
    """What a search chose, as plain values; what it tried are the runs beside it in the book."""
    return {"chosen": search.chosen, "at_edge": search.at_edge, "notes": search.notes}
