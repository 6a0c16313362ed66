"""What a measurement ran in, and its file: the numbers with that beside them."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import aesam


def environment(*packages: str) -> dict[str, str | int]:
    """Python, torch, aesam, the machine and the number of threads; and further packages."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aesam": aesam.__version__,
        **{package: version(package) for package in packages},
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def write(out: Path, command: str, packages: tuple[str, ...], **found: Any) -> None:
    """The command, what it ran in, and what was found, as JSON; says where it is."""
    record = {"command": command, "environment": environment(*packages), **found}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {out}")
