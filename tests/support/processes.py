"""Processes, started, heard and always ended: several of gloo, or one under watch."""

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import distributed as dist


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _work(
    rank: int, world: int, port: int, meet: str, seconds: float, task: Callable, args: Any, say: Any
) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), GROUP_RANK="0",
        TORCHELASTIC_RUN_ID="test",
    )  # fmt: skip
    if seconds:
        limit = timedelta(seconds=seconds)
        # They meet at a file: a port that is free now may be another's before they listen on it.
        dist.init_process_group("gloo", meet, rank=rank, world_size=world, timeout=limit)
    try:
        say.put((rank, task(rank, *args), None))
    except BaseException:
        say.put((rank, None, traceback.format_exc()))
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _hear(say: Any, workers: list[Any]) -> Any:
    """The next that is said; an error where all are gone that could say it."""
    for _ in range(180):
        alive = any(worker.is_alive() for worker in workers)
        try:
            return say.get(timeout=1)
        except queue.Empty:
            assert alive, f"ended with {[worker.exitcode for worker in workers]}"
    raise TimeoutError("no process has answered")


def on_processes(task: Callable, *args: Any, world: int = 2, hear: int = 2, seconds: float = 60.0):
    """What ``task(rank, *args)`` returned on each process, by rank; ``hear`` of them return.

    ``seconds`` is the process group's timeout; 0 leaves the group to the task, with the environment
    that torchrun gives. Tensors are to be returned as arrays.
    """
    context = mp.get_context("spawn")
    say, folder = context.Queue(), tempfile.TemporaryDirectory()
    given = (world, free_port(), f"file://{folder.name}/meet", seconds, task, args, say)
    workers = [context.Process(target=_work, args=(rank, *given)) for rank in range(world)]
    try:
        for worker in workers:
            worker.start()
        heard = [_hear(say, workers) for _ in range(hear)]
        failed = [error for _, _, error in heard if error is not None]
        assert not failed, failed[0]
        return [found for _, found, _ in sorted(heard, key=lambda each: each[0])]
    finally:
        for worker in workers:
            worker.join(10)
            worker.kill()
            worker.join()
        folder.cleanup()


def environment() -> dict[str, str]:
    """For a Python of one thread that finds the modules that this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def under_watch(
    kind: str, folder: Path, cases: Iterable[tuple[str, bytes]]
) -> tuple[dict[str, str | None], int]:
    """How reading each case ended in a process of its own (None: it was read), and the most MB.

    That process may neither start anything nor print anything else.
    """
    folder.mkdir()
    names = {f"{i:06}.jpg": (label, raw) for i, (label, raw) in enumerate(cases)}
    for name, (_, raw) in names.items():
        (folder / name).write_bytes(raw)
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("watch.py"), kind, folder], capture_output=True,
        text=True, timeout=600, check=False, cwd=folder.parent, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stderr
    found = json.loads(done.stdout)
    assert not found["events"], found["events"][:5]
    return {names[name][0]: end for name, end in found["ends"].items()}, found["most"]
