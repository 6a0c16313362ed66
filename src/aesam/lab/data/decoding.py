"""Batches of a folder of images, decoded by worker processes while the model trains."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aesam.lab.data import draws
from aesam.lab.data.augment import Normalizer
from aesam.lab.data.batch_plan import Plan
from aesam.lab.data.pictures import decode
from aesam.lab.data.sets import DataSet, FolderSplit, whole_numbers
from aesam.lab.errors import UsageError


class FolderBatches:
    """As ``Batches``, for a folder: the epochs of a training run, for one rank of ``world``.

    With ``augment``, a random part of each image is resized to the size of the data set and
    mirrored or not; how depends on (seed, epoch, row of the split) alone. Without, it is the centre
    that evaluation sees. ``workers`` processes decode ahead; with 0 this process does it.
    """

    def __init__(
        self,
        split: FolderSplit,
        data_set: DataSet,
        batch_size: int,
        seed: int,
        *,
        augment: bool,
        device: torch.device | str,
        rank: int = 0,
        world: int = 1,
        channels_last: bool = False,
        workers: int = 0,
    ) -> None:
        check_workers(workers)
        self._plan = Plan(len(split), batch_size, seed, rank, world)
        self._split, self._set, self._augment = split, data_set, augment
        self._workers, self._device = workers, torch.device(device)
        self._normalize = Normalizer(data_set.mean, data_set.std, self._device, channels_last)

    def __len__(self) -> int:
        return len(self._plan)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of this rank, for each batch of an epoch from batch ``start`` on."""
        plan = self._plan
        plan.check(number, start)
        order = plan.order(number)
        rows = [whole_numbers(plan.rows(order, i)) for i in range(start, len(plan))]
        key = draws.key("picture", plan.seed, number) if self._augment else None
        files = Files(self._split, self._set.size, self._set.flips, key)
        return decoded(files, rows, self._normalize, self._device, self._workers)


@dataclass(frozen=True)
class Unreadable:
    """What a worker sends in place of a batch with a bad file.

    An exception would arrive wrapped in the worker's traceback.
    """

    path: str
    reason: str


class Files(Dataset[tuple[Tensor, Tensor] | Unreadable]):
    """What a worker process needs to turn rows of a split into a batch of raw pixels."""

    def __init__(self, split: FolderSplit, size: int, flips: bool, key: int | None) -> None:
        self.paths, self.labels = split.paths, split.labels
        self.size, self.flips, self.key = size, flips, key

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor] | Unreadable:
        return self.__getitems__([index])

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor] | Unreadable:
        """A whole batch; this is the method that a DataLoader asks for first."""
        pixels = torch.empty(len(rows), 3, self.size, self.size, dtype=torch.uint8)
        for place, row in enumerate(rows):
            source = None if self.key is None else random.Random(draws.key(self.key, row))
            try:
                pixels[place] = decode(self.paths[row], self.size, source, self.flips)
            except Exception as error:  # a damaged file can fail in every way there is
                return Unreadable(self.paths[row], str(error))
        return pixels, self.labels[torch.tensor(rows)]


def decoded(
    files: Files,
    rows: list[list[int]],
    normalize: Normalizer,
    device: torch.device,
    workers: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of these rows, in order, normalised on the device."""
    loader: DataLoader[tuple[Tensor, Tensor] | Unreadable] = DataLoader(
        files,
        batch_sampler=rows,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=device.type == "cuda",
        # A loader draws a seed for its workers: from here, not from the global random state.
        generator=torch.Generator().manual_seed(0),
    )
    for batch in loader:
        if isinstance(batch, Unreadable):
            raise UsageError(
                f"cannot decode {batch.path} ({batch.reason}): repair or remove the file"
            )
        pixels, labels = batch
        yield normalize(pixels.to(device, non_blocking=True)), labels.to(device)


def check_workers(workers: int) -> None:
    """Refuse a number of processes below none."""
    if workers < 0:
        raise UsageError(f"workers must be at least 0, got {workers}")


def _as_it_is(batch: Any) -> Any:
    return batch
