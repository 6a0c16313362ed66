"""The whole computation as a list of small jobs."""

import math
from collections.abc import Callable, Iterator
from functools import partial

from aesam.paper.theory.bounds import least_steps
from aesam.paper.theory.cosines import shifted_cosines
from aesam.paper.theory.full_batch import full_batch_sides
from aesam.paper.theory.lemmas import LemmaCheck, full_batch_lemma, mini_batch_lemma
from aesam.paper.theory.mini_batch import larger_step_sides, mini_batch_sides
from aesam.paper.theory.patterns import ERM, HALF, PATTERNS, SAM, Pattern
from aesam.paper.theory.presets import Preset
from aesam.paper.theory.problem import Problem
from aesam.paper.theory.problems import problems, without_noise
from aesam.paper.theory.result import TheoryResult
from aesam.paper.theory.sides import Sides
from aesam.paper.theory.variance import VarianceCheck, variance_check

BATCH = 4
LARGE_BATCH = 16
RHO_BETA = (0.1, 0.25, 0.5, 1.0, 2.0)  # the lemmas hold for any ρ
LEMMA_BATCH = 2  # all pairs of samples can be taken

Job = Callable[[], list[Sides]]


def run(name: str, preset: Preset, progress: Callable[[int, int], None] | None) -> TheoryResult:
    """Do all jobs; ``progress`` is called after each with how many are done, and of how many."""
    jobs = [*_full_batch(preset), *_mini_batch(preset), *_larger_step(preset)]
    counter = [partial(_counter_example, steps) for steps in preset.counter_steps]
    total = len(jobs) + len(counter) + 2
    done = 0

    def did(count: int = 1) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    def sides(these: list[Job]) -> list[Sides]:
        found: list[Sides] = []
        for job in these:
            found += job()
            did()
        return found

    rows, counter_rows = sides(jobs), sides(counter)
    lemmas = _lemmas(preset)
    did()
    variances = _variances()
    did()
    return TheoryResult(
        preset=name,
        problems=tuple(_described(p) for p in problems()),
        rows=tuple(rows),
        counter_example=tuple(counter_rows),
        lemmas=tuple(lemmas),
        variances=tuple(variances),
    )


def _full_batch(preset: Preset) -> Iterator[Job]:
    for problem in problems():
        for steps in preset.full_steps:
            for pattern in PATTERNS:
                yield lambda p=problem, a=pattern, t=steps: [full_batch_sides(p, a, t)]


def _mini_batch(preset: Preset) -> Iterator[Job]:
    for problem in problems():
        for steps, patterns in steps_and_patterns(problem, preset):
            for pattern in patterns:
                many = preset.repetitions_for(steps, one_by_one=pattern.by_batch)
                yield partial(
                    mini_batch_sides, problem, pattern, steps, batch=BATCH, repetitions=many
                )


def steps_and_patterns(
    problem: Problem, preset: Preset
) -> Iterator[tuple[int, tuple[Pattern, ...]]]:
    """All patterns for each T; if no T is large enough for the proof, three for one that is."""
    for steps in preset.mini_steps:
        yield steps, PATTERNS
    needed = math.ceil(least_steps(problem.beta))
    if max(preset.mini_steps) < needed <= preset.most_steps:
        yield needed, (ERM, HALF, SAM)


def _larger_step(preset: Preset) -> Iterator[Job]:
    fixed = [pattern for pattern in PATTERNS if not pattern.by_batch]
    for problem in problems():
        for steps in preset.larger_steps:
            for pattern in fixed:
                yield lambda p=problem, a=pattern, t=steps: [
                    larger_step_sides(p, a, t, batch=LARGE_BATCH, repetitions=preset.repetitions)
                ]


def _counter_example(steps: int) -> list[Sides]:
    """Without noise a batch is the whole set, and one repetition is the expectation."""
    return mini_batch_sides(without_noise(), SAM, steps, batch=1, repetitions=1)[:1]


def _lemmas(preset: Preset) -> list[LemmaCheck]:
    random: list[Problem] = [shifted_cosines(seed) for seed in range(preset.functions)]
    sets = [[problem] for problem in problems() if problem.name != random[0].name] + [random]
    few = max(1, preset.points // 4)  # each is taken with all batches
    return [
        check
        for functions in sets
        for rho_beta in RHO_BETA
        for check in (
            full_batch_lemma(functions, rho_beta, preset.points),
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
