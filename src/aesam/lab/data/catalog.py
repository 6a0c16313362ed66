"""The data sets by name."""

from pathlib import Path

from aesam.lab.data import cifar, digits, image_folder, synthetic
from aesam.lab.data.sets import DataSet
from aesam.lab.errors import UsageError, unknown

FOLDER_SIZE = 224

_NAMES = ("digits", "cifar10", "cifar100", "folder", "synthetic")


def names() -> list[str]:
    """The names that ``load`` knows.

    >>> names()
    ['digits', 'cifar10', 'cifar100', 'folder', 'synthetic']
    """
    return list(_NAMES)


def check(name: str) -> None:
    """Refuse a name that is none of ``names()``, without reading anything."""
    if name not in _NAMES:
        raise unknown("data set", name, _NAMES)


def load(name: str, root: Path | str, *, size: int | None = None) -> DataSet:
    """A data set by its name, from the files under ``root`` (digits and synthetic need none).

    ``size`` is the side of the images that a ``folder`` is cut to, 224 unless given.
    """
    check(name)
    root = Path(root).expanduser()
    if name == "folder":
        return image_folder.load(root, FOLDER_SIZE if size is None else size)
    if size is not None:
        raise UsageError(f"size={size} is for image folders: the images of {name} have their own")
    if name == "digits":
        return digits.load()
    if name == "synthetic":
        return synthetic.load()
    return cifar.load(name, root)
