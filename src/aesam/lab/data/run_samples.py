"""The samples of a run: subset, validation split and label noise, fixed by its seed."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from aesam.lab import draws
from aesam.lab.config import Run
from aesam.lab.data.data_records import load
from aesam.lab.data.sets import AnySplit, DataSet, FolderSplit, Split, TextSplit
from aesam.lab.errors import UsageError, unknown
from aesam.lab.lab_methods import kept_share

#: Seeds that must not depend on the run's, so that all runs share them.
_SUBSET_SEED = 20230501
_HOLDOUT_SEED = 20230502
_KEPT_SEED = 20230503

#: Wrong labels are of the other classes, or of any.
NOISE_KINDS = ("different", "uniform")

#: Why a text takes no label noise.
NO_NOISE = "noise must be 0 for a text: its labels are its own next characters"

AnySplitT = TypeVar("AnySplitT", bound=Split | FolderSplit | TextSplit)


@dataclass(frozen=True)
class RunSamples:
    """What is trained on, and what is evaluated on (``kind`` says which split that is).

    ``kept`` is what the method keeps of the training samples to choose by, if it is such a one.
    """

    data_set: DataSet
    train: AnySplit
    held: AnySplit
    kind: str
    kept: AnySplit | None = None


def samples_of(run: Run, root: Path | None = None) -> RunSamples:
    """The run's training samples with their noise, and clean ones to evaluate on.

    The subset and the validation split are the same for all seeds, so that seeds can be paired and
    nothing is tuned on samples that another seed trains on; the noise follows the run's seed. The
    validation labels stay clean only where the test labels would: they are taken before the noise.
    What a method keeps for itself is taken after it, with wrong labels like those it trains on.
    ``root`` is where the data lie, if not where the run says.
    """
    data_set = load(run.data.name, root or run.data.root)
    train: AnySplit = data_set.train
    held: AnySplit = data_set.test
    kind = "test"
    if run.data.subset is not None:
        train = subset(train, run.data.subset, _SUBSET_SEED)
    if run.data.holdout > 0.0:
        train, held = hold_out(train, run.data.holdout, _HOLDOUT_SEED)
        kind = "validation"
    if run.data.noise > 0.0:
        if isinstance(train, TextSplit):
            raise UsageError(f"{NO_NOISE}, got noise={run.data.noise}")
        noisy = flip_labels(
            train.labels, data_set.classes, run.data.noise, run.seed, run.data.noise_kind
        )
        train = train.with_labels(noisy)
    kept, share = None, kept_share(run.method)
    if share > 0.0:
        train, kept = hold_out(train, share, _KEPT_SEED)
    return RunSamples(data_set, train, held, kind, kept)


def hold_out(split: AnySplitT, share: float, seed: int) -> tuple[AnySplitT, AnySplitT]:
    """A split cut in two: what remains to train on, and ``round(share * n)`` to validate on.

    Each class gives its proportional part, and a text whole blocks. Both keep the order of the
    original.
    """
    _require_share("holdout", share, zero=False)
    count = round(share * len(split))
    if not 0 < count < len(split):
        raise UsageError(
            f"holdout={share} of {len(split)} images leaves {len(split) - count} to train on and "
            f"{count} to validate on: both must have some"
        )
    if isinstance(split, TextSplit):
        held = draws.together(split.blocks, count, seed)
    else:
        held = draws.stratified(split.labels, count, seed)
    return _where(split, ~held), _where(split, held)


def subset(split: AnySplitT, count: int, seed: int) -> AnySplitT:
    """``count`` images, as evenly over the classes as there are images, in the original order.

    Of a text, so many pieces in whole blocks.

    A larger subset with the same seed contains a smaller one.
    """
    if not 0 < count <= len(split):
        raise UsageError(
            f"subset must be between 1 and the {len(split)} images there are, got {count}"
        )
    if isinstance(split, TextSplit):
        return _where(split, draws.together(split.blocks, count, seed))
    return _where(split, draws.balanced(split.labels, count, seed))


def flip_labels(
    labels: Tensor, classes: int, share: float, seed: int, kind: str = "different"
) -> Tensor:
    """A copy of ``labels`` in which exactly ``round(share * n)`` were drawn anew.

    ``"different"`` draws uniformly from the *other* classes, so each of them is wrong.
    ``"uniform"`` draws from all classes, so about one in ``classes`` stays right by chance.

    The seed fixes which labels and what they become. A larger share with the same seed keeps the
    wrong labels of a smaller one.

    >>> labels = torch.zeros(10, dtype=torch.int64)
    >>> int((flip_labels(labels, classes=3, share=0.6, seed=0) != labels).sum())
    6
    """
    _require_share("noise", share, zero=True)
    if kind not in NOISE_KINDS:
        raise unknown("kind of label noise", kind, NOISE_KINDS)
    if classes < 2:
        raise UsageError(f"label noise needs at least 2 classes, got classes={classes}")
    before = labels.cpu()
    if len(before) and not 0 <= int(before.min()) <= int(before.max()) < classes:
        raise ValueError(f"labels must lie in 0..{classes - 1} for classes={classes}")

    source = draws.generator("label noise", kind, seed)
    rows = torch.randperm(len(before), generator=source)[: round(share * len(before))]
    if kind == "different":
        drawn = (before + torch.randint(1, classes, before.shape, generator=source)) % classes
    else:
        drawn = torch.randint(0, classes, before.shape, generator=source)
    after = before.clone()
    after[rows] = drawn[rows]
    return after.to(labels.device)


def _where(split: AnySplitT, mask: Tensor) -> AnySplitT:
    return cast(AnySplitT, split.select(mask.nonzero().flatten()))  # select keeps the type


def _require_share(name: str, value: object, *, zero: bool) -> float:
    """``value`` as a share of a set: below 1, and above 0 unless ``zero`` is allowed."""
    allowed = "a number of at least 0 and below 1" if zero else "a number above 0 and below 1"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} must be {allowed}, got {value!r}")
    if not (0 <= value < 1) or (value == 0 and not zero):
        raise UsageError(f"{name} must be {allowed}, got {value!r}")
    return float(value)
