"""The official CIFAR archives: what is in them, and by which sums to know them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ADDRESS = "https://www.cs.toronto.edu/~kriz/"

#: Written beside the files of a verified archive, in the form that ``md5sum -c`` reads.
NOTE = "md5sums.txt"


@dataclass(frozen=True)
class Archive:
    """One file to download, the folder in it, and the files in that folder."""

    file: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    sums: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def files(self) -> tuple[str, ...]:
        """All files that hold images."""
        return (*self.train, self.test)

    def missing(self, place: Path) -> list[str]:
        """Those of its files that ``place`` lacks."""
        return [name for name in self.files if not (place / name).is_file()]

    def wrong(self, place: Path) -> list[str] | None:
        """Those of its files whose sum is not the known one; None if there is nothing to go by."""
        sums = self.sums or _noted(place)
        if any(name not in sums for name in self.files):
            return None
        return [name for name in self.files if md5(place / name) != sums[name]]


def md5(path: Path) -> str:
    """The MD5 sum of a file, as the official page gives it."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def note_sums(archive: Archive, place: Path) -> None:
    """Keep the sums of files that come from a verified archive, to recognise them later."""
    lines = [f"{md5(place / name)}  {name}\n" for name in archive.files]
    (place / NOTE).write_text("".join(lines), encoding="utf-8")


def _noted(place: Path) -> dict[str, str]:
    if not (place / NOTE).is_file():
        return {}
    lines = (place / NOTE).read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = [line.split(maxsplit=1) for line in lines]
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))

#: Data set, then form. Binary comes first: it is what `fetch` gets, as it needs no unpickling.
ARCHIVES: dict[str, dict[str, Archive]] = {
    "cifar10": {
        "binary": Archive(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-batches-bin",
            tuple(f"{name}.bin" for name in _BATCHES),
            "test_batch.bin",
            {
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
        ),
        "python": Archive(
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
    "cifar100": {
        "binary": Archive(
            "cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            "cifar-100-binary",
            ("train.bin",),
            "test.bin",
        ),
        "python": Archive(
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
}


def how_to_get(name: str, root: Path) -> str:
    """The sentence that ends an error about missing or bad files."""
    return f"`aesam data {name} --root {root}` gets the official files."


def locate(name: str, root: Path) -> tuple[str, Path] | None:
    """The form and folder of a data set under ``root``, or None if no complete one is there.

    The files may be in ``root`` itself or in the folder that the archive makes there.
    """
    for form, archive in ARCHIVES[name].items():
        for place in (root / archive.folder, root):
            if not archive.missing(place):
                return form, place
    return None


def first_missing(name: str, root: Path) -> Path:
    """The file to ask for: of the form and folder that is nearest to complete."""
    places = [
        (archive, place)
        for archive in ARCHIVES[name].values()
        for place in (root / archive.folder, root)
    ]
    archive, place = min(places, key=lambda found: len(found[0].missing(found[1])))
    return place / archive.missing(place)[0]
