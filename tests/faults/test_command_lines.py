"""No command line ends in a traceback: every one is carried out, or refused in words."""

import faulthandler
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from support.command_lines import (
    all_commands,
    anything,
    every_flag_with_every_value,
    flags_of,
    made_places,
    outcome_of,
)
from support.commands import MODULE

pytestmark = pytest.mark.slow
LONGEST = 120  # seconds for one command, on a machine that is busy


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory):
    """Places to name in command lines, and an empty folder to be in."""
    return made_places(tmp_path_factory.mktemp("typed"))


def typed(lines, places, here):
    """Type each; a command that never ends takes the tests down with where it was."""
    before = Path.cwd()
    for line in lines:
        words = line.at(places)
        here.mkdir(parents=True, exist_ok=True)
        os.chdir(here)
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as of a run that diverges
                code, told = outcome_of(words)
        except BaseException as error:
            raise AssertionError(f"{words} ends in a traceback") from error
        finally:
            faulthandler.cancel_dump_traceback_later()
            os.chdir(before)
            shutil.rmtree(places["OUT"], ignore_errors=True)
            shutil.rmtree(here)
        assert code in (0, 1, 2), (words, told)
        assert "Traceback" not in told, (words, told)
        assert code == 0 or told.strip(), f"{words} is refused without a word"


def test_every_flag_takes_any_value_or_refuses_it_in_words(faults, surroundings):
    lines = every_flag_with_every_value()[: faults.number(90, 2500)]
    typed(lines, *surroundings)
    faults.held("a flag with a value that nobody meant", len(lines), "carried out or refused")


def test_any_words_are_a_command_or_refused(faults, surroundings):
    lines = anything(faults.number(30, 1000))
    typed(lines, *surroundings)
    faults.held("a command line of words drawn at random", len(lines), "carried out or refused")


def test_the_flags_tried_are_those_there_are():
    assert all(flags_of(command) for command in all_commands())
    assert {"--epochs", "--rho", "--no-augment", "--resume"} <= set(flags_of("train"))
    assert {"--rhos", "--limit", "--plain-grid", "--jobs", "--address"} <= set(flags_of("tune"))


STREAMS = {
    "nobody reads it": ("data digits | true", 141),
    # All may be written before the reader leaves.
    "one line is read": ("reproduce --list | head -1", 141, 0),
    "help that nobody reads": ("train --help | true", 141),
    "a full disk": ("data digits > /dev/full", 1),
    "help on a full disk": ("train --help > /dev/full", 1),
    "the version on a full disk": ("--version > /dev/full", 1),
    "all full": ("data digits > /dev/full 2>&1", 1),
    "errors on a full disk": ("train --epochs 0 2> /dev/full", 2),
    "closed": ("data digits >&-", 0),
    "all closed": ("data digits <&- >&- 2>&-", 0),
    "errors closed": ("train --epochs 0 2>&-", 2),
    "ASCII": ("reproduce --list", 0),
}


def test_streams_that_fail_end_the_command_without_a_traceback(faults, tmp_path):
    chosen = faults.of(list(STREAMS), short=2)
    for case in chosen:
        line, *codes = STREAMS[case]
        command, _, rest = line.partition(" | ")
        pipe = f" | {rest}" if rest else ""
        script = f'"$@" {command}{pipe}; exit ${{PIPESTATUS[0]}}'
        found = subprocess.run(
            ["bash", "-c", script, "bash", *MODULE], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONIOENCODING": "ascii"} if case == "ASCII" else None,
            check=False,
        )  # fmt: skip
        assert found.returncode in codes, (case, found.stderr)
        assert "Traceback" not in found.stderr, case
        assert "Exception ignored" not in found.stderr, case
    faults.held("output that is closed, full or not read", len(chosen), "ended without a traceback")


CLOSED = """
import os
from aesam.lab.cli import streams
os.closerange(0, 3)
streams.make_safe()
os._exit(os.open(os.devnull, os.O_WRONLY))
"""


def test_no_file_takes_the_place_of_a_closed_stream():
    """The next file opened, such as a checkpoint, would get all that is printed."""
    found = subprocess.run([sys.executable, "-c", CLOSED], check=False)
    assert found.returncode > 2
