"""The commands of the lab, and what turns their errors into a sentence and an exit code."""

import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Annotated, Any, Union

import tyro
from rich.console import Console

from aesam.lab import plugins
from aesam.lab.cli.compare import Compare
from aesam.lab.cli.console import typed_value
from aesam.lab.cli.data import FetchData
from aesam.lab.cli.report import Report
from aesam.lab.cli.run_flags import RunFlags, with_defaults
from aesam.lab.cli.sharpness import MeasureSharpness
from aesam.lab.cli.train import Train
from aesam.lab.cli.tune import Tune
from aesam.lab.config import Data
from aesam.lab.errors import UsageError
from aesam.lab.files import DiskError
from aesam.lab.training.interrupts import Stopped

COMMANDS: dict[str, type[Any]] = {
    "train": Train,
    "compare": Compare,
    "tune": Tune,
    "report": Report,
    "sharpness": MeasureSharpness,
    "data": FetchData,
}


def run_command(more: Mapping[str, type[Any]]) -> int:
    """Parse, run, and turn what went wrong into a sentence and an exit code.

    ``more`` are commands from above the lab.
    """
    errors = Console(stderr=True)
    try:
        signal.signal(signal.SIGTERM, _stop)  # training itself replaces it by a gentler one
        plugins.load()
        return parse({**COMMANDS, **more})()
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


def parse(commands: Mapping[str, type[Any]]) -> Any:
    """The command that was typed, with its flags.

    Its defaults depend on the data set, so that ``--help`` shows what holds: the name of the data
    set is looked for first.
    """
    dataset = typed_value("--dataset") or Data().name
    typed = {word for word in sys.argv[1:2] if word in commands} or set(commands)
    kinds = [
        _subcommand(name, kind, dataset) if name in typed else _named(name, kind)
        for name, kind in commands.items()
    ]
    return tyro.cli(
        Union[tuple(kinds)],  # noqa: UP007  # pyright: ignore
        prog="aesam",
        description="Train, compare and reproduce with sharpness-aware methods.",
        config=(tyro.conf.OmitArgPrefixes,),
    )


def _subcommand(name: str, kind: type[Any], dataset: str) -> Any:
    if not issubclass(kind, RunFlags):
        return _named(name, kind)
    usual = with_defaults(kind, dataset)
    return Annotated[type(usual), tyro.conf.subcommand(name, default=usual)]


def _named(name: str, kind: type[Any]) -> Any:
    return Annotated[kind, tyro.conf.subcommand(name)]


def _stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Stopped(signum, "before the end")
