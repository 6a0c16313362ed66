"""``aesam.search``: the search around a training of the user's own."""

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, get_args

from aesam.parts import checks
from aesam.registry import method_records
from aesam.searching.kept import KeptScores
from aesam.searching.ranges import Range
from aesam.searching.widening import LARGEST, Round, Trial, WideningSearch

Mode = Literal["max", "min"]
Bounds = tuple[float | None, float | None]
Diverged = type[Exception] | tuple[type[Exception], ...]

#: Where the function takes a seed and nobody says which.
SEEDS = (0, 1, 2)
LIMIT = 6


@dataclass(frozen=True)
class SearchResult:
    """How a search ended.

    Args:
        best: the best settings by name; None where everything diverged.
        trials: everything that was tried, in the order in which it was begun.
        notes: what is to be known of it, in sentences: best values at an edge or a bound.
        at_edge: the settings whose best value is at the edge of what was tried, so that better
            ones may lie beyond; empty for a search that found what it was after.

    >>> trial = Trial({"rho": 0.1}, (0.8,), rung=1)
    >>> SearchResult({"rho": 0.1}, (trial,), (), ()).score
    0.8
    """

    best: Mapping[str, float] | None
    trials: tuple[Trial, ...]
    notes: tuple[str, ...]
    at_edge: tuple[str, ...]

    @property
    def score(self) -> float | None:
        """The mean score of the best settings; None where everything diverged."""
        return next((trial.mean for trial in self.trials if trial.settings == self.best), None)


def search(
    train_and_validate: Callable[..., Any],
    *,
    seeds: Sequence[int] | None = None,
    limit: int = LIMIT,
    fine: bool = False,
    mode: Mode = "max",
    bounds: Mapping[str, Bounds] | None = None,
    diverged: Diverged = FloatingPointError,
    keep: str | os.PathLike[str] | None = None,
    tell: Callable[[str], None] | None = None,
    **settings: Sequence[float],
) -> SearchResult:
    """Find a radius, and other settings, for a training of your own.

    The values of a setting widen by doubling and halving until the best is inside them; an edge
    that is within one standard error of its neighbour, or a natural bound, counts as inside. All
    values are tried with the first seed, and only those that do well with more. Settings are
    searched one after the other, in the order given: name ``rho`` first. One that was searched
    beside a usual value which another search then left is searched once more around its best. At
    most ``len(seeds) * (values + 1 + limit)`` trainings are made for each, and as many again.

    Args:
        train_and_validate: a function that trains, and returns one number measured on data that
            are neither trained nor tested on. It is called with the settings by keyword, and with
            ``seed`` if it takes one. What is not searched at the moment is at its default in the
            function's signature, or else at the middle value given.
        seeds: whole numbers; ``(0, 1, 2)`` by default where the function takes a seed. More seeds
            make the choice surer; with one there is no standard error.
        limit: how many values may be added to those of each setting, 0 or more; 6 by default,
            which is 64-fold in one direction.
        fine: whether values between the best and its neighbours are tried, too, once the best is
            inside: a radius may be too large at twice a value that is too small. False by default.
        mode: ``"max"`` (the default) where higher is better, ``"min"`` for losses.
        bounds: ``{"name": (least, most)}`` of settings with natural bounds; None for none. Those of
            the library's own settings (``rho``, ``p``, ``k``, …) are known.
        diverged: an exception class, or a tuple of some, that the function raises for a training
            that diverged; ``FloatingPointError`` by default, and with it ``NonFiniteGradient``.
            So does a score that is not finite. Such settings are never the best.
        keep: a file for the scores. Called again with it, the search goes on where it was; more
            values, seeds or a higher limit add to it. Take another file when the training changes.
        tell: called with a line of text before each round of trainings, such as ``print``; None,
            the default, for nothing.
        settings: the values to start from, by the name of each setting: ``rho=(0.05, 0.1, 0.2)``.
            Where they are whole numbers, only whole numbers are tried.

    >>> def train_and_validate(rho, seed):
    ...     return 90 - (rho - 1.5) ** 2 + 0.01 * seed  # train, then measure on validation data
    >>> found = search(train_and_validate, rho=(0.05, 0.1, 0.2))
    >>> found.best, found.at_edge, len(found.trials)
    ({'rho': 1.6}, (), 7)
    """
    if mode not in get_args(Mode):
        raise ValueError(f'mode must be "max" or "min", got {mode!r}')
    checks.flag("fine", fine)
    takes_seed = _takes(train_and_validate, "seed")
    walk = WideningSearch(
        [replace(r, is_fine=fine) for r in _ranges(train_and_validate, settings, bounds or {})],
        seeds=_seeds(seeds, takes_seed),
        limit=limit,
        higher_is_better=mode == "max",
    )
    kept = KeptScores(keep, of=_name_of(train_and_validate), settings=[*settings], mode=mode)
    while walk.round is not None:
        _tell(tell, walk.round, kept)
        for one in walk.round.tries:
            if one not in kept.scores:
                given = one.settings | ({"seed": one.seed} if takes_seed else {})
                kept.add(one, _score(train_and_validate, given, diverged))
        walk.tell(kept.scores)
    return SearchResult(walk.best, tuple(walk.trials), tuple(walk.notes), tuple(walk.at_edge))


def _tell(tell: Callable[[str], None] | None, now: Round, kept: KeptScores) -> None:
    if tell is not None:
        before = sum(one in kept.scores for one in now.tries)
        plural = "s" * (len(now.tries) > 1)
        made = f", {before} made before" if before else ""
        tell(f"{now}: {len(now.tries)} training{plural}{made}")


def _score(train: Callable[..., Any], given: dict[str, Any], diverged: Diverged) -> float | None:
    try:
        found = train(**given)
    except diverged:
        return None
    if not isinstance(found, Real) and getattr(found, "shape", None) == ():
        found = found.item()  # of a tensor that holds one number
    number = checks.real(f"what train_and_validate returns for {given}", found, "one number")
    return number if abs(number) < LARGEST else None


# What is given -----------------------------------------------------------------------------------


def _ranges(
    train: Callable[..., Any], settings: Mapping[str, Sequence[float]], bounds: Mapping[str, Bounds]
) -> list[Range]:
    if not settings:
        raise ValueError("name at least one setting with values to start from: rho=(0.05, 0.1)")
    for name in bounds:
        if name not in settings:
            raise ValueError(f"bounds has {name}, which is not searched: {', '.join(settings)} is")
    return [_range(train, name, start, bounds.get(name)) for name, start in settings.items()]


def _range(
    train: Callable[..., Any], name: str, start: Sequence[float], bounds: Bounds | None
) -> Range:
    """A setting with the bounds that are given, or else those of the library's of its name."""
    if not _takes(train, name):
        raise ValueError(f"{name} is searched, but train_and_validate takes no keyword {name}")
    if isinstance(start, str | bytes) or not isinstance(start, Sequence):  # pyright: ignore
        raise TypeError(f"{name} must be values to start from, as (0.05, 0.1), got {start!r}")
    for value in start:
        checks.finite(name, value)
    usual = _usual(train, name, start)
    if bounds is not None:
        return Range(name, tuple(start), usual, *_ends(name, bounds))
    known = [s for record in method_records() for s in record.settings if s.name == name]
    if not known:
        return Range(name, tuple(start), usual)
    try:
        return known[0].range_from(start, usual)
    except ValueError as error:
        other = f"for another {name} give bounds={{{name!r}: (None, None)}}"
        raise ValueError(f"{error}, as the library's {name}; {other}") from None


def _usual(train: Callable[..., Any], name: str, start: Sequence[float]) -> float:
    """A setting's value while others are searched: its own default, or the middle one given."""
    parameter = inspect.signature(train).parameters.get(name)
    if parameter is not None and type(parameter.default) in (int, float):
        return parameter.default
    return sorted(start)[len(start) // 2] if start else 0.0


def _ends(name: str, bounds: Bounds) -> tuple[float, float]:
    """The bounds as numbers; None stands for none."""
    try:
        least, most = bounds
    except (TypeError, ValueError):
        raise ValueError(f"bounds of {name} must be (least, most), got {bounds!r}") from None
    ends = (
        -math.inf if least is None else checks.real(f"bounds of {name}", least, "numbers or None"),
        math.inf if most is None else checks.real(f"bounds of {name}", most, "numbers or None"),
    )
    if not ends[0] < ends[1]:
        raise ValueError(f"bounds of {name} must be (least, most), got {bounds!r}")
    return ends


def _seeds(seeds: Sequence[int] | None, takes_seed: bool) -> tuple[int, ...]:
    if seeds is None:
        return SEEDS if takes_seed else SEEDS[:1]
    if isinstance(seeds, str | bytes) or not isinstance(seeds, Sequence) or not seeds:  # pyright: ignore
        raise TypeError(f"seeds must be whole numbers, as (0, 1, 2), got {seeds!r}")
    if not takes_seed:
        raise ValueError(f"train_and_validate takes no seed, so that seeds={seeds!r} mean nothing")
    return tuple(checks.seed("seeds", seed) for seed in seeds)


def _takes(train: Callable[..., Any], keyword: str) -> bool:
    if not callable(train):
        raise TypeError(f"train_and_validate must be a function, got {train!r}")
    parameters = inspect.signature(train).parameters
    by_name = parameters.get(keyword)
    if by_name is not None:
        return by_name.kind in (by_name.POSITIONAL_OR_KEYWORD, by_name.KEYWORD_ONLY)
    return any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _name_of(train: Callable[..., Any]) -> str:
    return getattr(train, "__qualname__", type(train).__qualname__)
