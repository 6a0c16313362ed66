"""The whole computation: its sizes, its many small pieces, and what comes out."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aesam.lab.errors import unknown
from aesam.paper.theory.bounds import least_steps
from aesam.paper.theory.descent import ERM, HALF, PATTERNS, SAM, Pattern
from aesam.paper.theory.lemmas import (
    LemmaCheck,
    VarianceCheck,
    full_batch_lemma,
    mini_batch_lemma,
    variance_check,
)
from aesam.paper.theory.problems import Problem, problems, shifted_cosines, without_noise
from aesam.paper.theory.sides import (
    Sides,
    full_batch_sides,
    larger_step_sides,
    mini_batch_sides,
)

BATCH = 4
LARGE_BATCH = 16
RHO_BETA = (0.1, 0.25, 0.5, 1.0, 2.0)  # the lemmas hold for any ρ
LEMMA_BATCH = 2  # all pairs of samples can be taken

Piece = Callable[[], list[Sides]]


@dataclass(frozen=True)
class Sizes:
    """The sizes of one computation.

    Args:
        full_steps: T of the full-batch theorem.
        mini_steps: T of the mini-batch theorem.
        most_steps: where no T of these is large enough for the proof, go on to one that is, up to
            this one.
        larger_steps: T of the corollary with the larger step.
        counter_steps: T of the counter-example.
        repetitions: runs with batches of their own that an expectation is the mean of.
        adaptive_steps: steps to spend on a policy that takes its repetitions one by one.
        functions: random functions that the lemmas are tried on.
        points: random points of each.
    """

    full_steps: tuple[int, ...]
    mini_steps: tuple[int, ...]
    most_steps: int
    larger_steps: tuple[int, ...]
    counter_steps: tuple[int, ...]
    repetitions: int
    adaptive_steps: int
    functions: int
    points: int

    def repetitions_for(self, steps: int, *, one_by_one: bool) -> int:
        """How many repetitions of ``steps`` steps: fewer where each costs a run of its own."""
        if not one_by_one:
            return self.repetitions
        return min(self.repetitions, max(4, self.adaptive_steps // steps))


SIZES = {
    "small": Sizes(
        full_steps=(10, 30, 100, 300),
        mini_steps=(16, 51, 160, 512),
        most_steps=4096,
        larger_steps=(51, 160),
        counter_steps=(4, 16, 64, 256, 1024, 4096),
        repetitions=128,
        adaptive_steps=1024,
        functions=20,
        points=200,
    ),
    "paper": Sizes(
        full_steps=(10, 30, 100, 300, 1000, 3000),
        mini_steps=(16, 51, 160, 512, 1600, 4096),
        most_steps=4096,
        larger_steps=(16, 51, 160, 512, 1600, 4096),
        counter_steps=(4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        repetitions=512,
        adaptive_steps=32768,
        functions=100,
        points=400,
    ),
}


def sizes_of(preset: str) -> Sizes:
    """The sizes of a preset."""
    if preset not in SIZES:
        raise unknown("preset", preset, SIZES)
    return SIZES[preset]


@dataclass(frozen=True)
class TheoryResult:
    """Both sides of every bound that was computed, the lemmas and the variance identity."""

    preset: str
    problems: tuple[Mapping[str, str | float | int], ...]
    rows: tuple[Sides, ...]
    counter_example: tuple[Sides, ...]
    lemmas: tuple[LemmaCheck, ...]
    variances: tuple[VarianceCheck, ...]

    @property
    def broken(self) -> tuple[Sides | LemmaCheck | VarianceCheck, ...]:
        """What was claimed and did not hold; empty if the theory is right and so is the code."""
        bounds = [row for row in (*self.rows, *self.counter_example) if row.verdict == "BROKEN"]
        checks = [check for check in (*self.lemmas, *self.variances) if not check.holds]
        return (*bounds, *checks)

    def as_json(self) -> dict[str, Any]:
        """Every number of the tables and figures, in plain values."""
        return {
            "preset": self.preset,
            "problems": [dict(problem) for problem in self.problems],
            "rows": [row.as_json() for row in self.rows],
            "counter_example": [row.as_json() for row in self.counter_example],
            "lemmas": [check.as_json() for check in self.lemmas],
            "variances": [check.as_json() for check in self.variances],
            "broken": [check.as_json() for check in self.broken],
        }


def compute(
    preset: str, sizes: Sizes, tell: Callable[[int, int], None] = lambda _done, _of: None
) -> TheoryResult:
    """All pieces; ``tell`` is called after each with how many are done, and of how many."""
    pieces = [*_full_batch(sizes), *_mini_batch(sizes), *_larger_step(sizes)]
    counter = [partial(_counter_example, steps) for steps in sizes.counter_steps]
    total = len(pieces) + len(counter) + 2
    done = 0

    def did(count: int = 1) -> None:
        nonlocal done
        done += count
        tell(done, total)

    def sides(these: list[Piece]) -> list[Sides]:
        found: list[Sides] = []
        for piece in these:
            found += piece()
            did()
        return found

    rows, counter_rows = sides(pieces), sides(counter)
    lemmas = _lemmas(sizes)
    did()
    variances = _variances()
    did()
    return TheoryResult(
        preset=preset,
        problems=tuple(_described(p) for p in problems()),
        rows=tuple(rows),
        counter_example=tuple(counter_rows),
        lemmas=tuple(lemmas),
        variances=tuple(variances),
    )


def _full_batch(sizes: Sizes) -> Iterator[Piece]:
    for problem in problems():
        for steps in sizes.full_steps:
            for pattern in PATTERNS:
                yield lambda p=problem, a=pattern, t=steps: [full_batch_sides(p, a, t)]


def _mini_batch(sizes: Sizes) -> Iterator[Piece]:
    for problem in problems():
        for steps, patterns in steps_and_patterns(problem, sizes):
            for pattern in patterns:
                many = sizes.repetitions_for(steps, one_by_one=pattern.by_batch)
                yield partial(
                    mini_batch_sides, problem, pattern, steps, batch=BATCH, repetitions=many
                )


def steps_and_patterns(problem: Problem, sizes: Sizes) -> Iterator[tuple[int, tuple[Pattern, ...]]]:
    """All patterns for each T; if no T is large enough for the proof, three for one that is."""
    for steps in sizes.mini_steps:
        yield steps, PATTERNS
    needed = math.ceil(least_steps(problem.beta))
    if max(sizes.mini_steps) < needed <= sizes.most_steps:
        yield needed, (ERM, HALF, SAM)


def _larger_step(sizes: Sizes) -> Iterator[Piece]:
    fixed = [pattern for pattern in PATTERNS if not pattern.by_batch]
    for problem in problems():
        for steps in sizes.larger_steps:
            for pattern in fixed:
                yield lambda p=problem, a=pattern, t=steps: [
                    larger_step_sides(p, a, t, batch=LARGE_BATCH, repetitions=sizes.repetitions)
                ]


def _counter_example(steps: int) -> list[Sides]:
    """Without noise a batch is the whole set, and one repetition is the expectation."""
    return mini_batch_sides(without_noise(), SAM, steps, batch=1, repetitions=1)[:1]


def _lemmas(sizes: Sizes) -> list[LemmaCheck]:
    random: list[Problem] = [shifted_cosines(seed) for seed in range(sizes.functions)]
    sets = [[problem] for problem in problems() if problem.name != random[0].name] + [random]
    few = max(1, sizes.points // 4)  # each is taken with all batches
    return [
        check
        for functions in sets
        for rho_beta in RHO_BETA
        for check in (
            full_batch_lemma(functions, rho_beta, sizes.points),
            mini_batch_lemma(functions, rho_beta, few, LEMMA_BATCH),
        )
    ]


def _variances() -> list[VarianceCheck]:
    return [
        variance_check(problem, batch=batch, points=3) for problem in problems() for batch in (1, 2)
    ]


def _described(problem: Problem) -> dict[str, str | float | int]:
    return {
        "name": problem.name,
        "beta": problem.beta,
        "full_beta": problem.full_beta,
        "variance": problem.variance,
        "weights": len(problem.start),
        "samples": problem.count,
        "least_steps": least_steps(problem.beta),
    }
