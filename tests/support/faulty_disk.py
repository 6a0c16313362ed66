"""A disk that fails: the calls to the system that reach a folder, counted, recorded or refused."""

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

#: Calls by name, and which of their arguments are paths.
BY_PATH = {
    "stat": (0,), "mkdir": (0,), "unlink": (0,), "replace": (0, 1), "chmod": (0,),
    "listdir": (0,), "scandir": (0,),
}  # fmt: skip
BY_HANDLE = ("fsync",)


def absolute(path):
    return str(Path(path).absolute())


class WatchedFile:
    """An open file whose reads and writes are told before they happen."""

    def __init__(self, file, path, disk):
        self._file, self._path, self._disk = file, path, disk

    def write(self, content):
        half = len(content) // 2
        self._file.write(content[:half])  # a refused write may have been done in part
        self._disk.called("write", self._path, content)
        return half + self._file.write(content[half:])

    def read(self, *size):
        self._disk.called("read", self._path)
        return self._file.read(*size)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


class WatchedDisk:
    """Tells ``called(name, path, detail)`` of each call below ``folder``, before it happens."""

    def __init__(self, folder: Path, called: Callable[..., None]):
        self._folder, self._called = os.fspath(folder), called
        self._handles: dict[int, str] = {}

    def called(self, name, path, detail=None):
        self._called(name, path, detail)

    def _below(self, path):
        return isinstance(path, str | os.PathLike) and absolute(path).startswith(self._folder)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        for name, places in BY_PATH.items():
            patch.setattr(os, name, self._by_path(name, getattr(os, name), places))
        for name in BY_HANDLE:
            patch.setattr(os, name, self._by_handle(name, getattr(os, name)))
        patch.setattr(os, "open", self._open(os.open))
        patch.setattr(os, "fdopen", self._fdopen(os.fdopen))
        patch.setattr(io, "open", self._file(io.open))
        patch.setattr(builtins, "open", io.open)

    def _by_path(self, name, real, places):
        def call(*args, **options):
            if args and self._below(args[0]):
                paths = [absolute(args[i]) for i in places]
                self.called(name, paths[0], paths[-1])
            return real(*args, **options)

        return call

    def _by_handle(self, name, real):
        def call(handle):
            if handle in self._handles:
                self.called(name, self._handles[handle])
            return real(handle)

        return call

    def _open(self, real):
        def call(path, flags, *args, **options):
            if not self._below(path):
                return real(path, flags, *args, **options)
            path = absolute(path)
            self.called("create" if flags & os.O_CREAT else "open", path)
            handle = real(path, flags, *args, **options)
            self._handles[handle] = path
            return handle

        return call

    def _fdopen(self, real):
        def call(handle, *args, **options):
            file = real(handle, *args, **options)
            path = self._handles.get(handle)
            return file if path is None else WatchedFile(file, path, self)

        return call

    def _file(self, real):
        def call(path, *args, **options):
            if not self._below(path):
                return real(path, *args, **options)
            path = absolute(path)
            self.called("open", path)
            return WatchedFile(real(path, *args, **options), path, self)

        return call


class Counter:
    """How many calls there are, and which."""

    def __init__(self):
        self.names = []

    def __call__(self, name, path, detail):
        self.names.append(name)


class FailsAt:
    """The call number ``at`` is refused with ``error``; with ``for_good``, all after it too."""

    def __init__(self, at, error, *, for_good=False):
        self._at, self._error, self._for_good = at, error, for_good
        self._count = 0
        self.failed = None

    def __call__(self, name, path, detail):
        self._count += 1
        if self._count == self._at + 1 or (self._for_good and self._count > self._at):
            self.failed = self.failed or f"{name} {Path(path).name}"
            raise OSError(self._error, os.strerror(self._error), path)


def with_disk(folder, called, action):
    """What ``action()`` gives while ``called`` is told of each call below ``folder``."""
    with pytest.MonkeyPatch.context() as patch:
        WatchedDisk(folder, called).watch(patch)
        return action()
