"""What a data set has in it, for a user to look at."""

from pathlib import Path
from typing import TypedDict

from aesam.lab.data import digits
from aesam.lab.data.archives import ARCHIVES, locate
from aesam.lab.data.catalog import load
from aesam.lab.data.sets import AnySplit, whole_numbers


class Description(TypedDict):
    """The facts, in the order to show them."""

    name: str
    images: int
    train: int
    test: int
    classes: int
    shape: tuple[int, int, int]
    train_per_class: list[int]
    test_per_class: list[int]
    class_names: list[str]
    verified: str


def describe(name: str, root: Path | str, *, size: int | None = None) -> Description:
    """Counts, shape, and whether the files are the official ones: yes, no or unknown."""
    data_set = load(name, root, size=size)
    return {
        "name": name,
        "images": len(data_set.train) + len(data_set.test),
        "train": len(data_set.train),
        "test": len(data_set.test),
        "classes": data_set.classes,
        "shape": (data_set.channels, data_set.size, data_set.size),
        "train_per_class": _per_class(data_set.train, data_set.classes),
        "test_per_class": _per_class(data_set.test, data_set.classes),
        "class_names": list(data_set.class_names),
        "verified": _verified(name, Path(root).expanduser()),
    }


def _per_class(split: AnySplit, classes: int) -> list[int]:
    return whole_numbers(split.labels.bincount(minlength=classes))


def _verified(name: str, root: Path) -> str:
    if name == "digits":
        return "yes" if digits.pristine() else "no"
    found = locate(name, root) if name in ARCHIVES else None
    wrong = ARCHIVES[name][found[0]].wrong(found[1]) if found else None
    return "unknown" if wrong is None else "no" if wrong else "yes"
