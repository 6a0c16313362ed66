"""Standard streams as they come: closed, full, a pipe that nobody reads, or not UTF-8."""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import TextIO

from aesam.lab.errors import DiskError

#: What shells report of a program that wrote to a pipe whose reader had left.
BROKEN_PIPE = 128 + 13


def make_safe() -> None:
    """Nothing opened later takes a stream's place, and every character can be printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file, such as a checkpoint, would be opened as this one
            os.open(os.devnull, os.O_RDWR)
    for stream in _there():
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _there() -> list[TextIO]:
    """Those that Python has; one that was closed from the start is None."""
    streams: list[TextIO | None] = [sys.stdout, sys.stderr]
    return [stream for stream in streams if stream is not None]


def flush() -> None:
    """Write out what was printed; Python would do it too late to tell of a failure."""
    for stream in _there():
        stream.flush()


def is_to_blame(error: OSError) -> bool:
    """Whether an error is a stream's: those have no name, while everything else says of what."""
    unnamed = error.filename is None and not isinstance(error, DiskError)
    return unnamed and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def let_go() -> None:
    """Drop what a failing stream still holds, so that Python's own exit says nothing of it."""
    for stream in _there():
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
                stream.flush()
