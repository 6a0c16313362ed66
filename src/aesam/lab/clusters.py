"""Work on a cluster, Dask's or Ray's: calls go out a few at a time, results come as they end."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from aesam.lab.errors import UsageError

Work = Callable[..., Any]
Calls = Iterable[tuple[Any, ...]]


@contextmanager
def connected(engine: str, address: str | None, workers: int) -> Generator[None]:
    """While active, work goes to the cluster at ``address``, or to one started on this machine.

    One that is started has no more than ``workers`` processes to work with.
    """
    if engine == "dask":
        with _dask(address, workers):
            yield
    elif engine == "ray":
        with _ray(address):
            yield
    else:
        yield


def on_dask(work: Work, calls: Calls, workers: int) -> Iterator[Any]:
    """The results of all calls as they come; none of those whose worker died."""
    distributed = _import("distributed", "dask")
    client, waiting = distributed.Client.current(), list(calls)
    running = distributed.as_completed()
    try:
        while waiting or running.count():
            while waiting and running.count() < workers:
                running.add(client.submit(work, *waiting.pop(0), pure=False))
            ended = next(running)
            try:
                yield ended.result()
            except distributed.KilledWorker:
                continue
    finally:
        client.cancel(list(running.futures))  # left behind by an interrupt


def on_ray(work: Work, calls: Calls, workers: int) -> Iterator[Any]:
    """The results of all calls as they come; none of those whose worker died.

    Where the cluster has GPUs, each call gets one, or its share of one.
    """
    ray = _import("ray", "ray")
    gpus = min(1.0, ray.cluster_resources().get("GPU", 0.0) / workers)
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(work)
    waiting, running = list(calls), list[Any]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(remote.remote(*waiting.pop(0)))
            (ended,), running = ray.wait(running)
            try:
                yield ray.get(ended)
            except ray.exceptions.RayTaskError:  # the call's own, such as a module that is missing
                raise
            except ray.exceptions.RayError:  # its worker died
                continue
    finally:
        for call in running:  # left behind by an interrupt
            ray.cancel(call, force=True)


def _dask(address: str | None, workers: int) -> Any:
    client = _import("distributed", "dask").Client
    if address:
        try:
            return client(address)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--address {address!r} is no Dask scheduler that answers ({error}): give "
                "tcp://host:port of one that runs, or leave --address out to start one here"
            ) from error
    most = min(workers, os.cpu_count() or 1)
    return client(processes=True, threads_per_worker=1, n_workers=most)


@contextmanager
def _ray(address: str | None) -> Generator[None]:
    ray = _import("ray", "ray")
    if ray.is_initialized():  # by the caller, who ends it too
        yield
        return
    with ray.init(address=address, include_dashboard=False if address is None else None):
        yield


def _import(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"--engine {extra} needs its extra: pip install 'aesam[{extra}]'"
        ) from error
