"""Running the real commands: in this process, or as a process of its own that can be killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from aesam.__main__ import main
from aesam.lab.training.reporters import Silent

MODULE = [sys.executable, "-m", "aesam"]


def aesam(*words, capsys=None):
    """The command's exit code (and what it printed), run in this process."""
    before, sys.argv = sys.argv, ["aesam", *map(str, words)]
    try:
        code = main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    if capsys is None:
        return code
    told = capsys.readouterr()
    return code, told.out + told.err


def start(*words, cwd=None, env=None, **options):
    """The command as a process of its own, single-threaded like this one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.Popen(
        [*MODULE, *map(str, words)], cwd=cwd, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, **options,
    )  # fmt: skip


class StopsAt(Silent):
    """Asks for a stop, as a signal would, when so many steps are done."""

    every = 0.0

    def __init__(self, step):
        self._step = step

    def step(self, done, epoch, loss, percent_sam):
        if done == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


def metrics_of(folder):
    """The metrics without what time it took."""
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
        line.pop("percent_time", None)
    return lines


def summary_of(folder):
    summary = json.loads((Path(folder) / "summary.json").read_text())
    for timed in (summary, summary["health"] or {}):
        timed.pop("seconds", None)
        timed.pop("percent_time", None)
    return summary


SMALL = ("--dataset", "synthetic", "--model", "mlp", "--batch-size", "64")
