"""Official files on the disk: where they are, whether they are the official ones, their content.

A file's size is looked at whenever it is read, and its MD5 sum once: a note beside the files says
which have been verified, and no longer holds for a file that was touched since.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from aesam.lab import files
from aesam.lab.data.data_records import Verdict
from aesam.lab.errors import UsageError
from aesam.lab.regular_files import cannot_read, open_regular

#: Written beside the files of a verified archive, in the form that ``md5sum -c`` reads.
NOTE = "md5sums.txt"

#: Which files had their sum when they were last read, and how they were stamped then.
VERIFIED = ".aesam-verified.json"

#: Nanoseconds after which a file is remembered. One that was written just now may be written to
#: again without another time stamp, as clocks of file systems are coarse.
SETTLED = 2_000_000_000

_LARGEST_NOTE = 1 << 16


@dataclass(frozen=True)
class Archive:
    """One file to download from an address, the folder in it, and the files in that folder.

    ``sums`` are the known MD5 sums of its files and ``sizes`` their known numbers of bytes; ``md5``
    is the sum of the archive itself, and ``most_bytes`` more than all in it has.
    """

    address: str
    file: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    sums: Mapping[str, str] = field(default_factory=dict[str, str])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    most_bytes: int = 1 << 28

    @property
    def files(self) -> tuple[str, ...]:
        """All files that hold images."""
        return (*self.train, self.test)

    def missing(self, place: Path) -> list[str]:
        """Those of its files that ``place`` lacks."""
        return [name for name in self.files if not (place / name).is_file()]

    def sums_at(self, place: Path) -> Mapping[str, str]:
        """The sums that its files must have: those known, else those of the archive got there."""
        return self.sums or _noted(place)

    def wrong(self, place: Path) -> list[str] | None:
        """Those of its files that are not the official ones; None if there is no sum to go by."""
        sizes = {name: (place / name).stat().st_size for name in self.files}
        odd = [name for name, size in sizes.items() if size != self.sizes.get(name, size)]
        sums = self.sums_at(place)
        if odd or any(name not in sums for name in self.files):
            return odd or None
        return [name for name in self.files if md5(place / name) != sums[name]]


#: The forms that the same files are published in, by name; the first is the one to get.
Forms = Mapping[str, Archive]


def md5(path: Path) -> str:
    """The MD5 sum of a file, as the official page gives it."""
    digest = hashlib.md5(usedforsecurity=False)
    with open_regular(path) as file:
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
    lines = _beginning(place / NOTE).splitlines()
    pairs = [line.split(maxsplit=1) for line in lines]
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def _beginning(path: Path) -> str:
    """All of a note; of anything longer than a note, no more than that."""
    with open_regular(path) as file:
        return file.read(_LARGEST_NOTE).decode(errors="replace")


def locate(forms: Forms, root: Path) -> tuple[str, Path] | None:
    """The form and folder of the files under ``root``, or None if no complete one is there.

    The files may be in ``root`` itself or in the folder that the archive makes there.
    """
    for form, archive in forms.items():
        for place in (root / archive.folder, root):
            if not archive.missing(place):
                return form, place
    return None


def first_missing(forms: Forms, root: Path) -> Path:
    """The file to ask for: of the form and folder that is nearest to complete."""
    places = [
        (archive, place) for archive in forms.values() for place in (root / archive.folder, root)
    ]
    archive, place = min(places, key=lambda found: len(found[0].missing(found[1])))
    return place / archive.missing(place)[0]


def verdict(forms: Forms, root: Path) -> Verdict:
    """Whether the files under ``root``, in whichever form, are the official ones."""
    found = locate(forms, root)
    wrong = forms[found[0]].wrong(found[1]) if found else None
    return "unknown" if wrong is None else "no" if wrong else "yes"


class Reader:
    """Reads the files of an archive at a place, and refuses what is not official.

    ``remedy`` ends every message: what to do about a bad file. What was verified is remembered by
    :meth:`remember`, where the place can be written to.
    """

    def __init__(self, archive: Archive, place: Path, remedy: str) -> None:
        self._archive, self._place, self.remedy = archive, place, remedy
        self._sums = archive.sums_at(place)
        self._before = _verified(place)
        self._now: dict[str, Any] = {}

    def read(self, name: str) -> bytes:
        """The content of one of the files."""
        path = self._place / name
        try:
            raw, stamp = self._read(path, name)
        except OSError as error:
            raise cannot_read(path, error) from error
        if name in self._sums:
            self._check_sum(path, raw, stamp)
        return raw

    def _read(self, path: Path, name: str) -> tuple[bytes, list[int]]:
        with open_regular(path) as file:
            stamp = _stamp(file)
            size = stamp[0]
            most = self._archive.most_bytes
            if size != self._archive.sizes.get(name, size) or size > most:
                official = self._archive.sizes.get(name, f"at most {most}")
                word = "cut short" if isinstance(official, int) and size < official else "too long"
                raise UsageError(
                    f"{path} is {word}: it has {size} bytes, the official file {official}. "
                    f"{self.remedy}"
                )
            raw = file.read(size + 1)
            if len(raw) != size or _stamp(file) != stamp:
                raise UsageError(
                    f"{path} changed while it was read: run this again when nothing writes to it"
                )
        return raw, stamp

    def _check_sum(self, path: Path, raw: bytes, stamp: list[int]) -> None:
        expected = self._sums[path.name]
        entry = [expected, *stamp]
        if self._before.get(path.name) != entry:
            found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
            if found != expected:
                raise UsageError(
                    f"{path} is not the official file: its MD5 sum is {found}, not {expected}. "
                    f"{self.remedy} Images of your own are trained on with --dataset folder"
                )
            if time.time_ns() - max(stamp[1:3]) < SETTLED:
                return
        self._now[path.name] = entry

    def remember(self) -> None:
        """Note what was verified. Without a note it is verified again, so a failure is none."""
        if self._now == self._before:
            return
        try:
            files.write_json(self._place / VERIFIED, self._now)
        except OSError:  # a read-only place, or a full one
            return


def _stamp(file: IO[bytes]) -> list[int]:
    """What changes when a file does: its change time also where its time was set back."""
    found = os.fstat(file.fileno())
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _verified(place: Path) -> dict[str, Any]:
    """The note of before; nothing where it cannot be read or is none of ours."""
    try:
        found = json.loads(_beginning(place / VERIFIED))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}
