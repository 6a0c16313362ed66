"""Small made-up images for tests: four noisy blobs, without any file."""

from pathlib import Path

import torch
from torch import Tensor

from aesam.lab import draws
from aesam.lab.config import Training
from aesam.lab.data.data_records import DataRecord
from aesam.lab.data.sets import DataSet, Split

CLASSES, CHANNELS, SIZE = 4, 3, 8
TRAIN, TEST = 512, 256


def load(root: Path, size: int | None = None) -> DataSet:  # noqa: ARG001
    """Each class is one random image, and each sample that image under bell-shaped noise.

    Only whole numbers are drawn, so every machine makes the same pixels.
    """
    source = draws.generator("synthetic")
    centres = torch.randint(96, 160, (CLASSES, CHANNELS, SIZE, SIZE), generator=source)
    return DataSet(
        classes=CLASSES,
        train=_around(centres, TRAIN, source),
        test=_around(centres, TEST, source),
        mean=(0.5,) * CHANNELS,
        std=(0.2,) * CHANNELS,
        channels=CHANNELS,
        size=SIZE,
        pad=SIZE // 8,
        flips=False,
    )


def _around(centres: Tensor, count: int, source: torch.Generator) -> Split:
    labels = torch.arange(count) % CLASSES
    shape = (count, CHANNELS, SIZE, SIZE)
    # Four uniform draws add up to nearly a Gaussian, of standard deviation 46.
    noise = torch.randint(-40, 41, (4, *shape), generator=source).sum(0)
    return Split((centres[labels] + noise).clamp(0, 255).to(torch.uint8), labels)


RECORD = DataRecord(
    name="synthetic",
    label="synthetic",
    help="four noisy blobs of 8×8 pixels, made up for tests",
    load=load,
    model="mlp",
    training=Training(epochs=3, batch_size=64),
    augment=True,
)
