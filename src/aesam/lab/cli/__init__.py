"""The command ``aesam``."""

import signal
from types import FrameType
from typing import Annotated

import tyro
from rich.console import Console

from aesam.lab.cli.compare import Compare
from aesam.lab.cli.data import Data
from aesam.lab.cli.report import Report
from aesam.lab.cli.reproduce import Reproduce
from aesam.lab.cli.sharpness import Sharpness
from aesam.lab.cli.train import Train
from aesam.lab.cli.tune import Tune
from aesam.lab.errors import UsageError
from aesam.lab.files import DiskError
from aesam.lab.interrupts import Stopped

Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Sharpness, tyro.conf.subcommand("sharpness")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
)


def _stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Stopped(signum, "before the end")


def main() -> int:
    """Parse, run, and turn what went wrong into a sentence and an exit code."""
    errors = Console(stderr=True)
    try:
        signal.signal(signal.SIGTERM, _stop)  # training itself replaces it by a gentler one
        command = tyro.cli(Command, prog="aesam", description=__doc__)  # pyright: ignore
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
