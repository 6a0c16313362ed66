"""CIFAR-10 and CIFAR-100 from their official files, in the binary or in the python form."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aesam.lab.data import pickles
from aesam.lab.data.archives import ARCHIVES, first_missing, how_to_get, locate
from aesam.lab.data.sets import DataSet, Split
from aesam.lab.errors import UsageError

CHANNELS, SIZE = 3, 32
PIXELS = CHANNELS * SIZE * SIZE


@dataclass(frozen=True)
class _Kind:
    classes: int
    label_bytes: int  # before each image; the last one is the label we want
    label_key: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


_KINDS = {
    "cifar10": _Kind(10, 1, "labels", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": _Kind(100, 2, "fine_labels", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def load(name: str, root: Path) -> DataSet:
    """``cifar10`` or ``cifar100`` (its 100 fine labels), from whichever form is under ``root``."""
    found = locate(name, root)
    if found is None:
        raise UsageError(f"{first_missing(name, root)} is missing: {how_to_get(name, root)}")
    form, place = found
    kind, archive = _KINDS[name], ARCHIVES[name][form]
    remedy = f"Remove it, then {how_to_get(name, root)}"
    read = _binary if form == "binary" else _python

    def split(files: tuple[str, ...]) -> Split:
        parts = [_checked(read(place / file, kind, remedy), place / file, kind) for file in files]
        images = torch.cat([images for images, _ in parts])
        return Split(
            images.view(-1, CHANNELS, SIZE, SIZE), torch.cat([labels for _, labels in parts])
        )

    return DataSet(
        name=name,
        classes=kind.classes,
        train=split(archive.train),
        test=split((archive.test,)),
        mean=kind.mean,
        std=kind.std,
        channels=CHANNELS,
        size=SIZE,
        pad=4,
        flips=True,
    )


def _binary(path: Path, kind: _Kind, remedy: str) -> tuple[Tensor, Tensor]:
    """Records of one or two label bytes and 3,072 pixels, one channel after the other."""
    raw, record = path.read_bytes(), kind.label_bytes + PIXELS
    if not raw or len(raw) % record:
        raise UsageError(
            f"{path} is cut short: its {len(raw)} bytes are not a whole number of "
            f"{record}-byte records. {remedy}"
        )
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, record)
    labels = records[:, kind.label_bytes - 1].to(torch.int64)
    return records[:, kind.label_bytes :], labels


def _python(path: Path, kind: _Kind, remedy: str) -> tuple[Tensor, Tensor]:
    """A pickled dictionary with an array of pixels and a list of labels."""
    batch = pickles.read(path, remedy)
    images, labels = batch.get("data"), batch.get(kind.label_key)
    if not isinstance(images, Tensor) or images.dim() != 2 or images.shape[1] != PIXELS:
        raise UsageError(f"{path} has no 'data' of {PIXELS} bytes per image. {remedy}")
    try:
        return images, torch.tensor(labels, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{path} has no list of numbers {kind.label_key!r}. {remedy}") from None


def _checked(found: tuple[Tensor, Tensor], path: Path, kind: _Kind) -> tuple[Tensor, Tensor]:
    images, labels = found
    if len(images) == 0 or labels.shape != (len(images),):
        raise UsageError(f"{path} has {len(images)} images and {labels.numel()} labels")
    if int(labels.min()) < 0 or int(labels.max()) >= kind.classes:
        raise UsageError(
            f"{path} has a label outside 0..{kind.classes - 1}: it is damaged or of another set"
        )
    return found
