"""SIGTERM and Ctrl-C as a request to stop after the current step, with everything saved."""

import signal
from types import FrameType, TracebackType
from typing import Any


class Stopped(BaseException):
    """Training stopped on request; the checkpoint holds all of it.

    No ``Exception``: what tries again or goes on after any error must not do so after this.
    """

    def __init__(self, signum: int, where: str) -> None:
        super().__init__(f"stopped {where}; go on with --resume")
        self.signum, self.where = signum, where
        self.exit_code = 128 + signum


class StopRequest:
    """While active, notes the first SIGTERM or SIGINT; a second one interrupts at once."""

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread: the caller's handlers stay
                break
        return self

    def _note(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signum = signum
        self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
