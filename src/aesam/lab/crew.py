"""Worker processes of this machine, which stay from one round of runs to the next."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# joblib carries no types.

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import BrokenProcessPool

from aesam.lab import orphans


class Crew:
    """Workers that are started when there is work, and end with the block.

    A worker imports torch for seconds before its first run, so a search with many small rounds
    keeps those that it has. They end with the process, however it ends, and with the block: at once
    where an error or an interrupt leaves it.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._size = 0

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(at_once=kind is not None)

    def begin(
        self, do: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], workers: int
    ) -> list[Any]:
        """A future for each task, done by at least so many workers; none sees Ctrl-C.

        Workers that died while there was nothing to do are replaced.
        """
        waiting = list(tasks)
        if self._has_lost_one:
            self.end(at_once=True)
        try:
            return self._submit(do, waiting, workers)
        except BrokenProcessPool:  # one died just now
            self.end(at_once=True)
            return self._submit(do, waiting, workers)

    def _submit(
        self, do: Callable[..., Any], tasks: list[tuple[Any, ...]], workers: int
    ) -> list[Any]:
        if self._size < workers:
            self.end()
        if self._pool is None:
            self._size = workers
            self._pool = ProcessPoolExecutor(
                workers, initializer=orphans.end_with, initargs=(os.getpid(),)
            )
        with orphans.interrupts_held_back():
            return [self._pool.submit(do, *task) for task in tasks]

    @property
    def _has_lost_one(self) -> bool:
        """Loky itself may notice only when it has been given work, which is then lost too."""
        known: dict[int, Any] = {} if self._pool is None else dict(self._pool._processes)
        return sum(worker.is_alive() for worker in known.values()) < self._size

    def end(self, *, at_once: bool = False) -> None:
        """End the workers: when they have nothing left to do, or at once."""
        pool, self._pool, self._size = self._pool, None, 0
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=at_once)
