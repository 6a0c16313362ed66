# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The 1,797 handwritten digits that come with scikit-learn: 8x8 pixels, 17 shades."""

import hashlib
from pathlib import Path
from typing import Any

import torch

from aesam.lab.config import Training
from aesam.lab.data.data_records import DataRecord, Verdict
from aesam.lab.data.sets import DataSet, Split
from aesam.lab.draws import stratified

#: 1,437 images train and these test: 20 %, from each class its part, the same on every machine.
TEST_IMAGES = 360
SPLIT_SEED = 0
PIXELS_MD5 = "717a258403283d25fecfadab063a2716"


def load(root: Path, size: int | None = None) -> DataSet:  # noqa: ARG001
    """The digits with the shades 0..16 spread over 0..255, and a fixed stratified split."""
    whole = _all()
    held = stratified(whole.labels, TEST_IMAGES, SPLIT_SEED)
    return DataSet(
        classes=10,
        train=whole.select((~held).nonzero().flatten()),
        test=whole.select(held.nonzero().flatten()),
        mean=(0.3052,),
        std=(0.3759,),
        channels=1,
        size=8,
        pad=1,
        flips=False,
    )


def verify(root: Path) -> Verdict:  # noqa: ARG001
    """Whether the installed scikit-learn has the digits that this split was made for."""
    whole = _all()
    raw = whole.images.numpy().tobytes() + whole.labels.numpy().tobytes()
    return "yes" if hashlib.md5(raw, usedforsecurity=False).hexdigest() == PIXELS_MD5 else "no"


def _all() -> Split:
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    shades = torch.from_numpy(found.images).unsqueeze(1)
    labels = torch.from_numpy(found.target).to(torch.int64)
    return Split((shades * (255 / 16)).round().to(torch.uint8), labels)


#: Without augmentation: 1,437 images of 8×8 are few enough to memorise wrong labels.
RECORD = DataRecord(
    name="digits",
    label="digits",
    help="1,797 handwritten digits of 8×8 pixels, bundled",
    load=load,
    model="digits-cnn",
    training=Training(epochs=60),
    augment=False,
    verify=verify,
)
