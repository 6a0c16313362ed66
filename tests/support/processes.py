"""What tests of several processes need: a port, and processes as torchrun starts them."""

import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp

RANKS = 2


def in_processes(work: Callable[..., Any], *args: Any, ranks: int = RANKS) -> list[Any]:
    """What ``work(rank, *args)`` returned in each process; all of them are gone afterwards."""
    context = mp.get_context("spawn")
    results = context.Queue()
    given = (free_port(), ranks, results, work, args)
    workers = [context.Process(target=_one, args=(rank, *given)) for rank in range(ranks)]
    try:
        for worker in workers:
            worker.start()
        found: dict[int, Any] = {}
        for _ in workers:
            rank, returned, failed = results.get(timeout=120)
            if failed:
                raise AssertionError(f"process {rank} failed:\n{failed}")
            found[rank] = returned
        for worker in workers:
            worker.join(30)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return [found[rank] for rank in range(ranks)]


def _one(
    rank: int, port: int, ranks: int, results: Any, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), GROUP_RANK="0",
        TORCHELASTIC_RUN_ID="test",
    )  # fmt: skip
    try:
        results.put((rank, work(rank, *args), None))
        torch.distributed.barrier()  # none leaves while another may still need it
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
        raise
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
