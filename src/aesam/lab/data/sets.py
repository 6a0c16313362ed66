"""What a data set is to the rest of the lab: two splits and a few facts about what is in them."""

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


@dataclass(frozen=True, eq=False)
class TextSplit:
    """Pieces of a text, held in memory as uint8 ``[N, context + 1]``, a number for each character.

    Each character of a piece is to be told from those before it: its labels are all but the first.
    ``blocks`` (int64 ``[N]``) say which pieces belong together, such as those of a chapter.
    """

    pieces: Tensor
    blocks: Tensor

    def __post_init__(self) -> None:
        if self.pieces.dtype != torch.uint8 or self.pieces.dim() != 2 or self.pieces.shape[1] < 2:
            raise ValueError(
                f"pieces must be uint8 [N, context + 1], got {self.pieces.dtype} "
                f"{list(self.pieces.shape)}"
            )
        _check_labels(self.blocks, len(self.pieces))

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def labels(self) -> Tensor:
        """What is to be told at each place, int64 ``[N, context]``."""
        return self.pieces[:, 1:].long()

    def select(self, rows: Tensor) -> "TextSplit":
        """The pieces of these rows, in this order."""
        return TextSplit(
            self.pieces[rows.to(self.pieces.device)], self.blocks[rows.to(self.blocks.device)]
        )

    def to(self, device: torch.device | str) -> "TextSplit":
        """The same split on another device."""
        return TextSplit(self.pieces.to(device), self.blocks.to(device))


AnySplit = Split | FolderSplit | TextSplit


@dataclass(frozen=True, eq=False)
class DataSet:
    """Two splits and what training must know about what is in them.

    ``mean`` and ``std`` are per channel, for pixels between 0 and 1. ``pad`` is how far a random
    crop may shift an image, and ``flips`` says whether a mirrored image still shows the same class.
    The classes of a text are its characters and its ``size`` is the context, in characters; the
    rest of these facts it does not have.
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

    @property
    def is_text(self) -> bool:
        return isinstance(self.train, TextSplit)


def inputs_as(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """What a model of this dtype is given: pixels as numbers of it, characters as they are."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def whole_numbers(tensor: Tensor) -> list[int]:
    """The entries of an integer vector, typed as what they are."""
    return cast(list[int], tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def _check_labels(labels: Tensor, images: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (images,):
        raise ValueError(
            f"labels must be int64 [{images}], one per image, got {labels.dtype} "
            f"{list(labels.shape)}"
        )
