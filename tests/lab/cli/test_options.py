"""Flags that are left out, given, or given as their opposite."""

import ast
import importlib
import itertools
from pathlib import Path

import pytest
import tyro

from aesam.lab.cli import options
from aesam.lab.cli.compare import Compare
from aesam.lab.cli.options import run_of
from aesam.lab.cli.train import Train
from aesam.lab.cli.tune import Tune
from aesam.lab.config import Training, config_hash


def run_from(*words, command=Train):
    return run_of(tyro.cli(command, args=words), "sam", 0, 0.0)


@pytest.mark.parametrize("command", [Train, Compare, Tune])
@pytest.mark.parametrize(("dataset", "usual"), [("digits", False), ("cifar10", True)])
def test_augmentation_is_a_pair_of_flags_and_the_data_set_s_usual_without(command, dataset, usual):
    for flags, expected in (((), usual), (("--augment",), True), (("--no-augment",), False)):
        run = run_from("--dataset", dataset, *flags, command=command)
        assert run.data.augment is expected


def test_an_optimizer_without_momentum_leaves_the_run_s_identity_alone():
    run = run_from("--optimizer", "adamw")
    assert run.training.momentum == Training().momentum
    assert config_hash(run) == "ad81ee9f1767"
    assert run_from("--momentum", "0.8").training.momentum == 0.8


@pytest.mark.parametrize(
    "command",
    [*(f"lab.cli.{c}" for c in ("train", "compare", "tune", "data", "sharpness")), "paper.command"],
)
def test_every_flag_is_explained(command):
    """A string below each field, which is what ``--help`` prints."""
    module = importlib.import_module(f"aesam.{command}")
    bare = [
        f"{cls.name}.{field.target.id}"
        for source in {module.__file__, options.__file__}
        for cls in ast.parse(Path(source).read_text()).body
        if isinstance(cls, ast.ClassDef)
        for field, after in itertools.pairwise(cls.body)
        if isinstance(field, ast.AnnAssign)
        and not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]
    assert bare == []
