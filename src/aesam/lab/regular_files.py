"""Files that can be read to their end, told from what only has a file's name."""

import os
import stat
from pathlib import Path
from typing import IO

from aesam.lab.errors import UsageError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | Path) -> IO[bytes]:
    """The file, opened for reading; what is no file is refused and never waited for.

    A pipe would be waited for without an end, and it may have come after the folder was listed, so
    it is the opened thing that is looked at.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        refuse_odd(path)  # a socket cannot even be opened
        raise
    try:
        _refuse_kind(path, os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def refuse_odd(path: str | Path) -> None:
    """Refuse what is no file, or a link that leads nowhere, by its name."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        if Path(path).is_symlink():
            raise UsageError(
                f"{path} is a link to a file that is not there: bring the file back or remove the "
                "link"
            ) from None
        raise
    _refuse_kind(path, mode)


def _refuse_kind(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise UsageError(f"{path} is {kind}, not a file that can be read: move it away")


def cannot_read(path: object, error: OSError) -> UsageError:
    """What to tell of a read that the system refused."""
    return UsageError(
        f"cannot read {path} ({error.strerror or error}): see that it is there and may be read, "
        "and that its disk is sound"
    )
