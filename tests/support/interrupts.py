"""A Ctrl-C before any line of a piece of code, one after the other."""

import contextlib
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import aesam

OURS = str(Path(aesam.__file__).parent)
#: Where Python itself runs between our lines: the context managers.
BETWEEN = contextlib.__file__
TORCH = str(Path(torch.__file__).parent)


class Lines:
    """Counts the lines that a block executes in these files, and interrupts it before the k-th.

    What runs inside a function that is set ``apart`` is not counted; with ``only``, all else.
    """

    def __init__(self, files: tuple[str, ...], at: int | None = None) -> None:
        self._files, self._at = files, at
        self.count = 0
        self.where = ""
        self._apart = 0

    def __enter__(self) -> "Lines":
        self._before = sys.gettrace()
        gc.disable()  # what it collects would call back at any line, where nobody hears an error
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        gc.enable()

    def apart(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self._apart += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._apart -= 1

        return called

    def only(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self._apart = 1

        def called(*args: Any, **kwargs: Any) -> Any:
            self._apart -= 1
            try:
                return function(*args, **kwargs)
            finally:
                self._apart += 1

        return called

    def _called(self, frame: FrameType, event: str, _: object) -> Any:
        if not self._apart and frame.f_code.co_filename.startswith(self._files):
            return self._line
        return None

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and not self._apart:
            self.count += 1
            if self.count == self._at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line
