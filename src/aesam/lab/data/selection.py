"""Parts of a split that keep its classes in proportion, fixed by a seed."""

from typing import TypeVar, cast

import torch
from torch import Tensor

from aesam.lab.data import draws
from aesam.lab.data.sets import FolderSplit, Split, require_share
from aesam.lab.errors import UsageError

AnySplitT = TypeVar("AnySplitT", bound=Split | FolderSplit)


def hold_out(split: AnySplitT, share: float, seed: int) -> tuple[AnySplitT, AnySplitT]:
    """A split cut in two: what remains to train on, and ``round(share * n)`` to validate on.

    Each class gives its proportional part. Both keep the order of the original.
    """
    require_share("holdout", share, zero=False)
    count = round(share * len(split))
    if not 0 < count < len(split):
        raise UsageError(
            f"holdout={share} of {len(split)} images leaves {len(split) - count} to train on and "
            f"{count} to validate on: both must have some"
        )
    held = stratified(split.labels, count, seed)
    return _where(split, ~held), _where(split, held)


def subset(split: AnySplitT, count: int, seed: int) -> AnySplitT:
    """``count`` images, as evenly over the classes as there are images, in the original order.

    A larger subset with the same seed contains a smaller one.
    """
    if not 0 < count <= len(split):
        raise UsageError(
            f"subset must be between 1 and the {len(split)} images there are, got {count}"
        )
    counts = split.labels.cpu().bincount()
    return _where(split, _pick(split.labels, _even(counts, count), "subset", seed))


def stratified(labels: Tensor, count: int, seed: int) -> Tensor:
    """A mask that picks exactly ``count`` of the labels, from each class its proportional part."""
    return _pick(labels, _proportional(labels.cpu().bincount(), count), "stratified", seed)


def _where(split: AnySplitT, mask: Tensor) -> AnySplitT:
    return cast(AnySplitT, split.select(mask.nonzero().flatten()))  # select keeps the type


def _pick(labels: Tensor, quotas: Tensor, purpose: str, seed: int) -> Tensor:
    """A mask of ``quotas[c]`` random members of each class c."""
    labels = labels.cpu()
    shuffled = torch.randperm(len(labels), generator=draws.generator(purpose, seed))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = labels.bincount()
    first = (sizes.cumsum(0) - sizes)[labels[by_class]]
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[by_class] = torch.arange(len(labels)) - first < quotas[labels[by_class]]
    return mask


def _proportional(sizes: Tensor, total: int) -> Tensor:
    """Whole quotas that sum to ``total``; what rounding leaves goes to the largest fractions."""
    exact, everyone = sizes * total, sizes.sum()
    quotas = exact // everyone
    left = total - int(quotas.sum())
    quotas[(exact % everyone).argsort(descending=True, stable=True)[:left]] += 1
    return quotas


def _even(sizes: Tensor, total: int) -> Tensor:
    """Equal quotas that sum to ``total``; a class too small gives all it has, others fill up."""
    quotas = torch.zeros_like(sizes)
    while (left := total - int(quotas.sum())) > 0:
        open_classes = (quotas < sizes).nonzero().flatten()
        each = left // len(open_classes)
        if each == 0:
            quotas[open_classes[:left]] += 1
        else:
            quotas[open_classes] = (quotas + each).minimum(sizes)[open_classes]
    return quotas
