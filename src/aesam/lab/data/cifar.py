"""CIFAR-10 and CIFAR-100 from their official files, in the binary or in the python form."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from aesam.lab.config import Training
from aesam.lab.data import pickles
from aesam.lab.data.data_records import DataRecord, TellProgress, Verdict
from aesam.lab.data.download import fetch_archive
from aesam.lab.data.official_files import (
    Archive,
    Forms,
    Reader,
    first_missing,
    locate,
    verdict,
)
from aesam.lab.data.sets import DataSet, Split
from aesam.lab.errors import UsageError

CHANNELS, SIZE = 3, 32
PIXELS = CHANNELS * SIZE * SIZE
ADDRESS = "https://www.cs.toronto.edu/~kriz/"

#: Images as rows of bytes, and their labels.
Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Cifar:
    """One of the two sets: what is in its files, and the archives that they come in."""

    name: str
    classes: int
    label_bytes: int  # before each image; the last one is the label we want
    label_key: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    forms: Forms
    shrink: int = 1  # so many pixels by as many become one, their mean

    def load(self, root: Path, size: int | None = None) -> DataSet:  # noqa: ARG002
        """The set from whichever form is under ``root``; of CIFAR-100 its 100 fine labels."""
        get = f"`aesam data {self.name} --root {root}` gets the official files."
        found = locate(self.forms, root)
        if found is None:
            raise UsageError(f"{first_missing(self.forms, root)} is missing: {get}")
        form, place = found
        archive, decode = self.forms[form], _binary if form == "binary" else _python
        bad = "it" if place == root else place
        reader = Reader(archive, place, f"Move {bad} away, then {get}")

        def split(names: tuple[str, ...]) -> Split:
            parts = [self._part(reader, decode, place / name) for name in names]
            images = torch.cat([images for images, _ in parts]).view(-1, CHANNELS, SIZE, SIZE)
            labels = torch.cat([labels for _, labels in parts])
            return Split(images if self.shrink == 1 else _shrunk(images, self.shrink), labels)

        train, test = split(archive.train), split((archive.test,))
        reader.remember()
        return DataSet(
            classes=self.classes,
            train=train,
            test=test,
            mean=self.mean,
            std=self.std,
            channels=CHANNELS,
            size=SIZE // self.shrink,
            pad=4 // self.shrink,
            flips=True,
        )

    def _part(self, reader: Reader, decode: "Decode", path: Path) -> Part:
        """Images and labels of one file, as many of both, and each label one of the set's."""
        remedy = reader.remedy
        images, labels = decode(reader.read(path.name), path, self, remedy)
        if len(images) == 0 or labels.shape != (len(images),):
            raise UsageError(
                f"{path} has {len(images)} images and {labels.numel()} labels. {remedy}"
            )
        if int(labels.min()) < 0 or int(labels.max()) >= self.classes:
            raise UsageError(
                f"{path} has a label outside 0..{self.classes - 1}: it is damaged or of another "
                f"set. {remedy}"
            )
        return images, labels

    def fetch(self, root: Path, tell: TellProgress) -> Path:
        """Its folder, downloaded if it is not there; binary, as that needs no unpickling."""
        return fetch_archive(self.forms, root, tell)

    def verify(self, root: Path) -> Verdict:
        """Whether the files under ``root`` are the official ones."""
        return verdict(self.forms, root)


Decode = Callable[[bytes, Path, Cifar, str], Part]


def _shrunk(images: Tensor, factor: int) -> Tensor:
    """Each square of ``factor`` by ``factor`` pixels as one, a few thousand images at a time."""
    starts = range(0, len(images), 4096)
    means = (torch.nn.functional.avg_pool2d(images[i : i + 4096].float(), factor) for i in starts)
    return torch.cat([some.round().to(torch.uint8) for some in means])


def _binary(raw: bytes, path: Path, cifar: Cifar, remedy: str) -> Part:
    """Records of one or two label bytes and 3,072 pixels, one channel after the other."""
    record = cifar.label_bytes + PIXELS
    if not raw or len(raw) % record:
        raise UsageError(
            f"{path} is cut short: its {len(raw)} bytes are not a whole number of "
            f"{record}-byte records. {remedy}"
        )
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, record)
    labels = records[:, cifar.label_bytes - 1].to(torch.int64)
    return records[:, cifar.label_bytes :], labels


def _python(raw: bytes, path: Path, cifar: Cifar, remedy: str) -> Part:
    """A pickled dictionary with an array of pixels and a list of labels."""
    batch = pickles.read(raw, path, remedy)
    images, labels = batch.get("data"), batch.get(cifar.label_key)
    if not isinstance(images, Tensor) or images.dim() != 2 or images.shape[1] != PIXELS:
        raise UsageError(f"{path} has no 'data' of {PIXELS} bytes per image. {remedy}")
    numbers = cast(list[object], labels) if isinstance(labels, list) else [None]
    if not all(isinstance(number, int) and abs(number) < 2**63 for number in numbers):
        raise UsageError(f"{path} has no list of numbers {cifar.label_key!r}. {remedy}")
    return images, torch.tensor(numbers, dtype=torch.int64)


def _sizes(names: tuple[str, ...], label_bytes: int, images: int = 10_000) -> dict[str, int]:
    """Of files in the binary form, ``images`` in each."""
    return dict.fromkeys(names, images * (label_bytes + PIXELS))


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_BINARY_BATCHES = tuple(f"{name}.bin" for name in _BATCHES)

CIFAR10 = Cifar(
    name="cifar10",
    classes=10,
    label_bytes=1,
    label_key="labels",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    forms={
        "binary": Archive(
            ADDRESS,
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-batches-bin",
            _BINARY_BATCHES,
            "test_batch.bin",
            {
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
            _sizes((*_BINARY_BATCHES, "test_batch.bin"), label_bytes=1),
        ),
        "python": Archive(
            ADDRESS,
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
            _BATCHES,
            "test_batch",
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
        ),
    },
)

CIFAR100 = Cifar(
    name="cifar100",
    classes=100,
    label_bytes=2,
    label_key="fine_labels",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    forms={
        "binary": Archive(
            ADDRESS,
            "cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            "cifar-100-binary",
            ("train.bin",),
            "test.bin",
            sizes=_sizes(("train.bin",), 2, images=50_000) | _sizes(("test.bin",), 2),
        ),
        "python": Archive(
            ADDRESS,
            "cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
            ("train",),
            "test",
            {
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            },
        ),
    },
)

#: A quarter of the pixels, for networks that are trained on a few cores.
CIFAR10_SMALL = replace(CIFAR10, name="cifar10-16", std=(0.2381, 0.2347, 0.2536), shrink=2)


def _record(cifar: Cifar, label: str) -> DataRecord:
    """The paper's set-up: ResNet-18, 200 epochs, batches of 128."""
    return DataRecord(
        name=cifar.name,
        label=label,
        help=f"60,000 photos of 32×32 pixels, {cifar.classes} classes",
        load=cifar.load,
        model="resnet18",
        training=Training(epochs=200),
        augment=True,
        fetch=cifar.fetch,
        verify=cifar.verify,
    )


#: Unaugmented: with crops and flips a network as small as this does not overfit.
_SMALL_RECORD = replace(
    _record(CIFAR10_SMALL, "CIFAR-10 at 16×16"),
    help="CIFAR-10 shrunk to 16×16 pixels, from the same files",
    model="resnet8",
    training=Training(epochs=60, channels_last=True, evaluate_every=5),
    augment=False,
)

RECORDS = (_record(CIFAR10, "CIFAR-10"), _record(CIFAR100, "CIFAR-100"), _SMALL_RECORD)
