"""Batches of image files, decoded ahead by processes of their own, whose end is told in words."""

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from aesam.lab import draws, orphans
from aesam.lab.data.augment import Normalizer
from aesam.lab.data.pictures import decode
from aesam.lab.data.sets import FolderSplit, whole_numbers
from aesam.lab.errors import ProcessDied, UsageError
from aesam.lab.regular_files import cannot_read

#: Seconds for one file, after which a worker ends itself: a decoder may be stuck for good.
PATIENCE = 300.0
NO_ROW = -1


@dataclass(frozen=True)
class Unreadable:
    """What a worker sends in place of a batch with a bad file.

    An exception would arrive wrapped in the worker's traceback.
    """

    message: str


Decoded = tuple[Tensor, Tensor] | Unreadable


class Files(Dataset[Decoded]):
    """What a worker process needs to turn rows of a split into a batch of raw pixels.

    ``desks`` has for each worker its process and the row that it is at, for the case of its death.
    """

    def __init__(self, split: FolderSplit, size: int, flips: bool, key: int | None) -> None:
        self.paths, self.labels = split.paths, split.labels
        self.size, self.flips, self.key = size, flips, key
        self.desks = torch.empty(0, 2, dtype=torch.int64)

    def set_desks(self, workers: int) -> None:
        """A new one for each of so many workers, in memory that they share with this process."""
        self.desks = torch.full((workers, 2), NO_ROW, dtype=torch.int64)
        self.desks.share_memory_()  # pyright: ignore[reportUnknownMemberType]

    def __getitem__(self, index: int) -> Decoded:
        return self.__getitems__([index])

    def __getitems__(self, rows: list[int]) -> Decoded:
        """A whole batch; this is the method that a DataLoader asks for first."""
        pixels = torch.empty(len(rows), 3, self.size, self.size, dtype=torch.uint8)
        try:
            for place, row in enumerate(rows):
                self._note(row)
                source = None if self.key is None else random.Random(draws.key(self.key, row))
                try:
                    pixels[place] = decode(self.paths[row], self.size, source, self.flips)
                except Exception as error:  # a damaged file can fail in every way there is
                    return Unreadable(_told(self.paths[row], error))
        finally:
            self._note(NO_ROW)
        return pixels, self.labels[torch.tensor(rows)]

    def _note(self, row: int) -> None:
        """Say which row this worker is at, and end it where that takes for ever."""
        worker = get_worker_info()
        if worker is None:
            return
        self.desks[worker.id] = torch.tensor([os.getpid(), row])
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0.0 if row == NO_ROW else PATIENCE)


def _told(path: str, error: Exception) -> str:
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:  # Pillow's own have no number
        return str(cannot_read(path, error))
    reason = str(error) or type(error).__name__
    return f"cannot decode {path} ({reason}): repair or remove the file"


def decoded(
    files: Files,
    rows: list[list[int]],
    normalize: Normalizer,
    device: torch.device,
    workers: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of these rows, in order, normalised on the device."""
    files.set_desks(workers)
    loader: DataLoader[Decoded] = DataLoader(
        files,
        batch_sampler=rows,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=device.type == "cuda",
        worker_init_fn=partial(_begin, os.getpid()),
        multiprocessing_context=_start_method() if workers else None,
        # A loader draws a seed for its workers: from here, not from the global random state.
        generator=torch.Generator().manual_seed(0),
    )
    batches, crew = _started(loader)
    # Also where a program ends with an epoch left open: it would wait for them to hear a signal.
    end = Finalize(None, _kill, (crew,), exitpriority=10)
    try:
        while (batch := _next(batches, crew, files)) is not None:
            if isinstance(batch, Unreadable):
                raise UsageError(batch.message)
            pixels, labels = batch
            yield normalize(pixels.to(device, non_blocking=True)), labels.to(device)
    finally:
        del batches  # which asks the workers to end; one that is stuck does not hear it
        end()


def _start_method() -> str:
    """How processes are started here: in a worker of a grid, whose own way is none, as usual."""
    known = multiprocessing.get_all_start_methods()
    method = multiprocessing.get_start_method(allow_none=True)
    return method if method in known else known[0]


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin(trainer: int, worker: int) -> None:  # noqa: ARG001
    """In a worker: end with the trainer, and leave signals to it.

    Ctrl-C and a cluster's SIGTERM reach workers too, which the trainer needs to the last step. A
    DataLoader's worker looks for its trainer as well, but one that was gone by the first look is
    never missed.
    """
    orphans.end_with(trainer)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _started(loader: DataLoader[Decoded]) -> tuple[Iterator[Decoded], list[BaseProcess]]:
    """Its workers at work, and their death told only to who asks for a batch.

    Torch handles SIGCHLD by an exception wherever the program is, in a step or amid a save.
    """
    number = getattr(signal, "SIGCHLD", None)
    before = None if number is None else signal.getsignal(number)
    others = multiprocessing.active_children()
    batches = iter(loader)
    if number is not None and before is not None and signal.getsignal(number) is not before:
        signal.signal(number, before)
    return batches, [child for child in multiprocessing.active_children() if child not in others]


def _kill(crew: list[BaseProcess]) -> None:
    for worker in crew:
        if worker.is_alive():
            worker.kill()
            worker.join()


def _next(batches: Iterator[Decoded], crew: list[BaseProcess], files: Files) -> Decoded | None:
    try:
        return next(batches, None)
    except (RuntimeError, OSError, EOFError) as error:
        # Its own words for it, or a connection that ends where a batch was on its way.
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
            raise
        for worker in crew:
            worker.join(0.5)  # one may be just dying
        dead = {worker.pid for worker in crew if not worker.is_alive()}
        if not dead:
            raise
        raise ProcessDied(_of_the_dead(dead, files)) from None


def _of_the_dead(dead: set[int | None], files: Files) -> str:
    """What they were at."""
    rows = [row for pid, row in map(whole_numbers, files.desks) if pid in dead and row != NO_ROW]
    end = "use fewer workers or a smaller batch if memory was short; training goes on with --resume"
    if not rows:
        return f"a process that decodes images was killed: {end}"
    names = " or ".join(files.paths[row] for row in rows)
    return (
        f"a process that decodes images was killed while it read {names}: {end}. If that happens "
        f"again, or took {PATIENCE:g} s, repair or remove the file"
    )
