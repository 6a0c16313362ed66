"""Files that are whole or not there, never half written."""

import errno
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any


class DiskError(OSError):
    """A file could not be written; what was there before is untouched."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside, make durable, then rename: a crash leaves the old file or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _disk_error(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(_usual_mode())
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _disk_error(path, error) from error
        raise


def make_writable_folder(path: Path) -> None:
    """Make the folder if it is not there, and find out now whether files can be written to it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        told = f"cannot write to {path} ({error.strerror}): choose another folder or let it be "
        raise DiskError(error.errno, told + "written to") from error


def _usual_mode() -> int:
    """What a file opened in the ordinary way would have; temporary ones are private."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _disk_error(path: Path, error: OSError) -> DiskError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = ". Make room and go on with --resume" if full else ""
    return DiskError(
        error.errno,
        f"could not write {path} ({error.strerror}); what was saved before is still there{advice}",
    )


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def without_nan(value: Any) -> Any:
    """The same with None for numbers that JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [without_nan(v) for v in value]  # pyright: ignore
    return value


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def read_lines(path: Path) -> list[Any]:
    """The values of a file with one JSON value per line."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
