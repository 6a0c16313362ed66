"""The samples of a run: subset, validation split and label noise, fixed by its seed."""

from dataclasses import dataclass
from pathlib import Path

from aesam.lab import data
from aesam.lab.config import Run
from aesam.lab.data import AnySplit, DataSet

#: Seeds that must not depend on the run's, so that all runs share them.
_SUBSET_SEED = 20230501
_HOLDOUT_SEED = 20230502


@dataclass(frozen=True)
class RunSamples:
    """What is trained on, and what is evaluated on (``kind`` says which split that is)."""

    data_set: DataSet
    train: AnySplit
    held: AnySplit
    kind: str


def samples_of(run: Run, root: Path | None = None) -> RunSamples:
    """The run's training samples with their noise, and clean ones to evaluate on.

    The subset and the validation split are the same for all seeds, so that seeds can be paired and
    nothing is tuned on samples that another seed trains on; the noise follows the run's seed. The
    validation labels stay clean only where the test labels would: they are taken before the noise.
    ``root`` is where the data lie, if not where the run says.
    """
    data_set = data.load(run.data.name, root or run.data.root)
    train: AnySplit = data_set.train
    held: AnySplit = data_set.test
    kind = "test"
    if run.data.subset is not None:
        train = data.subset(train, run.data.subset, _SUBSET_SEED)
    if run.data.holdout > 0.0:
        train, held = data.hold_out(train, run.data.holdout, _HOLDOUT_SEED)
        kind = "validation"
    if run.data.noise > 0.0:
        noisy = data.flip_labels(
            train.labels, data_set.classes, run.data.noise, run.seed, run.data.noise_kind
        )
        train = train.with_labels(noisy)
    return RunSamples(data_set, train, held, kind)
