"""Training batches of a split in memory: images lie on the device and change all at once."""

from collections.abc import Iterator

import torch
from torch import Tensor

from aesam.lab.data.augment import Choices, Normalizer, crop_and_mirror, cut_out
from aesam.lab.data.batch_plan import Plan
from aesam.lab.data.sets import DataSet, Split
from aesam.lab.errors import UsageError


class Batches:
    """The epochs of a training run, for one rank of ``world``.

    Everything random follows from (seed, epoch, batch index), so ``epoch(3, start=7)`` is bit for
    bit the tail of ``epoch(3)``, and the ranks' rows one after the other are the rows of one
    process. With ``augment``, images are cropped after padding with black by ``data_set.pad``,
    mirrored if the data set allows it, and given a hole of ``cutout`` pixels if asked for.
    """

    def __init__(
        self,
        split: Split,
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
    ) -> None:
        self._plan = Plan(len(split), batch_size, seed, rank, world)
        if cutout is not None and not 0 < cutout <= data_set.size:
            raise UsageError(
                f"cutout must be between 1 and the image size {data_set.size}, got {cutout}"
            )
        self._set, self._augment, self._cutout = data_set, augment, cutout
        self._device = torch.device(device)
        self._split = split.to(self._device)
        self._normalize = Normalizer(data_set.mean, data_set.std, self._device, channels_last)

    def __len__(self) -> int:
        return len(self._plan)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of this rank, for each batch of an epoch from batch ``start`` on."""
        self._plan.check(number, start)
        return self._epoch(number, start)

    def _epoch(self, number: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._plan.order(number).to(self._device)
        for batch in range(start, len(self)):
            rows = self._plan.rows(order, batch)
            images = self._split.images.index_select(0, rows)
            if self._augment:
                images = self._changed(images, number, batch)
            else:
                images = self._normalize(images)
            yield images, self._split.labels.index_select(0, rows)

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
