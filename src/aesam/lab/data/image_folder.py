"""ImageNet-style folders: ``root/train/<class>/*.jpg`` and ``root/val/<class>/*.jpg``.

Only names are read when a folder is loaded; worker processes decode the images while the model
trains.
"""

import math
import os
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aesam.lab.config import Training
from aesam.lab.data import draws
from aesam.lab.data.augment import Normalizer
from aesam.lab.data.data_records import DataRecord
from aesam.lab.data.sets import DataSet, FolderSplit
from aesam.lab.errors import UsageError

SIZE = 224
SUFFIXES = (".jpg", ".jpeg", ".png")

#: ImageNet's, which pretrained models and recipes take for granted.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

#: The share of the area that a training crop covers, and how oblong it may be.
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10

#: Of the shorter side, what evaluation looks at: 224 of 256.
CENTRE = 224 / 256

Box = tuple[float, float, float, float]


def load(root: Path, size: int | None = None) -> DataSet:
    """The files under ``train`` and under ``val`` (or ``test``, if there is no ``val``).

    A class is a folder, and its number is its place among the sorted names. Only names are read
    here: the images are decoded when a batch asks for them.
    """
    size = SIZE if size is None else size
    if size < 1:
        raise UsageError(f"size must be at least 1 pixel, got {size}")
    train, test = root / "train", root / "val"
    if not test.is_dir():
        test = root / "test"
    for place, wanted in ((train, "train"), (test, "val or test")):
        if not place.is_dir():
            raise UsageError(f"{root} has no folder {wanted} with one folder of images per class")
    classes = _classes(train)
    _same_classes(train, classes, test, _classes(test))
    return DataSet(
        classes=len(classes),
        train=_split(train, classes),
        test=_split(test, classes),
        mean=MEAN,
        std=STD,
        channels=3,
        size=size,
        pad=0,
        flips=True,
        class_names=classes,
    )


def _classes(place: Path) -> tuple[str, ...]:
    found = sorted(p.name for p in place.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise UsageError(f"{place} has no folders: it needs one folder of images per class")
    return tuple(found)


def _same_classes(train: Path, here: tuple[str, ...], test: Path, there: tuple[str, ...]) -> None:
    only_here, only_there = sorted({*here} - {*there}), sorted({*there} - {*here})
    if only_here or only_there:
        raise UsageError(
            f"{train} and {test} must have the same classes; only in {train.name}: "
            f"{', '.join(only_here) or 'none'}; only in {test.name}: "
            f"{', '.join(only_there) or 'none'}"
        )


def _split(place: Path, classes: tuple[str, ...]) -> FolderSplit:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        with os.scandir(place / name) as entries:
            found = sorted(e.path for e in entries if e.name.lower().endswith(SUFFIXES))
        if not found:
            raise UsageError(f"{place / name} has no image ({', '.join(SUFFIXES)})")
        paths += found
        labels += [label] * len(found)
    return FolderSplit(tuple(paths), torch.tensor(labels, dtype=torch.int64))


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


def _as_it_is(batch: Any) -> Any:
    return batch


def decode(path: str, size: int, source: random.Random | None, flips: bool) -> Tensor:
    """The file as uint8 ``[3, size, size]``: a random part with ``source``, else the centre.

    Cutting and resizing are one operation, so no pixel is resampled twice.
    """
    with closing(Image.open(path)) as file:
        image = _rgb(file)
    box = centre_box(*image.size) if source is None else random_box(*image.size, source)
    square = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    if source is not None and flips and source.random() < 0.5:
        square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, 3).permute(2, 0, 1)


def random_box(width: int, height: int, source: random.Random) -> Box:
    """A part of random area, shape and place; all of the image that fits if none is found."""
    for _ in range(TRIES):
        area = width * height * source.uniform(*AREA)
        aspect = math.exp(source.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = source.randint(0, width - w), source.randint(0, height - h)
            return left, top, left + w, top + h
    # An extremely oblong image: its middle, as oblong as a crop may be.
    return _middle(width, height, min(width, height * ASPECT[1]), min(height, width / ASPECT[0]))


def centre_box(width: int, height: int) -> Box:
    """The middle square, with 7/8 of the shorter side: a resize to 256 and a crop to 224."""
    side = CENTRE * min(width, height)
    return _middle(width, height, side, side)


def _middle(width: int, height: int, w: float, h: float) -> Box:
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def _rgb(image: Image.Image) -> Image.Image:
    if "transparency" in image.info:  # Pillow warns when a palette's transparency is dropped
        image = image.convert("RGBA")
    return image.convert("RGB")


#: The paper's ImageNet set-up: ResNet-50, 90 epochs, batches of 512.
RECORD = DataRecord(
    name="folder",
    label="ImageNet-style folder",
    help="your own images, in train/<class> and val/<class>",
    load=load,
    model="resnet50",
    training=Training(epochs=90, batch_size=512),
    augment=True,
    resizable=True,
)
