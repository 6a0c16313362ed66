"""What a step costs: each row's against ERM's, step by step in turn, in one process.

Two runs at different times on a machine that does other things cannot be compared to a few percent.
Here every step of a row stands between two of ERM's on batches of the same size, in processor time
on one thread, and what counts is the median of the ratios. A whole training is passed through in
these few steps, so that policies that change over it show all that they do; steps with and without
a second gradient are told apart, and the row's finished runs say how many of each there are.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from aesam.lab import data, lab_methods
from aesam.lab.config import Method, Run
from aesam.lab.data.run_samples import RunSamples, samples_of
from aesam.lab.training.engine import Engine, accelerator_for, threads
from aesam.lab.training.passes import Passes

#: Steps of each row that are measured, and before them some that are not.
STEPS, WARM = 60, 5


@dataclass(frozen=True)
class StepTime:
    """Times of a row's steps as multiples of ERM's; None for a kind of step that did not come.

    Args:
        plain: of one without a second gradient.
        fired: of one with it.
        steps: how many were measured.

    >>> StepTime(1.1, 2.1, 60).mean(0.5)
    1.6
    """

    plain: float | None
    fired: float | None
    steps: int

    def mean(self, share: float) -> float:
        """Of a run with a second gradient on this share of its steps."""
        plain = self.fired if self.plain is None else self.plain
        fired = self.plain if self.fired is None else self.fired
        if plain is None or fired is None:
            raise ValueError("no step was measured")
        return share * fired + (1.0 - share) * plain


class Stepper:
    """A run of so many steps, taken one by one.

    Args:
        run: what to run.
        samples: its samples.
        steps: the length of its whole training.
        accelerator: Accelerate's view of the machine.
    """

    def __init__(self, run: Run, samples: RunSamples, steps: int, accelerator: Any) -> None:
        training = replace(run.training, epochs=1, warmup=0)
        batches = data.Batches(
            samples.train,
            samples.data_set,
            training.batch_size,
            run.seed,
            augment=run.data.augment,
            device=accelerator.device,
            channels_last=training.channels_last,
        )
        self._engine = Engine(
            replace(run, training=training),
            samples.data_set,
            steps,
            accelerator,
            lab_methods.companion_of(run.method),
        )
        self._passes = Passes(self._engine, training)
        self._batches = chain.from_iterable(batches.epoch(number) for number in count())

    def step(self) -> tuple[float, bool]:
        """Processor seconds of the next step, and whether it took a second gradient."""
        inputs, labels = next(self._batches)
        begin = time.process_time()
        self._passes.step(inputs, labels)
        seconds = time.process_time() - begin
        record = self._engine.opt.last_step
        return seconds, bool(record is not None and record.used_sam)


def step_times(
    runs: Mapping[str, Run], tell: Callable[[str, StepTime], None], steps: int = STEPS
) -> dict[str, StepTime]:
    """Each run's, told as they come; all must be of one bench."""
    found: dict[str, StepTime] = {}
    with threads(1):
        for name, run in runs.items():
            found[name] = _beside_erm(run, samples_of(run), steps)
            tell(name, found[name])
    return found


def _beside_erm(run: Run, samples: RunSamples, steps: int) -> StepTime:
    accelerator = accelerator_for(replace(run.training, cpu=True))
    # A step of ERM more than of the row, and no schedule may end before the last.
    total = steps + WARM + 1
    erm = Stepper(replace(run, method=Method("erm")), samples, total, accelerator)
    row = Stepper(run, samples, total, accelerator)
    for _ in range(WARM):
        erm.step()
        row.step()
    ratios: dict[bool, list[float]] = {True: [], False: []}
    before, _ = erm.step()
    for _ in range(steps):
        own, fired = row.step()
        after, _ = erm.step()
        ratios[fired].append(own / ((before + after) / 2))
        before = after
    return StepTime(
        statistics.median(ratios[False]) if ratios[False] else None,
        statistics.median(ratios[True]) if ratios[True] else None,
        steps,
    )
