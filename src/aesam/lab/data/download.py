"""Gets the official archives: download, verify, unpack, and only then put into place."""

import hashlib
import http.client
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.error import URLError

from aesam.lab.data.archives import ADDRESS, ARCHIVES, Archive, locate, md5, note_sums
from aesam.lab.data.catalog import check
from aesam.lab.errors import UsageError, unknown

#: Called with what is being done, how far it is, and how far it goes (0 if not known).
Progress = Callable[[str, int, int], None]

TIMEOUT = 60.0


def fetch(
    name: str,
    root: Path | str,
    progress: Progress | None = None,
    *,
    form: str | None = None,
    address: str = ADDRESS,
    archive: Archive | None = None,
) -> Path:
    """The folder that holds the data set, downloaded to ``root`` if it is not there yet.

    What is there already is verified by its sums. An archive that was put into ``root`` by hand is
    used instead of a download. Nothing appears under its name before its sum is verified, and a
    failure or an interrupt leaves nothing behind. ``form`` is ``"binary"`` (unless the other one is
    there) or ``"python"``. ``address`` and ``archive`` are for mirrors.
    """
    check(name)
    root, say = Path(root).expanduser(), progress or _silent
    if name not in ARCHIVES:
        say(f"{name} needs no download", 1, 1)
        return root
    if form is not None and form not in ARCHIVES[name]:
        raise unknown("form", form, ARCHIVES[name])
    if form is None:
        found = None if archive else locate(name, root)
        form = found[0] if found else "binary"
    wanted = archive or ARCHIVES[name][form]
    for place in (root / wanted.folder, root):
        if not wanted.missing(place):
            return _verified(wanted, place, say)
    if (root / wanted.folder).exists():
        raise UsageError(
            f"{root / wanted.folder} is there but lacks {wanted.missing(root / wanted.folder)[0]}: "
            "move the folder away or add the file, and run this again"
        )
    try:
        return _get(wanted, root, address, say)
    except OSError as error:
        raise UsageError(f"cannot write {wanted.folder} to {root}: {error}") from error


def _silent(what: str, done: int, total: int) -> None:
    """For callers that want no progress."""


def _verified(archive: Archive, place: Path, say: Progress) -> Path:
    say(f"{place} is already there, verifying", 0, 1)
    wrong = archive.wrong(place)
    if wrong:
        raise UsageError(
            f"{place / wrong[0]} is not the official file (its MD5 sum differs): "
            f"move {place} away and run this again"
        )
    verdict = "not verified, no sums are known" if wrong is None else "verified"
    say(f"{place} is already there, {verdict}", 1, 1)
    return place


def _get(archive: Archive, root: Path, address: str, say: Progress) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    by_hand = root / archive.file
    if by_hand.is_file():
        say(f"verifying {by_hand}", 0, 1)
        if md5(by_hand) != archive.md5:
            raise UsageError(
                f"{by_hand} does not have the MD5 sum {archive.md5} of the official file: "
                "remove it and run this again"
            )
        return _unpack(by_hand, archive, root, say)
    with tempfile.NamedTemporaryFile(dir=root, prefix=f".{archive.file}.", suffix=".part") as part:
        _download(archive, root, address, part, say)
        return _unpack(Path(part.name), archive, root, say)


def _download(archive: Archive, root: Path, address: str, target: IO[bytes], say: Progress) -> None:
    digest, done = hashlib.md5(usedforsecurity=False), 0
    for chunk, total in _chunks(archive, root, address):
        target.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        say(f"downloading {archive.file}", done, total)
    target.flush()
    if digest.hexdigest() != archive.md5:
        raise UsageError(
            f"what {address}{archive.file} sent has the MD5 sum {digest.hexdigest()}, not the "
            f"official {archive.md5}: it was removed, try again or use another network"
        )


def _chunks(archive: Archive, root: Path, address: str) -> Iterator[tuple[bytes, int]]:
    """The pieces of the file, each with the whole length; network trouble as one clear error."""
    got = total = 0
    try:
        with urllib.request.urlopen(address + archive.file, timeout=TIMEOUT) as response:
            total = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(1 << 18):
                got += len(chunk)
                yield chunk, total
        if got < total:
            raise ConnectionError(f"the connection ended after {got} of {total} bytes")
    except (URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise UsageError(
            f"cannot download {address}{archive.file} ({reason}). Try again, or put "
            f"{archive.file} (MD5 {archive.md5}) into {root} by other means and run this again"
        ) from error


def _unpack(source: Path, archive: Archive, root: Path, say: Progress) -> Path:
    say(f"unpacking {archive.file}", 0, 1)
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
    say(f"unpacking {archive.file}", 1, 1)
    return root / archive.folder
