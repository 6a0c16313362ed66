"""Data sets by name: one record for each, and what is made of it.

Everything that lists, loads, fetches or describes a data set, or asks how it is usually trained,
reads its record. The record stands beside the loader.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from aesam.lab.config import Data, Model, Run, Training
from aesam.lab.data.sets import AnySplit, DataSet, whole_numbers
from aesam.lab.errors import DiskError, UsageError
from aesam.lab.regular_files import cannot_read
from aesam.registry import Registry

#: Whether files are the official ones.
Verdict = Literal["yes", "no", "unknown"]

#: What a model is given.
Kind = Literal["images", "text"]

#: What of a run counts: the share of right answers, which is to be high, or the loss.
Score = Literal["accuracy", "loss"]

#: Called with what is being done, how far it is, and how far it goes (0 if not known).
TellProgress = Callable[[str, int, int], None]


def _nothing_to_compare(root: Path) -> Verdict:  # noqa: ARG001
    """For sets that nobody has published sums of."""
    return "unknown"


@dataclass(frozen=True, kw_only=True)
class DataRecord:
    """What is known of a data set.

    How it is usually trained has no default: a data set without it would be trained as another is.

    Args:
        name: what commands call it, in small letters and digits.
        label: what readers call it.
        help: what it is, in half a line.
        load: reads it from the files under a root. The second argument is the side of the images
            to cut to, None unless ``resizable``.
        model: the name of its usual model.
        training: its usual training.
        augment: whether it is usually trained with random crops and flips.
        resizable: whether its images can be cut to any size.
        fetch: downloads it to a root and returns its folder; None if there is nothing to download.
        verify: whether the files under a root are the official ones.
        kind: what it consists of, ``"images"`` by default; a model must be made for it.
        score: what runs on it are ranked and tuned by, ``"accuracy"`` by default.

    >>> data_record("digits").label, data_record("digits").usual.training.epochs
    ('digits', 60)
    """

    name: str
    label: str
    help: str
    load: Callable[[Path, int | None], DataSet]
    model: str
    training: Training
    augment: bool
    resizable: bool = False
    fetch: Callable[[Path, TellProgress], Path] | None = None
    verify: Callable[[Path], Verdict] = _nothing_to_compare
    kind: Kind = "images"
    score: Score = "accuracy"

    @property
    def usual(self) -> Run:
        """The run with its usual model and training; flags change what they name."""
        data = Data(self.name, augment=self.augment)
        return Run(data, Model(self.model), training=self.training)


_DATA_SETS = Registry[DataRecord]("data set", UsageError)


def register_data_set(record: DataRecord) -> None:
    """Make a data set known to every command of the lab; each name is used once."""
    _DATA_SETS.add(record.name, record)


def forget_data_set(name: str) -> None:
    """Take a registration back; unknown names are refused."""
    _DATA_SETS.remove(name)


def data_record(name: str) -> DataRecord:
    """The record of a data set; an unknown name is refused with the near ones."""
    return _DATA_SETS[name]


def list_data_sets(pattern: str = "*") -> list[str]:
    """The names of all data sets that match, in the order in which they were registered.

    >>> list_data_sets("cifar1*")
    ['cifar10', 'cifar100', 'cifar10-16']
    """
    return _DATA_SETS.names(pattern)


def load(name: str, root: Path | str, *, size: int | None = None) -> DataSet:
    """A data set by its name, from the files under ``root`` if it needs any.

    ``size`` is the side of the images that a folder is cut to, 224 unless given.
    """
    record = data_record(name)
    if size is not None and not record.resizable:
        raise UsageError(f"size={size} is for image folders: the images of {name} have their own")
    with _reads_told(name):
        return record.load(Path(root).expanduser(), size)


def fetch(name: str, root: Path | str, tell: TellProgress | None = None) -> Path:
    """The folder that holds the data set, downloaded to ``root`` if it is not there yet.

    What is there already is verified. Nothing is downloaded for a set that needs no files.
    """
    record, root, tell = data_record(name), Path(root).expanduser(), tell or _silent
    if record.fetch is not None:
        with _reads_told(name):
            return record.fetch(root, tell)
    tell(f"{name} needs no download", 1, 1)
    return root


@contextmanager
def _reads_told(name: str) -> Generator[None]:
    """A read that the system refuses, told by the name of the file."""
    try:
        yield
    except DiskError:  # is told already
        raise
    except OSError as error:
        raise cannot_read(error.filename or f"the files of {name}", error) from error


def _silent(what: str, done: int, total: int) -> None:
    """For callers that want no progress."""


class _OfItsKind(TypedDict, total=False):
    """How many images, and their shape; or how many pieces of a text, and their length."""

    images: int
    shape: tuple[int, int, int]
    pieces: int
    context: int


class Description(_OfItsKind):
    """What a data set has in it, in the order to show it to a user."""

    name: str
    train: int
    test: int
    classes: int
    train_per_class: list[int]
    test_per_class: list[int]
    class_names: list[str]
    verified: Verdict


def describe(name: str, root: Path | str, *, size: int | None = None) -> Description:
    """Counts, shape, and whether the files are the official ones: yes, no or unknown."""
    data_set = load(name, root, size=size)
    with _reads_told(name):
        verified = data_record(name).verify(Path(root).expanduser())
    found: Description = {
        "name": name,
        **_of_its_kind(data_set),
        "train": len(data_set.train),
        "test": len(data_set.test),
        "classes": data_set.classes,
        "train_per_class": _per_class(data_set.train, data_set.classes),
        "test_per_class": _per_class(data_set.test, data_set.classes),
        "class_names": list(data_set.class_names),
        "verified": verified,
    }
    return found


def _of_its_kind(data_set: DataSet) -> _OfItsKind:
    total, size = len(data_set.train) + len(data_set.test), data_set.size
    if data_set.is_text:
        return {"pieces": total, "context": size}
    return {"images": total, "shape": (data_set.channels, size, size)}


def _per_class(split: AnySplit, classes: int) -> list[int]:
    return whole_numbers(split.labels.flatten().bincount(minlength=classes))
