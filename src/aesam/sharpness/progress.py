"""Telling how far a measure has come: to a function, on a bar, or on a line."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

Told = Callable[[int, int], None]
Telling = bool | Told
TENTHS = 10
EVERY = 100  # pieces of work, where their number is not known


@contextmanager
def counted(progress: Telling, what: str, total: int) -> Generator[Callable[[], None]]:
    """A function to call after each of ``total`` pieces of work; 0 where that is not known.

    Work that ends early, because nothing is left to do, counts as done.

    >>> with counted(lambda done, total: print(done, "of", total), "example", 2) as tick:
    ...     tick()
    1 of 2
    2 of 2
    """
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(
            "progress must be True, False or a function of (done, total), "
            f"got {progress!r} of type {type(progress).__name__}"
        )
    if progress is False:
        yield lambda: None
    elif progress is True:
        with _shown(what) as told:
            yield from _ticks(told, total)
    else:
        yield from _ticks(progress, total)


def _ticks(told: Told, total: int) -> Generator[Callable[[], None]]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        told(done, total)

    yield tick
    if done < total:
        told(total, total)


@contextmanager
def _shown(what: str) -> Generator[Told]:
    """A bar where rich is installed, otherwise a line that counts."""
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
    except ImportError:
        with _line(what) as told:
            yield told
        return
    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextmanager
def _line(what: str) -> Generator[Told]:
    """One line that is written over on a terminal; in a log, a line for every tenth."""
    if not sys.stderr.isatty():
        yield lambda done, total: _log(what, done, total)
        return

    def told(done: int, total: int) -> None:
        print(f"\r{what} {done}/{total or '?'}", end="", file=sys.stderr, flush=True)

    try:
        yield told
    finally:
        print(file=sys.stderr)


def _log(what: str, done: int, total: int) -> None:
    tenth = total / TENTHS or EVERY
    if done == total or done // tenth > (done - 1) // tenth:
        print(f"{what} {done}/{total or '?'}", file=sys.stderr, flush=True)
