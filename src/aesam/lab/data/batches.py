"""Batches of a split: which rows make up each, and what is in them, ready for a model.

Everything random follows from (seed, epoch, batch index), or from (seed, epoch, row) where files
are decoded, so a killed run can enter an epoch anywhere, and any number of processes share it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aesam.lab import draws
from aesam.lab.data.augment import Choices, Normalizer, crop_and_mirror, cut_out
from aesam.lab.data.decoding import Files, decoded
from aesam.lab.data.sets import AnySplit, DataSet, FolderSplit, Split, TextSplit, whole_numbers
from aesam.lab.errors import UsageError

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Plan:
    """A new order of ``count`` rows each epoch, cut into global batches of ``batch_size``.

    What is left over at the end of an epoch, too little for a batch, is not used in that epoch.
    """

    count: int
    batch_size: int
    seed: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.batch_size > self.count:
            raise UsageError(
                f"batch_size={self.batch_size} is larger than the data set, "
                f"which has {self.count} images to train on"
            )
        check_rank(self.rank, self.world)
        if self.batch_size % self.world:
            raise UsageError(
                f"batch_size={self.batch_size} counts the images of all processes together and "
                f"must be a multiple of their number, {self.world}"
            )

    def __len__(self) -> int:
        return self.count // self.batch_size

    @property
    def mine(self) -> slice:
        """What of a global batch is this rank's: the ranks in order make up the whole."""
        each = self.batch_size // self.world
        return slice(self.rank * each, (self.rank + 1) * each)

    def order(self, epoch: int) -> Tensor:
        """All rows in the order of this epoch."""
        return torch.randperm(self.count, generator=draws.generator("order", self.seed, epoch))

    def rows(self, order: Tensor, batch: int) -> Tensor:
        """The rows of one batch that are this rank's."""
        return order[batch * self.batch_size : (batch + 1) * self.batch_size][self.mine]

    def check(self, epoch: int, start: int) -> None:
        """Refuse an epoch or a batch to start from that does not exist."""
        if epoch < 0:
            raise ValueError(f"the epoch must be at least 0, got {epoch}")
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be between 0 and {len(self)} batches, got {start}")


def check_rank(rank: int, world: int) -> None:
    """Refuse a rank that is none of ``world``."""
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"rank must be one of the world's 0..{world - 1}, got {rank}")


def even_share(count: int, rank: int, world: int) -> range:
    """The rows that this rank evaluates: every row belongs to exactly one rank.

    >>> [len(even_share(10, rank, 3)) for rank in range(3)]
    [3, 3, 4]
    """
    check_rank(rank, world)
    return range(count * rank // world, count * (rank + 1) // world)


class Batches:
    """The epochs of a training run, for one rank of ``world``.

    ``epoch(3, start=7)`` is bit for bit the tail of ``epoch(3)``, and the ranks' rows one after the
    other are the rows of one process.

    A split in memory lies on the device, and a batch of it changes all at once: with ``augment``,
    images are cropped after padding with black by ``data_set.pad``, mirrored if the data set allows
    it, and given a hole of ``cutout`` pixels if asked for. A folder is decoded ahead by ``workers``
    processes (with 0, by this one): with ``augment``, a random part of each image is resized to
    the size of the data set and mirrored or not; without, it is the centre that evaluation sees.
    Pieces of a text come as they are.
    """

    def __init__(
        self,
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
    ) -> None:
        _check_workers(workers)
        self._plan = Plan(len(split), batch_size, seed, rank, world)
        _check_cutout(cutout, split, data_set)
        self._set, self._augment, self._cutout = data_set, augment, cutout
        self._device, self._workers = torch.device(device), workers
        self._split = split.to(self._device)
        self._normalize = Normalizer(data_set.mean, data_set.std, self._device, channels_last)

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self._plan)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on.

        Each is images (float32, normalised) and labels (int64), those of this rank; of a text,
        characters and the characters that follow (both int64).
        """
        self._plan.check(number, start)
        if isinstance(self._split, FolderSplit):
            return self._from_files(self._split, number, start)
        if isinstance(self._split, TextSplit):
            return self._from_text(self._split, number, start)
        return self._from_memory(self._split, number, start)

    def rows(self, number: int, start: int = 0) -> Iterator[Tensor]:
        """Which rows of the split the batches of an epoch are, one vector for each batch."""
        self._plan.check(number, start)
        order = self._plan.order(number)
        return (self._plan.rows(order, batch) for batch in range(start, len(self)))

    def _from_files(self, split: FolderSplit, epoch: int, start: int) -> Iterator[Batch]:
        plan, order = self._plan, self._plan.order(epoch)
        rows = [whole_numbers(plan.rows(order, i)) for i in range(start, len(plan))]
        key = draws.key("picture", plan.seed, epoch) if self._augment else None
        files = Files(split, self._set.size, self._set.flips, key)
        return decoded(files, rows, self._normalize, self._device, self._workers)

    def _from_text(self, split: TextSplit, epoch: int, start: int) -> Iterator[Batch]:
        order = self._plan.order(epoch).to(self._device)
        for batch in range(start, len(self)):
            yield _next_characters(split.pieces.index_select(0, self._plan.rows(order, batch)))

    def _from_memory(self, split: Split, epoch: int, start: int) -> Iterator[Batch]:
        order = self._plan.order(epoch).to(self._device)
        for batch in range(start, len(self)):
            rows = self._plan.rows(order, batch)
            images = split.images.index_select(0, rows)
            if self._augment:
                images = self._changed(images, epoch, batch)
            else:
                images = self._normalize(images)
            yield images, split.labels.index_select(0, rows)

    def _changed(self, images: Tensor, epoch: int, batch: int) -> Tensor:
        plan, facts = self._plan, self._set
        choices = Choices.draw(
            plan.batch_size,
            plan.seed,
            epoch,
            batch,
            pad=facts.pad,
            flips=facts.flips,
            size=facts.size,
        ).take(plan.mine, self._device)
        if facts.pad or facts.flips:
            images = crop_and_mirror(images, choices, facts.pad)
        images = self._normalize(images)
        return images if self._cutout is None else cut_out(images, choices, self._cutout)


def evaluation_chunks(
    split: AnySplit,
    data_set: DataSet,
    size: int,
    device: torch.device | str,
    rank: int = 0,
    world: int = 1,
    channels_last: bool = False,
    workers: int = 0,
) -> Iterator[Batch]:
    """Images and labels of this rank, at most ``size`` at a time and never augmented.

    Over all ranks each sample comes exactly once. Ranks may get different numbers of chunks, so
    add up first and talk to the other ranks afterwards.
    """
    if size < 1:
        raise UsageError(f"the evaluation batch size must be at least 1, got {size}")
    _check_workers(workers)
    device, mine = torch.device(device), even_share(len(split), rank, world)
    normalize = Normalizer(data_set.mean, data_set.std, device, channels_last)
    cuts = [mine[i : i + size] for i in range(0, len(mine), size)]
    if isinstance(split, FolderSplit):
        files = Files(split, data_set.size, data_set.flips, key=None)
        return decoded(files, [list(cut) for cut in cuts], normalize, device, workers)
    if isinstance(split, TextSplit):
        pieces = split.pieces
        return (_next_characters(pieces[cut.start : cut.stop].to(device)) for cut in cuts)
    return (
        (
            normalize(split.images[cut.start : cut.stop].to(device)),
            split.labels[cut.start : cut.stop].to(device),
        )
        for cut in cuts
    )


def _next_characters(pieces: Tensor) -> Batch:
    """What is read, and what follows at each of its places."""
    numbers = pieces.long()
    return numbers[:, :-1], numbers[:, 1:]


def _check_cutout(cutout: int | None, split: AnySplit, data_set: DataSet) -> None:
    if cutout is None:
        return
    if not isinstance(split, Split):
        other = "a folder of images" if isinstance(split, FolderSplit) else "a text"
        raise UsageError(f"cutout={cutout} is for sets in memory, not for {other}")
    if not 0 < cutout <= data_set.size:
        raise UsageError(
            f"cutout must be between 1 and the image size {data_set.size}, got {cutout}"
        )


def _check_workers(workers: int) -> None:
    """Refuse a number of processes below none."""
    if workers < 0:
        raise UsageError(f"workers must be at least 0, got {workers}")
