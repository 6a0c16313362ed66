"""One way to ask for batches, whatever the split is made of."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from aesam.lab.data.augment import Normalizer
from aesam.lab.data.batch_plan import even_share
from aesam.lab.data.batches import Batches
from aesam.lab.data.decoding import Files, FolderBatches, check_workers, decoded
from aesam.lab.data.sets import AnySplit, DataSet, FolderSplit, Split
from aesam.lab.errors import UsageError


class Epochs(Protocol):
    """What a training loop needs: the batches of an epoch, from any of them on."""

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        ...

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images (float32, normalised) and labels (int64) of this rank, for each batch."""
        ...


def batches_of(
    split: AnySplit,
    data_set: DataSet,
    batch_size: int,
    seed: int,
    *,
    augment: bool,
    device: torch.device | str,
    rank: int = 0,
    world: int = 1,
    channels_last: bool = False,
    cutout: int | None = None,
    workers: int = 0,
) -> Epochs:
    """The training batches of a split, in memory (``cutout``) or in a folder (``workers``)."""
    if isinstance(split, Split):
        return Batches(
            split,
            data_set,
            batch_size,
            seed,
            augment=augment,
            device=device,
            rank=rank,
            world=world,
            channels_last=channels_last,
            cutout=cutout,
        )
    if cutout is not None:
        raise UsageError(f"cutout={cutout} is for sets in memory, not for a folder of images")
    return FolderBatches(
        split,
        data_set,
        batch_size,
        seed,
        augment=augment,
        device=device,
        rank=rank,
        world=world,
        channels_last=channels_last,
        workers=workers,
    )


def evaluation_chunks(
    split: AnySplit,
    data_set: DataSet,
    size: int,
    device: torch.device | str,
    rank: int = 0,
    world: int = 1,
    channels_last: bool = False,
    workers: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels of this rank, at most ``size`` at a time and never augmented.

    Over all ranks each sample comes exactly once. Ranks may get different numbers of chunks, so
    add up first and talk to the other ranks afterwards.
    """
    if size < 1:
        raise UsageError(f"the evaluation batch size must be at least 1, got {size}")
    check_workers(workers)
    device, mine = torch.device(device), even_share(len(split), rank, world)
    normalize = Normalizer(data_set.mean, data_set.std, device, channels_last)
    cuts = [mine[i : i + size] for i in range(0, len(mine), size)]
    if isinstance(split, FolderSplit):
        files = Files(split, data_set.size, data_set.flips, key=None)
        return decoded(files, [list(cut) for cut in cuts], normalize, device, workers)
    return (
        (
            normalize(split.images[cut.start : cut.stop].to(device)),
            split.labels[cut.start : cut.stop].to(device),
        )
        for cut in cuts
    )
