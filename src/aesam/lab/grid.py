"""Many runs, over this machine's cores or over a cluster; finished ones are never run again."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# joblib carries no types.

import os
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from joblib.externals.loky.process_executor import BrokenProcessPool

from aesam.lab import clusters, plugins
from aesam.lab.config import Run
from aesam.lab.crew import Crew
from aesam.lab.errors import UsageError, in_words, unknown
from aesam.lab.folders import RunFolder
from aesam.lab.training.interrupts import Stopped, StopRequest

EngineName = Literal["local", "ray", "dask"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
DIED = "its process was killed"


@dataclass(frozen=True)
class Job:
    """A run and the folder it belongs in."""

    run: Run
    folder: Path

    @property
    def root(self) -> Path:
        """Where the data lie, whatever the worker's own folder is; no part of the run."""
        return Path(self.run.data.root).expanduser().absolute()

    @property
    def is_finished(self) -> bool:
        try:
            return RunFolder(self.folder).is_finished(self.run)
        except (UsageError, OSError):  # a damaged folder: the run itself will say so
            return False


@dataclass(frozen=True)
class Outcome:
    """How a job ended; ``error`` is None where it finished."""

    job: Job
    error: str | None = None
    tries: int = 1


Done = Callable[[Outcome], None]

#: Jobs and the number of workers, to each job and what went wrong, as they end.
OnMachines = Callable[[Sequence[Job], int], Iterator[tuple[Job, str | None]]]


def run_all(
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
    done: Done | None = None,
    crew: Crew | None = None,
) -> list[Outcome]:
    """Finish all jobs; one that fails or whose process dies is tried once more, alone.

    ``done`` is called with each outcome as it comes. Jobs that were finished before come with no
    tries. Never more workers are started than there are jobs left to do; those of a ``crew`` stay
    for the next call. Asked to stop by a signal, this ends its workers and raises :class:`Stopped`.
    """
    check_engine(workers, engine, address)
    done = done or _ignore
    outcomes = [Outcome(job, tries=0) for job in jobs if job.is_finished]
    for outcome in outcomes:
        done(outcome)
    waiting, suspects = [job for job in jobs if not job.is_finished], list[Job]()
    if not waiting:
        return outcomes
    workers = min(workers, len(waiting))
    with (
        clusters.connected(engine, address, workers),
        _worker_restarts_unsaid(),
        nullcontext(crew) if crew is not None else Crew() as hands,
    ):
        on_machines = partial(_on_cluster, engine) if engine != "local" else partial(_by, hands)
        while waiting:
            ended = _round(waiting, workers, on_machines, done)
            outcomes += [o for o in ended if o.error is None]
            left = [o.job for o in ended if o.error is not None]
            untouched = [job for job in left if not RunFolder(job.folder).config.exists()]
            # Where a process died, those that had not begun go on as before; if none had, all are
            # suspect, or this would not end.
            waiting = untouched if len(untouched) < len(waiting) else []
            suspects += [job for job in left if job not in waiting]
        for job in suspects:
            hands.end()  # alone, and in a process that has done nothing before
            (again,) = _round([job], 1, on_machines, _ignore)
            outcomes.append(Outcome(job, again.error, tries=2))
            done(outcomes[-1])
    return outcomes


def check_engine(workers: int, engine: str, address: str | None) -> None:
    """Refuse what cannot be: an unknown engine, no workers, an address without a cluster."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if workers < 1:
        raise UsageError(f"jobs must be at least 1, got {workers}")
    if address is not None and engine == "local":
        raise UsageError("address is of a cluster: give --engine dask or ray with it")


def _ignore(outcome: Outcome) -> None:
    pass


@contextmanager
def _worker_restarts_unsaid() -> Generator[None]:
    """A worker that grew with its data is replaced between two runs: no news for users."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        yield


def _round(jobs: Sequence[Job], workers: int, on_machines: OnMachines, done: Done) -> list[Outcome]:
    """Each job once; those that a dead process took along count as failed."""
    ended: dict[Path, Outcome] = {}
    for job, error in on_machines(jobs, workers):
        ended[job.folder] = Outcome(job, error)
        if error is None:
            done(ended[job.folder])
    for job in [j for j in jobs if j.folder not in ended]:
        ended[job.folder] = Outcome(job, None if job.is_finished else DIED)
        if job.is_finished:
            done(ended[job.folder])
    return [ended[job.folder] for job in jobs]


def _by(crew: Crew, jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, str | None]]:
    """Processes of their own even for one job at a time: what dies there must not die here."""
    workers = min(workers, len(jobs))
    threads = max(1, (os.cpu_count() or 1) // workers)
    is_sound = False
    try:
        # A signal that raised within loky would leave its locks and threads anyhow.
        with StopRequest() as request:
            begun = crew.begin(_train, _tasks(jobs, threads), workers)
            futures: dict[Any, Job] = dict(zip(begun, jobs, strict=True))
            died = False
            for future in _as_completed(futures, request):
                job = futures[future]
                try:
                    yield future.result()
                except BrokenProcessPool:
                    died = True
                    if job.is_finished:
                        yield job, None
        is_sound = not died
    finally:
        if not is_sound:
            crew.end(at_once=True)


def _as_completed(futures: Iterable[Any], request: StopRequest) -> Iterator[Any]:
    """Each as it completes, until a stop is asked for."""
    left = set(futures)
    while left:
        ended, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
        if request.signum:
            raise Stopped(request.signum, "before all runs were finished")
        yield from ended


def _on_cluster(engine: str, jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, str | None]]:
    results = clusters.on_ray if engine == "ray" else clusters.on_dask
    return results(_train, _tasks(jobs, 0), workers)


def _tasks(jobs: Sequence[Job], threads: int) -> list[tuple[Job, int, Path, list[str]]]:
    """What a worker must be told; 0 threads leaves their number to it."""
    return [(job, threads, job.root, plugins.names()) for job in jobs]


def _train(job: Job, threads: int, root: Path, modules: list[str]) -> tuple[Job, str | None]:
    """In a worker: the run, gone on with if it was begun; any error as text."""
    from aesam.lab.training.trainer import train

    if threads:
        torch.set_num_threads(threads)
    try:
        plugins.load(modules)
        train(job.run, job.folder, resume=True, root=root)
    except Stopped as stop:
        return job, f"its process was told to stop {stop.where}"
    except Exception as error:
        return job, in_words(error) or traceback.format_exc()
    return job, None


@contextmanager
def watched(look: Callable[[], None], every: float = 0.5) -> Generator[None]:
    """Calls ``look`` from time to time, from a thread of its own, and once more at the end."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        look()


def epochs_done(jobs: Iterable[Job]) -> int:
    """How many epochs of all jobs are on disk."""
    total = 0
    for job in jobs:
        try:
            total += RunFolder(job.folder).metrics.read_bytes().count(b"\n")
        except OSError:
            continue
    return total
