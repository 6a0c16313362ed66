"""Telling how far a measure has come: to a function, on a bar, or on a line."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

Told = Callable[[int, int], None]
Progress = bool | Told


@contextmanager
def counted(progress: Progress, what: str, total: int) -> Generator[Callable[[], None]]:
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
    """A bar where rich is installed, otherwise one line that counts."""
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
    def told(done: int, total: int) -> None:
        print(f"\r{what} {done}/{total or '?'}", end="", file=sys.stderr, flush=True)

    try:
        yield told
    finally:
        print(file=sys.stderr)
