"""Commands as processes of their own that start at once: forked from one that has imported all."""

import multiprocessing
import os
import resource
import sys
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["aesam.lab.cli", "aesam.paper.reproduce"])


def forked(*words, told=os.devnull, largest_file=None):
    """The command as a process; what it prints goes to the file ``told``."""
    process = CONTEXT.Process(target=_run, args=([*map(str, words)], str(told), largest_file))
    process.start()
    return process


def _run(words, told, largest_file):
    with Path(told).open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        from aesam.__main__ import main

        sys.argv = ["aesam", *words]
        sys.exit(main())
