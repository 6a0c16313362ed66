"""Where they are compared: each bench a training as it counts, and one to choose settings by.

Settings are chosen on samples of the training set that are held out, never on the test set, and
on as many training samples as there are afterwards where the data allow it.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from aesam.evidence.contenders import ALL, BESIDE, FINALISTS, SHARES, Contender, named
from aesam.lab.config import Run
from aesam.lab.data import data_record
from aesam.lab.errors import unknown

#: Settings are chosen with these seeds; what is reported has others.
SEARCH_SEEDS = (0, 1, 2)
FRESH_SEEDS = tuple(range(10, 20))


@dataclass(frozen=True)
class Bench:
    """A model on a data set with its training.

    Args:
        name: what files and commands call it.
        title: what readers call it.
        base: the run that counts, of any method.
        held_out: what of its data is otherwise where settings are chosen.
        radii: ρ to begin the search with, for methods whose record has the paper's grid.
        measure: what counts, ``"accuracy"`` (the default) or ``"loss"``.
        margin: a row is as good as SAM where its difference is surely not further below; 0.5
            (points) by default.
        contenders: who is compared unless a command says otherwise; all by default.
        lost: what a run counts whose loss is not finite; never asked for where accuracies count.
    """

    name: str
    title: str
    base: Run
    held_out: dict[str, Any]
    radii: tuple[float, ...]
    measure: Literal["accuracy", "loss"] = "accuracy"
    margin: float = 0.5
    contenders: tuple[Contender, ...] = ALL
    lost: float = math.inf

    @property
    def search(self) -> Run:
        """The run by which settings are chosen."""
        return replace(self.base, data=replace(self.base.data, **self.held_out))


def _digits(noise: float, *more: Contender) -> Bench:
    usual = data_record("digits").usual
    percent = round(100 * noise)
    return Bench(
        f"digits-{percent}",
        f"digits, {percent} % wrong labels",
        replace(usual, data=replace(usual.data, noise=noise)),
        {"holdout": 0.1},
        (0.25, 0.5, 1.0, 2.0),
        contenders=(*ALL, *more),
    )


def _clean_digits() -> Bench:
    usual = data_record("digits").usual
    return Bench(
        "digits-clean",
        "400 digits",
        replace(usual, data=replace(usual.data, subset=400)),
        {"subset": 800, "holdout": 0.5},
        (0.1, 0.2, 0.4, 0.8),
    )


def _evaluated_last(base: Run) -> Run:
    """Without evaluations on the way, which nothing here reads: a fifth of the time on images."""
    return replace(base, training=replace(base.training, evaluate_every=base.training.epochs))


def _cifar(noise: float) -> Bench:
    """A regime in which ResNet-8 overfits: few images, no augmentation."""
    usual, percent = data_record("cifar10-16").usual, round(100 * noise)
    kind = f"{percent} % wrong labels" if noise else "clean"
    return Bench(
        f"cifar-{percent or 'clean'}",
        f"CIFAR-10 at 16×16, 2,500 images, {kind}",
        _evaluated_last(replace(usual, data=replace(usual.data, subset=2500, noise=noise))),
        {"subset": 5000, "holdout": 0.5},
        (0.1, 0.2, 0.4, 0.8),
        contenders=named((*FINALISTS, *BESIDE)),
    )


def _text() -> Bench:
    """A regime in which the transformer overfits: few pieces, many epochs.

    The margin is a hundredth of a nat per character: one percent of the perplexity, and about a
    fifth of what SAM gains on the least loss of ERM on its way, where the regime was chosen
    (``results/frontier/text-regimes.json``). A run that lost its loss counts as one that guesses
    among the 63 characters.
    """
    usual = data_record("kjv-text").usual
    return Bench(
        "text",
        "King James Bible, 1,000 pieces of 64 characters",
        _evaluated_last(
            replace(
                usual,
                data=replace(usual.data, subset=1000),
                training=replace(usual.training, epochs=40, batch_size=16),
            )
        ),
        {"subset": 2000, "holdout": 0.5},
        (0.05, 0.1, 0.2, 0.4),
        measure="loss",
        margin=0.01,
        contenders=named((*FINALISTS, *BESIDE)),
        lost=math.log(63),
    )


BENCHES = {
    bench.name: bench
    for bench in (
        _digits(0.4, *SHARES),
        _digits(0.6),
        _digits(0.2),
        _digits(0.8),
        _clean_digits(),
        _cifar(0.0),
        _cifar(0.4),
        _text(),
    )
}


def bench_of(name: str) -> Bench:
    """The bench with this name; an unknown one is refused with the near ones."""
    if name not in BENCHES:
        raise unknown("bench", name, list(BENCHES))
    return BENCHES[name]
