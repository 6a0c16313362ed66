"""Command lines that nobody meant: every flag of every command with values that break things.

The flags are read from the commands themselves, so that a new one is tried without being named.
"""

import io
import os
import random
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache

from aesam.lab.cli import COMMANDS
from support.commands import aesam

NUMBERS = (
    "-1", "0", "1", "2", "-0.0", "0.5", "nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "1e400",
    "1e30", "100000000000000000000", "-100000000000000000000", "9223372036854775808", "4294967296",
    "9" * 5000, "0x10", "1_0", "٣", "1e3", "1/2", " 3", "3 ", "+3", "01", "True", "None",
)  # fmt: skip
TEXTS = (
    "", " ", "\n", "\t", "é", "é" * 300, "\udcff", "a\udcffb", "x" * 5000, "/" + "y" * 300, "\x01",
    "\x1b[31mred", "\r", "[bold]", "[/]", "%s", "{0}", "{name}", "$(id)", "'", '"', "--", "-", "=",
    "../..", "..", ".", "~", "~nobody/x", "*", "|", "\u202e", "\ufeff", "😀", "a/b/c", "CON", "erm",
)  # fmt: skip
#: None of them can be written to outside of the test's own folder, even by root.
PLACES = (
    "/proc/self/mem", "/proc/nothing", "/dev/null", "/dev/full", "/dev/zero", "/dev/null/below",
    "FILE", "FILE/below", "LOCKED", "LOCKED/below", "DANGLING", "LOOP", "FIFO", "FOLDER", "ABSENT",
    "s3://bucket/x", "file:///tmp", "/" + "/".join(["d" * 200] * 30),
)  # fmt: skip

#: What a command needs to do little: the flags under trial come after, and the last counts.
BASES = {
    "train": (
        "--dataset", "synthetic", "--model", "mlp", "--epochs", "1", "--subset", "64",
        "--batch-size", "32", "--out", "OUT", "--quiet",
    ),
    "compare": (
        "--dataset", "synthetic", "--model", "mlp", "--epochs", "1", "--subset", "64",
        "--batch-size", "32", "--methods", "erm", "--seeds", "0", "--out", "COMPARED", "--quiet",
    ),
    "tune": (
        "--dataset", "synthetic", "--model", "mlp", "--epochs", "1", "--subset", "64",
        "--batch-size", "32", "--methods", "sam", "--rhos", "0.1", "--seeds", "0", "--limit", "0",
        "--out", "TUNED", "--quiet",
    ),
    "report": ("RUN", "--out", "OUT"),
    "sharpness": (
        "RUN", "--samples", "8", "--k", "1", "--grid", "2", "--trace-samples", "2", "--out", "OUT",
    ),
    "data": ("digits", "--root", "OUT"),
    "reproduce": (
        "fig-normality", "--no-train", "--epochs", "1", "--seeds", "0", "--quiet", "--out", "OUT",
        "--cache", "ABSENT",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """What is typed after ``aesam``; words in capitals stand for places that a test makes."""

    words: tuple[str, ...]

    def at(self, places):
        return [self._word(word, places) for word in self.words]

    @staticmethod
    def _word(word, places):
        name, slash, rest = word.partition("/")
        return f"{places[name]}{slash}{rest}" if name in places else word


@cache
def flags_of(command):
    """Every flag of a command, as its own ``--help`` shows them."""
    code, told = outcome_of([command, "--help"])
    assert code == 0
    shown = [line.strip("│| ") for line in told.splitlines()]
    named = [line for line in shown if line.startswith("--")]
    found = [re.match(r"(--[a-z0-9-]+(, )?)+", line)[0].split(", ") for line in named]
    assert found
    return sorted({flag for flags in found for flag in flags})


def all_commands():
    return [*COMMANDS, "reproduce"]


def every_flag_with_every_value():
    """Each command's flags × each value, in an order that is mixed and always the same."""
    cases = []
    for command in all_commands():
        for flag in flags_of(command):
            values = (*NUMBERS, *TEXTS, *PLACES)
            cases += [Typed((command, *BASES[command], flag, value)) for value in values]
            cases += [
                Typed((command, *BASES[command], *more)) for more in ([f"{flag}=nan"], [flag])
            ]
    random.Random(20).shuffle(cases)
    return cases


def anything(count):
    """Whole command lines of words drawn from all that there are."""
    source = random.Random(21)
    words = [*NUMBERS, *TEXTS, *PLACES, *all_commands()]
    words += [flag for command in all_commands() for flag in flags_of(command)]
    first = [*all_commands(), "", "--help", "-h", "--", "trian", "--version"]
    lines = []
    for _ in range(count):
        command = source.choice(first)
        drawn = [source.choice(words) for _ in range(source.randint(0, 6))]
        lines.append(Typed((command, *BASES.get(command, ()), *drawn)))
    return lines


def outcome_of(words):
    """Exit code and everything printed; an exception that comes out is what a traceback shows."""
    with redirect_stdout(_stream()) as out, redirect_stderr(_stream()) as err:
        code = aesam(*words)
    told = b"".join(stream.buffer.getvalue() for stream in (out, err))
    return code, told.decode()


def _stream():
    """A stream as a terminal or a file has it: UTF-8, and strict as long as nobody changes that."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def made_places(folder):
    """The places that stand in command lines in capitals, and the folder to be in.

    What is compared and tuned is finished, so that a flag that changes nothing trains nothing. The
    folder to be in lies deep enough for ``../..`` to stay inside.
    """
    names = ("FILE", "LOCKED", "DANGLING", "LOOP", "FIFO", "FOLDER", "ABSENT", "OUT")
    names += ("RUN", "COMPARED", "TUNED")
    places = {name: str(folder / name.lower()) for name in names}
    (folder / "file").write_text("mine")
    (folder / "folder").mkdir()
    (folder / "locked").mkdir()
    (folder / "locked").chmod(0)
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "fifo")
    (folder / "a/b/c").mkdir(parents=True)
    assert aesam("train", *BASES["train"][:-3], "--out", places["RUN"], "--quiet") == 0
    for command in ("compare", "tune"):
        assert outcome_of(Typed((command, *BASES[command])).at(places))[0] == 0
    return places, folder / "a/b/c"
