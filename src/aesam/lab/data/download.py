"""Archives of official files: download, verify, unpack, and only then put into place."""

import gzip
import hashlib
import http.client
import io
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast
from urllib.error import URLError

from aesam.lab.data.data_records import TellProgress
from aesam.lab.data.official_files import Archive, Forms, locate, md5, note_sums
from aesam.lab.errors import UsageError, unknown

TIMEOUT = 60.0

#: No official archive has more; each may cost a file and a folder.
MOST_MEMBERS = 100

_NOT_OF_THE_DISK = (gzip.BadGzipFile, tarfile.TarError)


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
            f"{place / wrong[0]} is not the official file (its size or MD5 sum differs): "
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
            _extract(source, archive, Path(aside))
        except Exception as error:  # a damaged archive can fail in every way there is
            if isinstance(error, OSError) and not isinstance(error, _NOT_OF_THE_DISK):
                raise
            raise UsageError(
                f"cannot unpack {archive.file} ({error}): remove it and run this again"
            ) from error
        fresh = Path(aside) / archive.folder
        bad = archive.missing(fresh) or archive.wrong(fresh)
        if bad:
            raise UsageError(f"{archive.file} has no good {archive.folder}/{bad[0]}")
        note_sums(archive, fresh)
        fresh.rename(root / archive.folder)
    tell(f"unpacking {archive.file}", 1, 1)
    return root / archive.folder


def _extract(source: Path, archive: Archive, aside: Path) -> None:
    """Files and folders only, and no more of them than the official archive could have."""
    with gzip.open(source) as unpacked:
        bounded = cast(IO[bytes], _Bounded(unpacked, archive.most_bytes))
        with tarfile.open(fileobj=bounded, mode="r|") as tar:
            for count, member in enumerate(tar):
                if count >= MOST_MEMBERS:
                    raise ValueError(f"it has more than {MOST_MEMBERS} members")
                if not (member.isreg() or member.isdir()) or member.issparse():
                    raise ValueError(f"{member.name!r} in it is neither a file nor a folder")
                tar.extract(member, aside, filter="data")  # refuses what leaves the folder
        while bounded.read(1 << 20):  # to the end, where the sum of all is
            pass


class _Bounded(io.RawIOBase):
    """What an archive unpacks to, refused where that has no end."""

    def __init__(self, unpacked: gzip.GzipFile, most: int) -> None:
        self._unpacked, self._left, self._most = unpacked, most, most

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; never more at once than may still come."""
        found = self._unpacked.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(found)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {self._most} bytes")
        return found
