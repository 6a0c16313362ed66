"""What a data set is to the rest of the lab: two splits and a few facts about the images."""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """Images held in memory as uint8 ``[N, C, H, W]``, and their labels as int64 ``[N]``."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise ValueError(
                f"images must be uint8 [N, C, H, W], got {self.images.dtype} "
                f"{list(self.images.shape)}"
            )
        _check_labels(self.labels, len(self.images))

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: Tensor) -> "Split":
        """The images of these rows, in this order."""
        return Split(
            self.images[rows.to(self.images.device)], self.labels[rows.to(self.labels.device)]
        )

    def with_labels(self, labels: Tensor) -> "Split":
        """The same images under other labels."""
        return replace(self, labels=labels)

    def to(self, device: torch.device | str) -> "Split":
        """The same split on another device."""
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class FolderSplit:
    """Image files that are decoded only when a batch asks for them, and their labels."""

    paths: tuple[str, ...]
    labels: Tensor

    def __post_init__(self) -> None:
        _check_labels(self.labels, len(self.paths))

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: Tensor) -> "FolderSplit":
        """The files of these rows, in this order."""
        paths = tuple(self.paths[row] for row in whole_numbers(rows))
        return FolderSplit(paths, self.labels[rows.cpu()])

    def with_labels(self, labels: Tensor) -> "FolderSplit":
        """The same files under other labels."""
        return replace(self, labels=labels)

    def to(self, device: torch.device | str) -> "FolderSplit":  # noqa: ARG002
        """Itself: files are decoded in main memory, only finished batches go to a device."""
        return self


AnySplit = Split | FolderSplit


@dataclass(frozen=True, eq=False)
class DataSet:
    """Two splits and what training must know about their images.

    ``mean`` and ``std`` are per channel, for pixels between 0 and 1. ``pad`` is how far a random
    crop may shift an image, and ``flips`` says whether a mirrored image still shows the same class.
    """

    classes: int
    train: AnySplit
    test: AnySplit
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int
    size: int
    pad: int
    flips: bool
    class_names: tuple[str, ...] = ()


def whole_numbers(tensor: Tensor) -> list[int]:
    """The entries of an integer vector, typed as what they are."""
    return cast(list[int], tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def _check_labels(labels: Tensor, images: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (images,):
        raise ValueError(
            f"labels must be int64 [{images}], one per image, got {labels.dtype} "
            f"{list(labels.shape)}"
        )
