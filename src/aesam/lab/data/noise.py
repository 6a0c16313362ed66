"""Wrong labels on purpose: the paper's label noise."""

import torch
from torch import Tensor

from aesam.lab.data import draws
from aesam.lab.data.sets import require_share
from aesam.lab.errors import UsageError, unknown

KINDS = ("different", "uniform")


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
    require_share("noise", share, zero=True)
    if kind not in KINDS:
        raise unknown("kind of label noise", kind, KINDS)
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
