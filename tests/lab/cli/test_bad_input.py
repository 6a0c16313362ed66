"""What cannot be done is refused before anything is loaded, with exit code 2 and a sentence."""

import re
from dataclasses import fields

import pytest
from support.commands import aesam

from aesam.lab import validation
from aesam.lab.config import Data, Model, Training

pytestmark = pytest.mark.slow
BAD = {
    "unknown method": (("train", "--method", "ae-sma"), "did you mean ae-sam"),
    "unknown data set": (("train", "--dataset", "cifar11"), "did you mean cifar10"),
    "unknown model": (("train", "--model", "resnet19"), "did you mean resnet1"),
    "esam with accumulation": (("train", "--method", "esam", "--accumulate", 2), "accumulate"),
    "splits with accumulation": (
        ("train", "--method", "lpf-sgd", "--splits", 2, "--accumulate", 2),
        "splits each batch itself. Use accumulate 1, splits 1",
    ),
    "mesa with accumulation": (
        ("train", "--method", "mesa", "--accumulate", 2),
        "its term is of a whole batch",
    ),
    "more splits than rows": (
        ("train", "--method", "lpf-sgd", "--splits", 16, "--batch-size", 8),
        "leaves no row for each of lpf-sgd's splits",
    ),
    "k below 1": (("train", "--method", "looksam", "--k", 0), "k must be"),
    "noise of 1": (("train", "--noise", 1.0), "noise must be"),
    "negative noise": (("train", "--noise", -0.1), "noise must be"),
    "lambdas crossed": (("train", "--lambda1", 2, "--lambda2", 1), "lambda1 <= lambda2"),
    "batch larger than the data": (("train", "--batch-size", 5000), "5000"),
    "a setting of another method": (("train", "--method", "sam", "--k", 2), "sam has no setting k"),
    "a radius that nothing compensates": (
        ("train", "--method", "sam", "--compensate", 3),
        "sam has no setting compensate",
    ),
    "a factor below 1": (("train", "--compensate", 0.5), "compensate must be a finite number >= 1"),
    "no epochs": (("train", "--epochs", 0), "epochs must be at least 1"),
    "odd accumulation": (("train", "--accumulate", 3), "micro-batches"),
    "unknown precision": (("train", "--precision", "fp8"), "'bf16', 'fp16', 'float64'"),
    "unknown optimizer": (("train", "--optimizer", "adam"), "'sgd', 'adamw'"),
    "momentum for adamw": (
        ("train", "--optimizer", "adamw", "--momentum", 0.8),
        "adamw has no momentum to set, got --momentum 0.8",
    ),
    "momentum for adamw to compare": (
        ("compare", "--optimizer", "adamw", "--momentum", 0.9),
        "leave it out",
    ),
    "momentum for adamw to tune": (("tune", "--momentum", 0, "--optimizer", "adamw"), "leave it"),
    "a value for a flag": (("train", "--augment", "True"), "Unrecognized options: True"),
    "missing data": (("train", "--dataset", "cifar10"), "aesam data cifar10"),
    "unknown method to compare": (("compare", "--methods", "sam", "sum"), "did you mean sam"),
    "unknown engine": (("compare", "--engine", "spark"), "'local', 'ray', 'dask'"),
    "nothing": ((), "Missing subcommand"),
    "an address without a cluster": (("compare", "--address", "here"), "--engine dask or ray"),
    "an address that is none": (
        ("compare", "--engine", "dask", "--address", "garbage", "--epochs", 1),
        "is no Dask scheduler that answers",
    ),
    "a grid of none of the methods": (
        ("tune", "--methods", "sam", "--alphas", 0.2),
        "none of these methods is searched for alphas",
    ),
    "no radius": (("train", "--rho", "wide"), "no type matching FLOAT"),
    "no jobs": (("compare", "--jobs", 0), "jobs must be at least 1"),
    "noise to compare": (("compare", "--noise", 0.2, 1.5), "noise must be"),
    "batch larger than the data to compare": (("compare", "--batch-size", 5000), "larger than"),
    "a setting of none of the methods": (("compare", "--methods", "erm", "--k", 3), "setting k"),
    "a report without folders": (("report",), "at least one folder"),
    "no jobs to tune with": (("tune", "--jobs", 0, "--methods", "sam"), "jobs must be at least 1"),
    "nothing to tune on": (("tune", "--holdout", 0), "holdout must be above 0"),
    "a rho to tune": (("tune", "--rho", 0.1), "--rhos"),
    "unknown tracker": (("train", "--track", "tensorbord"), "did you mean tensorboard"),
    "tracker that is not there": (("train", "--track", "mlflow"), "not installed"),
    "seed out of range": (("train", "--seed", 10**20), "seed must be"),
    "fp16 on a CPU": (("train", "--cpu", "--precision", "fp16"), "fp16 needs an accelerator"),
    "too large a subset": (("compare", "--subset", 10**6), "subset"),
    "a patch for a CNN": (("compare", "--patch", 4), "patch"),
    "a report of nothing": (("report", "nowhere"), "nowhere"),
    "unknown set to fetch": (("data", "mnist"), "unknown data set"),
    "tune of nothing known": (("tune", "--methods", "sam1"), "did you mean sam"),
    "unknown flag": (("train", "--learning-rate", 1), "Unrecognized options: --learning-rate"),
    "no number": (("train", "--epochs", "many"), "epochs"),
    "a footer of another command": (("tune", "--epochs", "many"), "see aesam tune --help"),
    "a rate that no float32 holds": (
        ("train", "--lr", 1e308),
        "lr must be above 0 and at most 1e+30",
    ),
    "a decay that no float32 holds": (
        ("train", "--weight-decay", 1e308),
        "at most 1e+30, got 1e+308",
    ),
    "negative decay": (("train", "--weight-decay", -1), "weight-decay, where it is not 0, must be"),
    "too large a norm": (("train", "--clip", 1e308), "clip must be above 0 and at most 1e+30"),
    "too many jobs": (("compare", "--jobs", 10**20), "jobs must be at most 1000000"),
    "an address without a cluster to tune": (("tune", "--address", "x"), "--engine dask or ray"),
    "an address without a cluster to reproduce": (
        ("reproduce", "fig-normality", "--no-train", "--address", "x"),
        "--engine dask or ray",
    ),
    "an address to list": (("reproduce", "--list", "--address", "x"), "--engine dask or ray"),
    "jobs of what has no runs": (
        ("reproduce", "theorem", "--jobs", 3),
        "--jobs is for runs; theorem is computed at once",
    ),
    "a name that is not UTF-8": (("train", "--out", "\udcff"), "is not UTF-8"),
}
WHOLE = [name for name in validation.OF_A_RUN if name not in ("seed", "patch")]


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_a_sentence(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, hint = BAD[case]
    code, told = aesam(*words, capsys=capsys)
    assert code == 2
    assert "Traceback" not in told
    assert hint in " ".join(told.replace("│", " ").split())
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_beyond_all_use_are_refused(name, tmp_path, capsys):
    flag = name.replace("_", "-")
    code, told = aesam("train", f"--{flag}", 10**20, "--out", tmp_path, capsys=capsys)
    assert code == 2
    assert f"{flag} must be at most {validation.OF_A_RUN[name][1]}, got 1{'0' * 20}" in told


def test_every_whole_number_of_a_run_has_bounds():
    sections = (Data, Model, Training)
    numbers = {f.name for s in sections for f in fields(s) if re.search(r"\bint\b", str(f.type))}
    assert numbers | {"seed"} == set(validation.OF_A_RUN)


@pytest.mark.parametrize("command", ["train", "compare", "tune"])
@pytest.mark.parametrize("place", ["x" * 300, "/proc/nothing", "/dev/null/below"])
def test_a_place_that_cannot_be_is_told_in_words(command, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("--dataset", "synthetic", "--epochs", 1, "--out", place)
    code, told = aesam(
        command, *words, "--methods" if command != "train" else "--method", "sam", capsys=capsys
    )
    assert code in (1, 2)
    assert "Traceback" not in told
    assert place in told


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_file_in_place_of_a_folder_is_refused(command, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    code, told = aesam(command, "--out", tmp_path / "file", capsys=capsys)
    assert code == 2
    assert "is a file: choose a folder" in " ".join(told.split())
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("command", ["train", "compare", "tune", "report", "data"])
def test_help_teaches(command, capsys):
    code, told = aesam(command, "--help", capsys=capsys)
    assert code == 0
    assert len(told) > 200
    assert f"aesam {command}" in told


def test_completion_for_the_shell_is_there(capsys):
    code, told = aesam("--tyro-print-completion", "bash", capsys=capsys)
    assert code == 0
    assert "compare" in told
