"""The commands of the lab, and what turns their errors into a sentence and an exit code."""

import signal
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import tyro
from rich.console import Console

from aesam.lab.cli.compare import Compare
from aesam.lab.cli.data import FetchData
from aesam.lab.cli.report import Report
from aesam.lab.cli.sharpness import MeasureSharpness
from aesam.lab.cli.train import Train
from aesam.lab.cli.tune import Tune
from aesam.lab.errors import UsageError
from aesam.lab.files import DiskError
from aesam.lab.training.interrupts import Stopped

COMMANDS: dict[str, Callable[..., Any]] = {
    "train": Train,
    "compare": Compare,
    "tune": Tune,
    "report": Report,
    "sharpness": MeasureSharpness,
    "data": FetchData,
}


def run_command(more: Mapping[str, Callable[..., Any]]) -> int:
    """Parse, run, and turn what went wrong into a sentence and an exit code.

    ``more`` are commands from above the lab.
    """
    errors = Console(stderr=True)
    try:
        signal.signal(signal.SIGTERM, _stop)  # training itself replaces it by a gentler one
        command: Any = tyro.extras.subcommand_cli_from_dict(
            {**COMMANDS, **more},
            prog="aesam",
            description="Train, compare and reproduce with sharpness-aware methods.",
        )
        return command()
    except UsageError as error:
        errors.print(f"aesam: {error}", soft_wrap=True, highlight=False, markup=False)
        return 2
    except DiskError as error:
        errors.print(f"aesam: {error.strerror}", soft_wrap=True, highlight=False, markup=False)
        return 1
    except Stopped as stop:
        errors.print(f"aesam: {stop}", soft_wrap=True, highlight=False, markup=False)
        return stop.exit_code
    except KeyboardInterrupt:
        errors.print("aesam: interrupted; what was finished is kept", soft_wrap=True)
        return 130


def _stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Stopped(signum, "before the end")
