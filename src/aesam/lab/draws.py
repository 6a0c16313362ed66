"""Random draws that depend on a key and on nothing else: numbers, and parts of each class."""

import hashlib

import torch
from torch import Tensor


def key(*parts: int | str) -> int:
    """A 64-bit number fixed by ``parts``, and unrelated for parts that differ in anything.

    >>> key("order", 0, 1) == key("order", 0, 1), key("order", 0, 1) == key("order", 1, 0)
    (True, False)
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def generator(*parts: int | str) -> torch.Generator:
    """A generator of one's own for ``parts``; the global random state is neither read nor moved.

    It lives on the CPU, so that a GPU run sees the same batches.
    """
    return torch.Generator().manual_seed(key(*parts))


def stratified(labels: Tensor, count: int, seed: int) -> Tensor:
    """A mask that picks exactly ``count`` of the labels, from each class its proportional part."""
    return _pick(labels, _proportional(labels.cpu().bincount(), count), "stratified", seed)


def balanced(labels: Tensor, count: int, seed: int) -> Tensor:
    """A mask that picks ``count`` of the labels, as evenly over the classes as there are any.

    That of a larger count with the same seed contains that of a smaller one.
    """
    return _pick(labels, _even(labels.cpu().bincount(), count), "subset", seed)


def together(blocks: Tensor, count: int, seed: int) -> Tensor:
    """A mask that picks ``count`` rows, block after block in a random order; the last is cut.

    That of a larger count with the same seed contains that of a smaller one.
    """
    blocks = blocks.cpu()
    place = torch.randperm(int(blocks.max()) + 1, generator=generator("together", seed))
    mask = torch.zeros(len(blocks), dtype=torch.bool)
    mask[place[blocks].argsort(stable=True)[:count]] = True
    return mask


def _pick(labels: Tensor, quotas: Tensor, purpose: str, seed: int) -> Tensor:
    """A mask of ``quotas[c]`` random members of each class c."""
    labels = labels.cpu()
    shuffled = torch.randperm(len(labels), generator=generator(purpose, seed))
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
