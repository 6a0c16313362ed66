"""Starting points: the settings that a data set is usually trained with."""

from aesam.lab import data
from aesam.lab.config import Data, Model, Run, Training


def for_dataset(name: str) -> Run:
    """The usual model and training for a data set; flags change what they name.

    >>> for_dataset("digits").model.name
    'digits-cnn'
    """
    data.check(name)
    return {"digits": _digits, "synthetic": _synthetic, "folder": _imagenet}.get(name, _cifar)(name)


def _digits(name: str) -> Run:
    """Without augmentation: 1,437 images of 8×8 are few enough to memorise wrong labels."""
    unchanged = Data(name, augment=False)
    return Run(unchanged, Model("digits-cnn"), training=Training(epochs=60))


def _synthetic(name: str) -> Run:
    return Run(Data(name), Model("mlp"), training=Training(epochs=3, batch_size=64))


def _cifar(name: str) -> Run:
    """The paper's set-up: ResNet-18, 200 epochs, batches of 128."""
    return Run(Data(name), Model("resnet18"), training=Training(epochs=200))


def _imagenet(name: str) -> Run:
    """The paper's ImageNet set-up: ResNet-50, 90 epochs, batches of 512."""
    return Run(Data(name), Model("resnet50"), training=Training(epochs=90, batch_size=512))
