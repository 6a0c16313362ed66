"""The commands of the lab, and what turns their errors into a sentence and an exit code."""

import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Union

import tyro

from aesam import __version__
from aesam.lab import plugins
from aesam.lab.cli import streams
from aesam.lab.cli.compare import Compare
from aesam.lab.cli.console import Output, say, typed_value
from aesam.lab.cli.data import FetchData
from aesam.lab.cli.report import Report
from aesam.lab.cli.run_flags import RunFlags, with_defaults
from aesam.lab.cli.sharpness import MeasureSharpness
from aesam.lab.cli.train import Train
from aesam.lab.cli.tune import Tune
from aesam.lab.config import Data
from aesam.lab.errors import UsageError, in_words
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
    streams.make_safe()
    try:
        code = _run({**COMMANDS, **more})
        streams.flush()
    except OSError as error:
        streams.let_go()
        if isinstance(error, BrokenPipeError):  # `aesam … | head`: the reader has all it wanted
            return streams.BROKEN_PIPE
        _tell(f"the output could not be written ({error.strerror}): let it go elsewhere")
        return 1
    return code


def _run(commands: Mapping[str, type[Any]]) -> int:
    try:
        signal.signal(signal.SIGTERM, _stop)  # training itself replaces it by a gentler one
        if sys.argv[1:] == ["--version"]:
            say(f"aesam {__version__}")
            return 0
        _check_surroundings()
        plugins.load()
        return parse(commands)()
    except SystemExit as stop:  # tyro's, after help and mistakes
        return stop.code if isinstance(stop.code, int) else 0
    except Stopped as stop:
        _tell(f"stopped {stop.where}; {_how_to_go_on()}")
        return stop.exit_code
    except KeyboardInterrupt:
        _tell(f"interrupted; {_how_to_go_on()}")
        return 128 + signal.SIGINT
    except Exception as error:
        told = in_words(error)
        if told is None or (isinstance(error, OSError) and streams.is_to_blame(error)):
            raise
        _tell(told)
        return 2 if isinstance(error, UsageError) else 1


def _tell(text: str) -> None:
    """A sentence to whoever reads errors, if anybody does."""
    with suppress(OSError):
        console = Output(stderr=True)
        console.print(f"aesam: {text}", soft_wrap=True, highlight=False, markup=False)


def _how_to_go_on() -> str:
    if sys.argv[1:2] == ["train"]:
        return "go on with --resume"
    return "what was finished is kept: run the same command again to go on"


def _check_surroundings() -> None:
    """What would only come to light where it can no longer be explained."""
    for word in sys.argv[1:]:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UsageError(
                f"{word!r} is not UTF-8, and could not be written into files: use another name"
            )
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"the current folder is gone ({error.strerror}): change to another"
        ) from error


def parse(commands: Mapping[str, type[Any]]) -> Any:
    """The command that was typed, with its flags.

    Its defaults depend on the data set, so that ``--help`` shows what holds: the name of the data
    set is looked for first.
    """
    dataset = typed_value("--dataset") or Data().name
    config = (tyro.conf.OmitArgPrefixes,)
    typed = sys.argv[1] if len(sys.argv) > 1 else ""
    if typed in commands:
        kind, prog, given = commands[typed], f"aesam {typed}", sys.argv[2:]
        if not issubclass(kind, RunFlags):
            return tyro.cli(kind, prog=prog, args=given, config=config)
        usual = with_defaults(kind, dataset)
        return tyro.cli(type(usual), prog=prog, args=given, default=usual, config=config)
    kinds = [_subcommand(name, kind, dataset) for name, kind in commands.items()]
    return tyro.cli(
        Union[tuple(kinds)],  # noqa: UP007  # pyright: ignore
        prog="aesam",
        description="Train, compare and reproduce with sharpness-aware methods. "
        "`aesam --version` prints the version.",
        config=config,
    )


def _subcommand(name: str, kind: type[Any], dataset: str) -> Any:
    if not issubclass(kind, RunFlags):
        return Annotated[kind, tyro.conf.subcommand(name)]
    usual = with_defaults(kind, dataset)
    return Annotated[type(usual), tyro.conf.subcommand(name, default=usual)]


def _stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Stopped(signum, "before the end")
