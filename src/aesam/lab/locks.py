"""One process at a time trains in a folder."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from aesam.lab import files
from aesam.lab.errors import UsageError

_held: set[int] = set()


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Keep other processes out of ``folder``, which is made if it is not there.

    The lock is on the open folder itself: it leaves no file behind, and the system takes it back
    when the process ends, however it ends.
    """
    files.make_writable_folder(folder)
    if sys.platform == "win32":  # it has no such locks
        yield
        return
    import fcntl

    with files.told_of(folder):
        handle = os.open(folder, os.O_RDONLY)
    _held.add(handle)
    try:
        with suppress(OSError):  # a file system that cannot lock folders
            _lock(handle, folder)
        yield
    finally:
        _held.discard(handle)
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{folder} is in use: another process is training in it. Wait until it ends, or choose "
            "another folder"
        ) from None


def _let_go() -> None:
    """In a forked child: a lock lasts as long as anyone has the folder open, and we may be killed.

    Processes that decode images would otherwise keep it for a while.
    """
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
