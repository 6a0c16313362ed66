"""What the tests of faults counted, gathered from all processes and written by ``make faults``."""

import json
import os
import platform
from pathlib import Path

import torch
from support.fixtures_faults import WHOLE, faults

import aesam

__all__ = ["faults"]

OUT = Path(__file__).parents[2] / "results/faults.json"
COUNTED: dict[tuple[str, str], int] = {}


def pytest_runtest_logreport(report):
    for name, value in report.user_properties if report.when == "call" else ():
        if name == "fault":
            fault, tried, outcome = value
            COUNTED[fault, outcome] = COUNTED.get((fault, outcome), 0) + tried


def pytest_sessionfinish(session, exitstatus):
    if not WHOLE or exitstatus or "PYTEST_XDIST_WORKER" in os.environ:
        return
    rows = [{"fault": f, "tried": n, "outcome": o} for (f, o), n in sorted(COUNTED.items())]
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    found = {"command": "make faults", "versions": {**versions, "aesam": aesam.__version__}}
    OUT.write_text(json.dumps({**found, "rows": rows}, indent=1, ensure_ascii=False) + "\n")
