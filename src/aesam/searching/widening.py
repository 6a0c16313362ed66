"""A search for settings that says what to try, is told the scores, and widens its values.

One setting after the other, each at the best values of those before it and the usual ones of those
after it. The values of a setting widen by doubling and halving until the best is inside them; of a
fine one, values between the best, or what is within one standard error of it, and their neighbours
follow, until these are near. Where a later
setting did not stay at its usual value, what was found before it was found beside another one: the
best and its neighbours are tried once more, and widen again.

All values are tried with the first seed; then the better half, and the neighbours of the best, with
two seeds, the better half of these with four, and so on, until the best and its neighbours have
been tried with every seed. This is successive halving over seeds and not over epochs: a training
that is cut short has not seen its learning rate fall, and ranks otherwise than a whole one.

Nothing is trained here and nothing is drawn: the same scores lead the same way, so that whoever
keeps the scores can go on after a kill.
"""

import itertools
import math
import statistics
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, replace

from aesam.parts import checks
from aesam.searching.ranges import Range

#: Scores of this size and beyond count as diverged: their squares could not be told.
LARGEST = 1e100

#: Settings by name, in the order in which they are searched.
Point = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Try:
    """One training to be made."""

    point: Point
    seed: int

    @property
    def settings(self) -> dict[str, float]:
        """The settings by name."""
        return dict(self.point)


@dataclass(frozen=True)
class Round:
    """Trainings that do not need each other: values of a setting, up to so many seeds."""

    setting: str
    values: tuple[float, ...]
    seeds: int
    tries: tuple[Try, ...]

    def __str__(self) -> str:
        shown = " ".join(f"{value:g}" for value in self.values)
        return f"{self.setting} {shown} with {self.seeds} seed{'s' * (self.seeds > 1)}"


@dataclass(frozen=True)
class Trial:
    """Settings that a search tried, and what came of it.

    Args:
        settings: the settings by name.
        scores: what each seed scored; None for one that diverged.
        rung: for how many rounds of more and more seeds they were good enough, from 1.

    >>> trial = Trial({"rho": 0.1}, (0.8, 0.9, None), rung=2)
    >>> trial.n, round(trial.mean, 2), trial.diverged
    (3, 0.85, 1)
    """

    settings: Mapping[str, float]
    scores: tuple[float | None, ...]
    rung: int

    @property
    def n(self) -> int:
        """How many seeds they were tried with."""
        return len(self.scores)

    @property
    def diverged(self) -> int:
        """How many of them diverged; one is enough to come after all that did not."""
        return self.scores.count(None)

    @property
    def mean(self) -> float | None:
        """Mean over the seeds that did not diverge; None where all did."""
        return mean_of(self._numbers) if self._numbers else None

    @property
    def std(self) -> float | None:
        """Sample deviation over them; None for fewer than two."""
        return statistics.stdev(self._numbers) if len(self._numbers) > 1 else None

    @property
    def _numbers(self) -> list[float]:
        return [score for score in self.scores if score is not None]


@dataclass(frozen=True)
class Curve:
    """All values of one setting that were tried, rising, with the other settings as they stood."""

    setting: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class _End:
    """What the last search of a setting came to, beside what the others were then."""

    values: list[float]
    is_at_edge: bool
    notes: list[str]


class WideningSearch:
    """The search: make the trainings of :attr:`round`, :meth:`tell` their scores, until it is None.

    For each setting it asks for at most ``len(seeds) * (values to start from + 1 + limit)``
    trainings, and for ``len(seeds) * (3 + limit)`` where it is searched once more; each once.

    Args:
        ranges: the settings, the one to search first first.
        seeds: whole numbers; all values are tried with the first.
        limit: how many values may be added to those that a setting starts from, 0 or more.
        higher_is_better: False where scores are losses; True by default.

    >>> search = WideningSearch([Range("rho", (0.1, 0.2), usual=0.1)], seeds=[0], limit=6)
    >>> while search.round:
    ...     search.tell({one: -abs(one.settings["rho"] - 0.9) for one in search.round.tries})
    >>> search.best, [trial.settings["rho"] for trial in search.trials], search.notes
    ({'rho': 0.8}, [0.1, 0.2, 0.4, 0.8, 1.6], [])
    """

    def __init__(
        self,
        ranges: Iterable[Range],
        *,
        seeds: Iterable[int],
        limit: int,
        higher_is_better: bool = True,
    ) -> None:
        self.ranges, self.seeds = tuple(ranges), tuple(dict.fromkeys(seeds))
        self.limit = checks.whole("limit", limit, 0)
        if not self.ranges or not self.seeds:
            raise ValueError("a search needs at least one setting and at least one seed")
        self.rungs, self.sign = rungs(len(self.seeds)), 1 if higher_is_better else -1
        self.curves: list[Curve] = []
        self._at = {each.name: each.usual for each in self.ranges}
        self._ends: dict[str, _End] = {}
        self._scores: dict[Point, dict[int, float | None]] = {}
        self._found = True
        self._rounds = self._walk()
        self.round: Round | None = next(self._rounds, None)

    def tell(self, scores: Mapping[Try, float | None]) -> None:
        """Go on with the scores of all trainings of the round.

        None stands for a training that diverged, and so do scores that are not finite.
        """
        if self.round is None:
            raise ValueError("the search is over: there is nothing to be told")
        for one in self.round.tries:
            score = scores[one]
            diverged = score is None or not abs(score) < LARGEST
            self._scores.setdefault(one.point, {})[one.seed] = None if diverged else score
        self.round = next(self._rounds, None)

    @property
    def best(self) -> dict[str, float] | None:
        """The best settings so far; None where everything diverged."""
        return dict(self._at) if self._found else None

    @property
    def trials(self) -> list[Trial]:
        """Everything that was tried, in the order in which it was first asked for."""
        return [self._trial(point) for point in self._scores]

    @property
    def at_edge(self) -> list[str]:
        """The settings whose best value is at the edge of what was tried."""
        return [name for name, end in self._ends.items() if end.is_at_edge]

    @property
    def notes(self) -> list[str]:
        """What is to be known of the result, in sentences."""
        return [note for end in self._ends.values() for note in end.notes]

    # The walk ------------------------------------------------------------------------------------

    def _walk(self) -> Generator[Round, None, None]:
        for each in self.ranges:
            yield from self._search(each)
            if not self._found:
                return
        for place, each in enumerate(self.ranges):
            if any(self._at[later.name] != later.usual for later in self.ranges[place + 1 :]):
                yield from self._search(self._around_best(each))

    def _search(self, each: Range) -> Generator[Round, None, None]:
        line = _Line(self, each)
        yield from line.walk()
        self.curves.append(Curve(each.name, tuple(map(self._trial, line.points()))))
        self._ends[each.name] = _End(line.values, line.is_at_edge, line.notes())
        if line.best is None:
            self._found = False
        else:
            self._at[each.name] = line.best

    def _around_best(self, each: Range) -> Range:
        """The best value that was found for a setting, with those beside it."""
        best, tried = self._at[each.name], self._ends[each.name].values
        place = tried.index(best)
        return replace(each, start=tuple(tried[max(0, place - 1) : place + 2]), usual=best)

    def point(self, name: str, value: float) -> Point:
        """The settings as they stand, but for one."""
        return tuple({**self._at, name: value}.items())

    def scores(self, point: Point) -> dict[int, float | None]:
        """What a point has scored, by seed."""
        return self._scores.get(point, {})

    def _trial(self, point: Point) -> Trial:
        scores = self._scores[point]
        reached = sum(size <= len(scores) for size in self.rungs)
        in_order = tuple(scores[seed] for seed in self.seeds if seed in scores)
        return Trial(dict(point), in_order, reached)


class _Line:
    """The search of one setting, with the others as they stand."""

    def __init__(self, search: WideningSearch, each: Range) -> None:
        self.search, self.range = search, each
        usual = [each.usual] if search.scores(search.point(each.name, each.usual)) else []
        self.values = sorted({*each.start, *usual})  # what is known already costs nothing
        self.left = search.limit
        self.best: float | None = None

    def walk(self) -> Generator[Round, None, None]:
        """Climb the rungs; with values beyond the edge, or nearer the best, climb again."""
        while True:
            more = (yield from self._climb()) or self._nearer()
            if not more:
                return
            self.left -= len(more)
            self.values = sorted([*self.values, *more])

    def _climb(self) -> Generator[Round, None, list[float]]:
        """Seeds for fewer and fewer values; returns what to add as soon as that is known."""
        going_on: Collection[float] = self.values
        for size in self.search.rungs:
            going_on = {*going_on, *(v for v in self.values if len(self._scores(v)) >= size)}
            yield from self._try(going_on, size)
            while more := self._to_compare_with(going_on, size) - going_on:
                going_on |= more
                yield from self._try(going_on, size)
            self.best = self._best_of(going_on, size)
            if wider := self._wider(size):
                return wider
            ranked = self._ranked(going_on, size)
            better_half = ranked[: math.ceil(len(ranked) / 2)]
            going_on = {*better_half, *self._to_compare_with(going_on, size)}
        return []

    def _try(self, values: Collection[float], size: int) -> Generator[Round, None, None]:
        """Those of the first ``size`` seeds that the values lack; none for what has diverged."""
        seeds = self.search.seeds[:size]
        tries = [
            Try(self._point(value), seed)
            for seed in seeds
            for value in sorted(values)
            if self._is_alive(value) and seed not in self._scores(value)
        ]
        if tries:
            asked = {one.settings[self.range.name] for one in tries}
            yield Round(self.range.name, tuple(sorted(asked)), size, tuple(tries))

    def _to_compare_with(self, values: Collection[float], size: int) -> set[float]:
        """The best of ``values`` and those beside it; where all of them diverged, all others."""
        best, beside = self._best_of(values, size), self.values
        if best is not None:
            place = self.values.index(best)
            beside = self.values[max(0, place - 1) : place + 2]
        return {value for value in beside if self._is_alive(value)}

    def _wider(self, size: int) -> list[float]:
        """The values to add: outside of an edge that the best is at, as long as there are any."""
        if self.best is None:
            sides = [False] * (self.values[0] > 0) + [True] * (self.values[-1] < 0)  # toward 0
        else:
            sides = [up for up in (True, False) if self._is_edge(self.best, up, size)]
        beyond = [self.range.beyond(self.values, up=up) for up in sides]
        return [value for value in beyond if value is not None][: self.left]

    def _nearer(self) -> list[float]:
        """The values to add beside the best, then beside those that may be as good as it.

        None where the neighbours are near already, and no more than may be added.
        """
        best = self.best
        if best is None or not self.range.is_fine:
            return []
        middles = [
            middle
            for low, high in itertools.pairwise(self.values)
            if self._may_be_best(low) or self._may_be_best(high)
            if (middle := self.range.between(low, high)) is not None
        ]
        return sorted(middles, key=lambda middle: abs(middle - best))[: self.left]

    def _may_be_best(self, value: float) -> bool:
        """Whether a value that has every seed is within one standard error of the best."""
        size = len(self.search.seeds)
        has_all = self._is_alive(value) and len(self._scores(value)) == size
        return self.best is not None and has_all and self._lag(value, self.best, size) <= 0.0

    def _is_edge(self, value: float, up: bool, size: int) -> bool:
        """Whether better values may lie beyond: not beyond a bound, nor where all is level."""
        edge = self.values[-1 if up else 0]
        return value == edge and not self.range.is_bound(edge) and not self._is_level(up, size)

    def _is_level(self, up: bool, size: int) -> bool:
        """Whether an edge is within one standard error of its neighbour, over the same seeds."""
        if len(self.values) == 1:
            return False
        edge, beside = self.values[:-3:-1] if up else self.values[:2]
        return self._is_alive(beside) and self._lag(beside, edge, size) <= 0.0

    def _lag(self, value: float, other: float, size: int) -> float:
        """By how much more than a standard error a value is behind another, over the same seeds."""
        pairs = zip(self._first(other, size), self._first(value, size), strict=True)
        gaps = [theirs - ours for theirs, ours in pairs]
        error = statistics.stdev(gaps) / math.sqrt(size) if size > 1 else 0.0
        return mean_of(gaps) - error

    # What is known of a value --------------------------------------------------------------------

    def _point(self, value: float) -> Point:
        return self.search.point(self.range.name, value)

    def points(self) -> list[Point]:
        """All that was tried, by rising value."""
        return [point for value in self.values if self.search.scores(point := self._point(value))]

    def _scores(self, value: float) -> dict[int, float | None]:
        return self.search.scores(self._point(value))

    def _is_alive(self, value: float) -> bool:
        return None not in self._scores(value).values()

    def _first(self, value: float, size: int) -> list[float]:
        """The scores of the first seeds; higher is better."""
        scores = self._scores(value)
        found = [scores[seed] for seed in self.search.seeds[:size]]
        return [self.search.sign * score for score in found if score is not None]

    def _ranked(self, values: Collection[float], size: int) -> list[float]:
        """Those that did not diverge, the best first; of equal ones the smaller."""
        alive = [value for value in sorted(values) if self._is_alive(value)]
        return sorted(alive, key=lambda value: -mean_of(self._first(value, size)))

    def _best_of(self, values: Collection[float], size: int) -> float | None:
        return next(iter(self._ranked(values, size)), None)

    # How it ended --------------------------------------------------------------------------------

    @property
    def shown(self) -> str:
        """The values that were tried, for a sentence."""
        return ", ".join(f"{value:g}" for value in self.values)

    @property
    def is_at_edge(self) -> bool:
        """Whether better values may lie beyond those that were tried."""
        return self.best is not None and any(
            self._is_edge(self.best, up, len(self.search.seeds)) for up in (True, False)
        )

    def notes(self) -> list[str]:
        """What is to be known of a best value that is none, or has nothing on one of its sides."""
        if self.best is None:
            return [f"every {self.range.name} that was tried diverged: {self.shown}"]
        if self.best not in (self.values[0], self.values[-1]):
            return []
        name, best, up = self.range.name, f"{self.best:g}", self.best == self.values[-1]
        if self.is_at_edge:
            side, added = "larger" if up else "smaller", self.search.limit - self.left
            told = (
                f"the best {name} is still at the edge, {best}: a {side} one may be better "
                f"({added} of at most {self.search.limit} values were added)"
            )
            return [told]
        if self.range.is_bound(self.best):
            return [f"the best {name} is {best}, beyond which there is nothing"]
        which, beside = ("largest", -2) if up else ("smallest", 1)
        told = (
            f"the best {name}, {best}, is the {which} that was tried, but within one standard "
            f"error of {self.values[beside]:g}, and so counts as inside"
        )
        return [told]


def rungs(seeds: int) -> tuple[int, ...]:
    """How many seeds a value has had at each rung: 1, 2, 4, … and all.

    >>> rungs(3), rungs(8)
    ((1, 2, 3), (1, 2, 4, 8))
    """
    return (*(2**i for i in range((seeds - 1).bit_length())), seeds)


def mean_of(values: Collection[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)
