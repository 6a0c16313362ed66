"""Worker processes that end when whoever started them is gone, however it went."""

import os
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import active_children, resource_tracker

EVERY = 0.5  # seconds between two looks


def end_with(parent: int) -> None:
    """In a worker: end this process, and those that it started, once ``parent`` is gone.

    After ``kill -9`` of a parent nobody is left to end its workers: a worker waits for work on a
    pipe of which it holds both ends itself. A process whose parent is gone has another one.
    """
    if os.name == "posix":  # elsewhere the number stays as it was
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(EVERY)
    for child in active_children():  # those that decode images
        child.kill()
    os._exit(1)  # at once, as after kill -9: a run goes on from its last checkpoint


@contextmanager
def interrupts_held_back() -> Generator[None]:
    """Processes and threads started in this block never see Ctrl-C; here it comes at the end.

    A terminal sends it to workers too, which would answer with a traceback each, also before any
    code of ours runs in them. Whoever started them is told, and ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # when it starts, it lets interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
