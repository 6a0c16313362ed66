"""ImageNet-style folders: ``root/train/<class>/*.jpg`` and ``root/val/<class>/*.jpg``.

Only names are read when a folder is loaded; worker processes decode the images while the model
trains.
"""

import os
from pathlib import Path

import torch

from aesam.lab.config import Training
from aesam.lab.data.data_records import DataRecord
from aesam.lab.data.sets import DataSet, FolderSplit
from aesam.lab.errors import UsageError
from aesam.lab.regular_files import refuse_odd

SIZE = 224
SUFFIXES = (".jpg", ".jpeg", ".png")

#: ImageNet's, which pretrained models and recipes take for granted.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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
        found = _images(place / name)
        if not found:
            raise UsageError(f"{place / name} has no image ({', '.join(SUFFIXES)})")
        paths += found
        labels += [label] * len(found)
    return FolderSplit(tuple(paths), torch.tensor(labels, dtype=torch.int64))


def _images(place: Path) -> list[str]:
    """The image files of a folder by their names; what only has such a name is refused.

    The folder itself says what is a file, so that only links cost a look at what they lead to.
    """
    found: list[str] = []
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.lower().endswith(SUFFIXES):
                if not entry.is_file():
                    refuse_odd(entry.path)
                found.append(entry.path)
    return sorted(found)


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
