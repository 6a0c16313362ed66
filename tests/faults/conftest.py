"""What the tests of faults counted, gathered from all processes and written by ``make faults``."""

import json
import os
import platform
import signal
from pathlib import Path

import torch
from support.fixtures_faults import WHOLE, faults

import aesam

__all__ = ["faults"]

# A shell starts what it puts in the background deaf to Ctrl-C, and so all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

OUT = Path(__file__).parents[2] / "results/faults.json"
COUNTED: dict[tuple[str, str], int] = {}


def pytest_runtest_logreport(report):
    for name, value in report.user_properties if report.when == "call" and report.passed else ():
        if name == "fault":
            fault, tried, outcome = value
            COUNTED[fault, outcome] = COUNTED.get((fault, outcome), 0) + tried


def pytest_sessionfinish(session, exitstatus):
    """Write what was counted; rows of tests that were not run now stay."""
    if not WHOLE or "PYTEST_XDIST_WORKER" in os.environ:
        return
    rows = {(r["fault"], r["outcome"]): r["tried"] for r in json.loads(OUT.read_text())["rows"]}
    rows |= COUNTED
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    found = {
        "command": "make faults",
        "versions": {**versions, "aesam": aesam.__version__},
        "rows": [{"fault": f, "tried": n, "outcome": o} for (f, o), n in sorted(rows.items())],
    }
    OUT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
