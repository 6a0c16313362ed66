"""Archives of official files: download, verify, unpack, and only then put into place."""

import hashlib
import http.client
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.error import URLError

from aesam.lab.data.data_records import TellProgress, Verdict
from aesam.lab.errors import UsageError, unknown

TIMEOUT = 60.0

#: Written beside the files of a verified archive, in the form that ``md5sum -c`` reads.
NOTE = "md5sums.txt"


@dataclass(frozen=True)
class Archive:
    """One file to download from an address, the folder in it, and the files in that folder.

    ``sums`` are the known MD5 sums of its files, ``md5`` is that of the archive itself.
    """

    address: str
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


#: The forms that the same files are published in, by name; the first is the one to get.
Forms = Mapping[str, Archive]


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
    """Whether the files under ``root``, in whichever form, have the official sums."""
    found = locate(forms, root)
    wrong = forms[found[0]].wrong(found[1]) if found else None
    return "unknown" if wrong is None else "no" if wrong else "yes"


def fetch_archive(forms: Forms, root: Path, tell: TellProgress, form: str | None = None) -> Path:
    """The folder with the files of an archive, downloaded to ``root`` if it is not there yet.

    What is there already is verified by its sums. An archive that was put into ``root`` by hand is
    used instead of a download. Nothing appears under its name before its sum is verified, and a
    failure or an interrupt leaves nothing behind. ``form`` is the one that is there, else the
    first, unless given.
    """
    if form is None:
        form, _ = locate(forms, root) or (next(iter(forms)), root)
    if form not in forms:
        raise unknown("form", form, forms)
    wanted = forms[form]
    for place in (root / wanted.folder, root):
        if not wanted.missing(place):
            return _verified(wanted, place, tell)
    if (root / wanted.folder).exists():
        raise UsageError(
            f"{root / wanted.folder} is there but lacks {wanted.missing(root / wanted.folder)[0]}: "
            "move the folder away or add the file, and run this again"
        )
    try:
        return _get(wanted, root, tell)
    except OSError as error:
        raise UsageError(f"cannot write {wanted.folder} to {root}: {error}") from error


def _verified(archive: Archive, place: Path, tell: TellProgress) -> Path:
    tell(f"{place} is already there, verifying", 0, 1)
    wrong = archive.wrong(place)
    if wrong:
        raise UsageError(
            f"{place / wrong[0]} is not the official file (its MD5 sum differs): "
            f"move {place} away and run this again"
        )
    known = "not verified, no sums are known" if wrong is None else "verified"
    tell(f"{place} is already there, {known}", 1, 1)
    return place


def _get(archive: Archive, root: Path, tell: TellProgress) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    by_hand = root / archive.file
    if by_hand.is_file():
        tell(f"verifying {by_hand}", 0, 1)
        if md5(by_hand) != archive.md5:
            raise UsageError(
                f"{by_hand} does not have the MD5 sum {archive.md5} of the official file: "
                "remove it and run this again"
            )
        return _unpack(by_hand, archive, root, tell)
    with tempfile.NamedTemporaryFile(dir=root, prefix=f".{archive.file}.", suffix=".part") as part:
        _download(archive, root, part, tell)
        return _unpack(Path(part.name), archive, root, tell)


def _download(archive: Archive, root: Path, target: IO[bytes], tell: TellProgress) -> None:
    digest, done = hashlib.md5(usedforsecurity=False), 0
    for chunk, total in _chunks(archive, root):
        target.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        tell(f"downloading {archive.file}", done, total)
    target.flush()
    if digest.hexdigest() != archive.md5:
        raise UsageError(
            f"what {archive.address}{archive.file} sent has the MD5 sum {digest.hexdigest()}, not "
            f"the official {archive.md5}: it was removed, try again or use another network"
        )


def _chunks(archive: Archive, root: Path) -> Iterator[tuple[bytes, int]]:
    """The pieces of the file, each with the whole length; network trouble as one clear error."""
    got = total = 0
    try:
        with urllib.request.urlopen(archive.address + archive.file, timeout=TIMEOUT) as response:
            total = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(1 << 18):
                got += len(chunk)
                yield chunk, total
        if got < total:
            raise ConnectionError(f"the connection ended after {got} of {total} bytes")
    except (URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise UsageError(
            f"cannot download {archive.address}{archive.file} ({reason}). Try again, or put "
            f"{archive.file} (MD5 {archive.md5}) into {root} by other means and run this again"
        ) from error


def _unpack(source: Path, archive: Archive, root: Path, tell: TellProgress) -> Path:
    tell(f"unpacking {archive.file}", 0, 1)
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{archive.folder}.") as aside:
        try:
            with tarfile.open(source) as tar:
                tar.extractall(aside, filter="data")  # refuses members that leave the folder
        except tarfile.TarError as error:
            raise UsageError(f"cannot unpack {archive.file}: {error}") from error
        fresh = Path(aside) / archive.folder
        bad = archive.missing(fresh) or archive.wrong(fresh)
        if bad:
            raise UsageError(f"{archive.file} has no good {archive.folder}/{bad[0]}")
        note_sums(archive, fresh)
        fresh.rename(root / archive.folder)
    tell(f"unpacking {archive.file}", 1, 1)
    return root / archive.folder
