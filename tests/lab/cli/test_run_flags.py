"""Flags that are left out, given, or given as their opposite; and what ``--help`` shows of them."""

import ast
import importlib
import itertools
import re
import sys
from pathlib import Path

import pytest
from support.commands import aesam

from aesam.lab import config
from aesam.lab.cli import COMMANDS, parse, run_flags
from aesam.lab.cli.compare import HOW_CHOSEN, HOW_FAR, NOT_TUNED, OTHER_LABELS
from aesam.lab.config import Training, config_hash
from aesam.lab.lab_methods import all_methods, record_of


def parsed(monkeypatch, command, *words):
    monkeypatch.setattr(sys, "argv", ["aesam", command, *words])
    return parse(COMMANDS)


def run_from(monkeypatch, *words, command="train"):
    return parsed(monkeypatch, command, *words).run("sam", 0, 0.0)


@pytest.mark.parametrize("command", ["train", "compare", "tune"])
@pytest.mark.parametrize(("dataset", "usual"), [("digits", False), ("cifar10", True)])
def test_augmentation_is_a_pair_of_flags_and_the_data_set_s_usual_without(
    command, dataset, usual, monkeypatch
):
    for flags, expected in (((), usual), (("--augment",), True), (("--no-augment",), False)):
        run = run_from(monkeypatch, "--dataset", dataset, *flags, command=command)
        assert run.data.augment is expected


def test_an_optimizer_without_momentum_leaves_the_run_s_identity_alone(monkeypatch):
    run = run_from(monkeypatch, "--optimizer", "adamw")
    assert run.training.momentum == Training().momentum
    assert config_hash(run) == "ad81ee9f1767"
    assert run_from(monkeypatch, "--momentum", "0.8").training.momentum == 0.8


def test_a_whole_number_for_a_real_setting_is_the_same_run(monkeypatch):
    one = run_from(monkeypatch, "--rho", "1")
    assert config_hash(one) == config_hash(run_from(monkeypatch, "--rho", "1.0"))


@pytest.mark.parametrize(
    ("command", "of_before"),
    [("train", "a838f4443e41"), ("compare", "a838f4443e41"), ("tune", "642d857a0f46")],
)
def test_a_budget_by_flag_takes_the_place_of_thresholds(command, of_before, monkeypatch):
    flags = parsed(monkeypatch, command, "--budget", "0.2")
    usual = flags.usual_settings("ae-sam", "digits")
    run = flags.run("ae-sam", 0, 0.0, strict=False, **usual)
    expected = {"rho": usual["rho"], "budget": 0.2, "normalize": True}
    assert run.method.settings == expected
    assert flags.run("sam", 0, 0.0, strict=False).method.settings.keys() == {"rho", "normalize"}
    without = parsed(monkeypatch, command).run("ae-sam", 0, 0.0)
    assert config_hash(without) == of_before


@pytest.mark.parametrize("command", ["train", "compare", "tune"])
def test_a_radius_is_compensated_by_flag(command, monkeypatch):
    flags = parsed(monkeypatch, command, "--compensate", "3")
    own = {
        name: flags.run(name, 0, 0.0, strict=False).method.settings for name in ("sam", "ss-sam")
    }
    assert own["ss-sam"]["compensate"] == 3.0
    assert own["sam"].keys() == {"rho", "normalize"}


def told_by_help(capsys, *words):
    code, told = aesam(*words, "--help", capsys=capsys)
    assert code == 0
    return " ".join(told.replace("│", " ").split())


@pytest.mark.parametrize(("dataset", "epochs"), [("digits", 60), ("cifar10", 200), ("folder", 90)])
def test_help_shows_the_defaults_of_the_data_set(dataset, epochs, capsys):
    told = told_by_help(capsys, "train", "--dataset", dataset)
    assert f"Passes over the training set. (default: {epochs})" in told


@pytest.mark.parametrize("command", ["train", "compare", "tune"])
def test_help_has_every_method_and_every_setting_with_its_default(command, capsys):
    told = told_by_help(capsys, command)
    names = told.replace(" ", "")
    assert "{" + ",".join(all_methods()) + "}" in names
    for name in all_methods():
        for setting in record_of(name).settings:
            assert f"--{setting.name.replace('_', '-')}" in told
    assert "--lambda1 FLOAT" in told
    others = "; 0 for ae-looksam, matched-looksam, inverted-looksam" * (command != "compare")
    assert f"(default: -1{others})" in told  # what is compared has what was searched
    assert "--precision {no,bf16,fp16,float64}" in told
    assert "None" not in told


def test_help_says_what_a_setting_means_to_each_method(capsys):
    told = told_by_help(capsys, "train")
    assert "γ, share of rows in the second gradient; > 0, ≤ 1 (esam); or γ, weight of the" in told
    assert "sharpness; ≥ 0, < 1 (wsam)." in told


def test_help_of_tune_shows_the_grids(capsys):
    told = told_by_help(capsys, "tune")
    assert "(default: 0.01 0.02 0.05 0.1 0.2 0.5 (and others))" in told
    assert "--alphas" in told
    assert "(default: 0.1)" in told  # of holdout


@pytest.mark.parametrize(
    "command",
    [
        *(f"lab.cli.{c}" for c in ("train", "compare", "tune", "data", "sharpness")),
        "paper.reproduce",
    ],
)
def test_every_flag_is_explained(command):
    """A string below each field, which is what ``--help`` prints; fields of flags have none."""
    module = importlib.import_module(f"aesam.{command}")
    bare = [
        f"{cls.name}.{field.target.id}"
        for source in {module.__file__, run_flags.__file__, config.__file__}
        for cls in ast.parse(Path(source).read_text()).body
        if isinstance(cls, ast.ClassDef) and cls.name != "Run"
        for field, after in itertools.pairwise([*cls.body, ast.Pass()])
        if isinstance(field, ast.AnnAssign)
        and not re.search("Flags|Data|Model|Training|ClassVar|Any", ast.unparse(field.annotation))
        and not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("flags", "notes"),
    [
        ((), [HOW_CHOSEN, HOW_FAR]),
        (("--seeds", "0"), [HOW_CHOSEN, HOW_FAR]),
        (("--channels-last", "--evaluate-every", "9"), [HOW_CHOSEN, HOW_FAR]),
        (("--noise", "0.4", "0.6"), [OTHER_LABELS]),
        (("--epochs", "5"), [NOT_TUNED]),
        (("--dataset", "cifar10"), [NOT_TUNED]),
        (("--epochs", "5", "--methods", "erm"), []),
        (("--epochs", "5", "--methods", "sam", "--rho", "1"), []),
        (("--rho", "1"), []),
    ],
)
def test_a_comparison_says_how_its_settings_were_chosen_or_that_they_were_not(
    flags, notes, monkeypatch
):
    assert parsed(monkeypatch, "compare", *flags).notes() == notes


@pytest.mark.parametrize(
    ("flags", "rho"),
    [
        ((), 2.0),
        (("--noise", "0.2"), 2.0),
        (("--workers", "1"), 2.0),
        (("--epochs", "6"), 0.05),
        (("--subset", "400"), 0.05),
        (("--model", "mlp"), 0.05),
        (("--dataset", "synthetic"), 0.05),
        (("--epochs", "6", "--rho", "1"), 1.0),
    ],
)
def test_tuned_settings_are_used_on_the_training_that_they_were_tuned_on(flags, rho, monkeypatch):
    """Elsewhere a radius of 2 would show SAM below plain training."""
    jobs = parsed(monkeypatch, "compare", "--methods", "sam", *flags).plan()
    assert {job.run.method.get("rho") for job in jobs} == {rho}


def test_a_comparison_with_settings_that_nobody_tuned_says_so(tmp_path, capsys):
    words = ("compare", "--dataset", "synthetic", "--model", "mlp", "--methods", "sam")
    code, told = aesam(
        *words, "--epochs", 1, "--seeds", 0, "--noise", 0, "--out", tmp_path, capsys=capsys
    )
    assert code == 0
    assert NOT_TUNED in " ".join(told.split())
    assert "which nobody chose for this training" in (tmp_path / "report.html").read_text()


def test_a_flag_without_its_value_is_said_to_lack_it(capsys):
    code, told = aesam("train", "--dataset", "--epochs", 1, capsys=capsys)
    assert code == 2
    assert "--dataset" in told
    assert "unknown data set" not in told
