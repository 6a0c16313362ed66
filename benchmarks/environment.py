"""What a measurement ran in, to be written beside its numbers."""

import platform
from importlib.metadata import version

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
