"""A folder belongs to one training process at a time, and must let itself be written to."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commands import SMALL, aesam, start

from aesam.lab import locks
from aesam.lab.errors import UsageError

pytestmark = pytest.mark.slow

#: Holds the folder; its child only waits, and says so.
HOLDER = """
import os, pathlib, sys
from aesam.lab import locks
with locks.held(pathlib.Path(sys.argv[1])):
    if os.fork() == 0:
        print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_in_the_folder_is_refused_until_the_first_is_gone(tmp_path, capsys):
    words = ("train", *SMALL, "--method", "erm", "--out", tmp_path)
    with start(*words, "--epochs", 100_000) as first:
        while not (tmp_path / "checkpoint.pt").exists():
            os.sched_yield()
        code, told = aesam(*words, "--epochs", 100_000, "--resume", capsys=capsys)
        assert code == 2
        assert "is in use" in told
        assert "Traceback" not in told
        assert first.poll() is None
        first.send_signal(signal.SIGKILL)
        first.communicate()
    with locks.held(tmp_path):
        pass  # nothing is left of a killed process's lock


def test_a_run_that_has_no_checkpoint_yet_is_not_trained_twice(tmp_path, capsys):
    words = ("train", *SMALL, "--out", tmp_path / "run")
    with locks.held(tmp_path / "run"):
        code, told = aesam(*words, capsys=capsys)
        assert code == 2
        assert f"{tmp_path / 'run'} is in use: another process is training in it" in told
    assert aesam(*words, "--quiet") == 0


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_lock(tmp_path):
    """As processes do that decode images: they notice after seconds that they are alone."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(UsageError, match="in use"), locks.held(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with locks.held(tmp_path):
            pass
        holder.stdin.close()  # the child ends


def test_a_lock_leaves_no_file_and_can_be_taken_again(tmp_path):
    for _ in range(2):
        with locks.held(tmp_path / "run"):
            assert not list((tmp_path / "run").iterdir())


@contextmanager
def without_rights():
    """As a user who owns nothing, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder():
    """One that other users can get to, unlike those that pytest makes."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name) / "run"


@pytest.mark.parametrize("mode", [0o555, 0o000])
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_folder_without_rights_is_told_without_a_traceback(mode, resume, open_folder, capsys):
    words = ("train", *SMALL, "--epochs", 2, "--out", open_folder)
    aesam(*words, "--quiet")
    (open_folder / "checkpoint.pt").unlink()
    if not resume:
        (open_folder / "summary.json").unlink()
    (open_folder / "config.json").unlink()  # so that a run of this name would begin anew
    capsys.readouterr()
    open_folder.chmod(mode)
    try:
        with without_rights():
            code, told = aesam(*words, *resume, capsys=capsys)
    finally:
        open_folder.chmod(0o755)
    assert code == 1
    assert str(open_folder) in told
    assert "Permission denied" in told
    assert "Traceback" not in told


def test_a_finished_run_can_be_read_where_nothing_can_be_written(open_folder, capsys):
    words = ("train", *SMALL, "--epochs", 2, "--out", open_folder, "--resume")
    aesam(*words, "--quiet")
    open_folder.chmod(0o555)
    with without_rights():
        code, told = aesam(*words, capsys=capsys)
    open_folder.chmod(0o755)
    assert code == 0
    assert "test accuracy" in told
