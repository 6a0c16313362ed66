"""Checkpoints of runs: sealed, of a version, and of the run that goes on."""

import json
import zipfile

import pytest
import torch
from support.commands import StopsAt, aesam
from support.small_runs import WORDS, content_of, tiny_run

from aesam.lab import config
from aesam.lab.errors import UsageError
from aesam.lab.training import run_checkpoint, sealed, trainer
from aesam.lab.training.interrupts import Stopped

pytestmark = pytest.mark.slow


@pytest.fixture
def stopped(tmp_path):
    with pytest.raises(Stopped):
        trainer.train(tiny_run(), tmp_path, reporter=StopsAt(3))
    return tmp_path


def test_a_sealed_checkpoint_is_an_archive_as_any_other(stopped):
    path = stopped / "checkpoint.pt"
    assert torch.load(path, weights_only=True).keys() == run_checkpoint.load(path).keys()
    with zipfile.ZipFile(path) as archive:
        assert archive.comment.startswith(b"aesam sha256 ")
        assert archive.testzip() is None


def test_a_checkpoint_without_seal_is_read_where_its_checksums_hold(stopped):
    path = stopped / "checkpoint.pt"
    content = run_checkpoint.load(path)
    torch.save(content, path)
    assert run_checkpoint.load(path)["progress"] == content["progress"]


def with_change(folder, change):
    content = run_checkpoint.load(folder / "checkpoint.pt")
    change(content)
    (folder / "checkpoint.pt").write_bytes(sealed.sealed(content))
    return content_of(folder)


@pytest.mark.parametrize(
    "change",
    [lambda c: c.update(format=2), lambda c: c["config"]["training"].update(lookahead=3)],
    ids=["format", "setting"],
)
def test_a_checkpoint_of_a_newer_version_says_so(change, stopped, capsys):
    before = with_change(stopped, change)
    (stopped / "config.json").unlink()
    del before["config.json"]
    code, told = aesam(*WORDS, "--resume", "--out", stopped, capsys=capsys)
    assert code == 2
    assert "pip install --upgrade aesam" in told
    assert content_of(stopped) == before


def test_a_config_of_a_newer_version_says_so(stopped, capsys):
    saved = json.loads((stopped / "config.json").read_text())
    saved["training"]["lookahead"] = 3
    (stopped / "config.json").write_text(json.dumps(saved))
    code, told = aesam(*WORDS, "--resume", "--out", stopped, capsys=capsys)
    assert code == 2
    assert "config.json was left as it is" in told
    assert "training.lookahead" in told


def float64_weights(content):
    content["model"] = {name: tensor.double() for name, tensor in content["model"].items()}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c["scheduler"].update(last_epoch=2), "at step 3"),
        (lambda c: c["scheduler"].update(_last_lr=[0.5]), "learning rates"),
        (lambda c: c["progress"].update(step=2), "progress: step 2"),
        (lambda c: c["progress"]["metrics"].clear(), "line of metrics"),
        (lambda c: c["optimizer"]["param_groups"][0].update(momentum=0.5), "momentum must be 0.9"),
        (lambda c: c["optimizer"]["param_groups"][0].update(lr=0.5), "lr must be"),
        (lambda c: c.update(optimizer=None), "optimizer: there is none"),
        (lambda c: c["optimizer"]["state"][0].pop("momentum_buffer"), "lacks its momentum_buffer"),
        (lambda c: c["processes"][0].pop("random"), "random"),
        (float64_weights, "must be torch.float32"),
    ],
)
def test_content_that_does_not_fit_is_refused_in_words(change, told, stopped):
    before = with_change(stopped, change)
    with pytest.raises(UsageError, match=f"is damaged and was left as it is.*{told}"):
        trainer.train(tiny_run(), stopped, resume=True)
    assert content_of(stopped) == before


@pytest.mark.parametrize(
    ("section", "setting", "value"),
    [("data", "noise", "x"), ("data", "subset", 1.5), ("training", "epochs", True),
     ("training", "lr", None), ("model", "name", 3)],
)  # fmt: skip
def test_a_setting_of_another_type_is_refused(section, setting, value):
    saved = config.as_dict(tiny_run())
    saved[section][setting] = value
    with pytest.raises(TypeError, match=f"{section}.{setting} cannot be"):
        config.from_dict(saved)
