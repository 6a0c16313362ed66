"""What people see while a run goes on."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from aesam.lab.config import Method
from aesam.lab.data import data_record
from aesam.lab.lab_methods import fill
from aesam.lab.training import reporters, trainer

pytestmark = pytest.mark.slow


def short_run(epochs=3):
    usual = data_record("synthetic").usual
    changed = replace(usual.training, epochs=epochs)
    return replace(usual, method=fill(Method("ae-sam")), training=changed)


def shown(tmp_path, terminal, epochs=3):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=160)
    trainer.train(short_run(epochs), tmp_path, reporter=reporters.for_console(console))
    return file.getvalue()


def test_a_terminal_shows_epoch_loss_accuracy_share_of_sam_and_time_left(tmp_path):
    told = shown(tmp_path, terminal=True)
    for word in ("training", "epoch 3/3", "loss", "accuracy", "SAM", "24/24", "0:00:00"):
        assert word in told, word


def test_a_log_has_plain_lines_and_no_control_codes(tmp_path):
    told = shown(tmp_path, terminal=False)
    lines = told.strip().splitlines()
    assert lines[0].startswith("ae-sam · mlp on synthetic")
    assert [line.split()[1] for line in lines[1:]] == ["1/3", "2/3", "3/3"]
    assert "\x1b" not in told


def test_a_long_log_is_short(tmp_path):
    told = shown(tmp_path, terminal=False, epochs=40)
    assert len(told.strip().splitlines()) == 11


def test_quiet_is_silent():
    file = io.StringIO()
    reporter = reporters.for_console(Console(file=file), quiet=True)
    reporter.say("anything")
    assert isinstance(reporter, reporters.Silent)
    assert not file.getvalue()
