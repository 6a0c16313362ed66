"""Files that are whole or not there, never half written; and reading them in words."""

import errno
import json
import math
import os
import re
import tempfile
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from aesam.lab.errors import DiskError
from aesam.lab.regular_files import open_regular

#: Ends the names of files that are being written; a crash leaves them, and nobody else has any.
UNFINISHED = ".aesam-unfinished"
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM}


def write_bytes(path: Path, content: bytes, *, make_folder: bool = True) -> None:
    """Write beside, make durable, then rename: a crash leaves the old file or the new one.

    Without ``make_folder`` a folder that is gone stays gone, and is an error.
    """
    try:
        if make_folder:
            _make_folder(path.parent)
        handle, name = tempfile.mkstemp(UNFINISHED, f".{path.name}.", path.parent)
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(_usual_mode())
        Path(name).replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # the disk may be gone or read-only by now
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _not_written(path, error) from error
        raise


def make_writable_folder(path: Path) -> None:
    """Make the folder if it is not there, and find out now whether files can be written to it."""
    try:
        _make_folder(path)
        with tempfile.TemporaryFile(dir=path, prefix=".trial.", suffix=UNFINISHED):
            pass
    except OSError as error:
        told = f"cannot write to {path} ({_why(error)}): choose another folder or let it be "
        raise DiskError(error.errno, told + "written to") from error


def remove_unfinished(folder: Path, names: Collection[str]) -> None:
    """Remove what a crash left of writing files of these ``names``; the files themselves stay.

    Only for who has the folder alone: another process may be writing.
    """
    any_of = "|".join(re.escape(name) for name in (*names, "trial"))
    ours = re.compile(rf"\.({any_of})\.[a-z0-9_]+{re.escape(UNFINISHED)}")
    with suppress(OSError):  # they are in nobody's way
        for path in folder.iterdir():
            if ours.fullmatch(path.name):
                path.unlink()


def _make_folder(path: Path) -> None:
    """Make a folder and those above it, to last: each is an entry of the one above."""
    made = list(takewhile(lambda each: not each.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(made):
        _sync_folder(each.parent)


def _sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the system can do that."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _usual_mode() -> int:
    """What a file opened in the ordinary way would have; temporary ones are private."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _not_written(path: Path, error: OSError) -> DiskError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = ". Make room and run it again (train: with --resume)" if full else ""
    return DiskError(
        error.errno,
        f"could not write {path} ({_why(error)}); what was saved before is still there{advice}",
    )


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def write_text(path: Path, text: str, *, make_folder: bool = True) -> None:
    write_bytes(path, text.encode(), make_folder=make_folder)


def write_json(path: Path, value: Any, *, make_folder: bool = True) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n", make_folder=make_folder)


def without_nan(value: Any) -> Any:
    """The same with None for numbers that JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [without_nan(v) for v in value]  # pyright: ignore
    return value


def remove(path: Path) -> None:
    """Remove a file if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        told = f"could not remove {path} ({_why(error)}): let the folder be written to"
        raise DiskError(error.errno, told) from error


@contextmanager
def told_of(path: Path) -> Generator[None]:
    """While ``path`` is looked at, what the system refuses is told; what is absent stays so."""
    try:
        yield
    except (DiskError, FileNotFoundError):
        raise
    except OSError as error:
        raise DiskError(
            error.errno,
            f"could not read {error.filename or path} ({_why(error)}): let it be read, or put a "
            "good copy in its place; nothing was changed",
        ) from error


def read_bytes(path: Path) -> bytes:
    """The whole content; a :class:`DiskError` where it cannot be read."""
    with told_of(path), open_regular(path) as file:
        return file.read()


def read_json(path: Path) -> Any:
    """The value in a JSON file; a ValueError says what is wrong with it."""
    return parse_json(read_bytes(path))


def read_lines(path: Path) -> list[Any]:
    """The values of a file with one JSON value per line."""
    return [parse_json(line) for line in read_bytes(path).splitlines() if line.strip()]


def parse_json(text: bytes) -> Any:
    """The value of a JSON text; a ValueError says what is wrong with it."""
    try:
        return json.loads(text.decode(), parse_int=_whole)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def is_number(value: object) -> bool:
    """Whether a value read from a file is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(digits: str) -> int:
    """A whole number that others may take for a float; Python's own have any size."""
    if len(digits) > 300:
        raise ValueError(f"{digits[:20]}… is too large a number")
    return int(digits)
