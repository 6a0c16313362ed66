"""ERM stopped early is ERM of so many epochs, in a run that says how many the others have."""

import json
from dataclasses import replace

import pytest
import torch
from support.commands import SMALL, StopsAt, aesam, metrics_of, summary_of
from support.literal_training import run_of

from aesam.lab import validation
from aesam.lab.config import Method
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import check_settings, epochs_of
from aesam.lab.training import run_checkpoint, trainer
from aesam.lab.training.interrupts import Stopped


def early(dataset="synthetic", length=0.5, **training):
    return run_of(Method("erm-early", length=length), dataset, **training)


def weights_of(folder):
    return run_checkpoint.load(folder / "checkpoint.pt")["model"]


def assert_same_end(one, other):
    assert metrics_of(one) == metrics_of(other)
    ours, theirs = weights_of(one), weights_of(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    named = {"method", "config_hash"}
    ends = [{k: v for k, v in summary_of(f).items() if k not in named} for f in (one, other)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"epochs": 7},
        {"evaluate_every": 3},
        {"epochs": 6, "warmup": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("dataset", ["synthetic", pytest.param("digits", marks=pytest.mark.slow)])
def test_it_is_erm_with_so_many_epochs_to_the_bit(dataset, training, tmp_path):
    run = early(dataset, **training)
    fewer = replace(run.training, epochs=round(0.5 * run.training.epochs))
    trainer.train(run, tmp_path / "early")
    trainer.train(replace(run, method=Method("erm"), training=fewer), tmp_path / "erm")
    assert len(metrics_of(tmp_path / "early")) == fewer.epochs
    assert_same_end(tmp_path / "early", tmp_path / "erm")


@pytest.mark.slow
def test_gradients_are_recorded_at_stages_of_its_own_training(tmp_path):
    run = early(epochs=8, measure="norms", precision="no")
    trainer.train(run, tmp_path / "early")
    recorded = [line["epoch"] for line in metrics_of(tmp_path / "early") if "norms" in line]
    assert recorded == [1, 2, 4]  # 0.3, 0.6 and 0.9 of four epochs


@pytest.mark.parametrize(
    ("length", "epochs", "expected"),
    [(0.125, 60, 8), (0.0625, 60, 4), (0.25, 60, 15), (0.125, 3, 1), (0.01, 1, 1), (1, 7, 7)],
)
def test_its_epochs_are_the_nearest_number_to_its_share_and_at_least_one(length, epochs, expected):
    assert epochs_of(early(length=length, epochs=epochs)) == expected
    assert epochs_of(run_of("sam", epochs=epochs)) == epochs


def test_it_goes_on_to_the_bit_wherever_it_was_stopped(tmp_path):
    run = early()
    trainer.train(run, tmp_path / "whole")
    steps = summary_of(tmp_path / "whole")["steps"]
    for step in (1, steps // 2, steps - 1):
        with pytest.raises(Stopped):
            trainer.train(run, tmp_path / "cut", resume=True, reporter=StopsAt(step))
    trainer.train(run, tmp_path / "cut", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_a_checkpoint_from_beyond_its_end_is_refused(tmp_path):
    """Of a whole training, under its name: further than it can ever come."""
    run = early()
    trainer.train(replace(run, method=Method("erm")), tmp_path / "whole")
    whole = run_checkpoint.load(tmp_path / "whole/checkpoint.pt")
    trainer.train(run, tmp_path / "early")
    (tmp_path / "early/summary.json").unlink()
    own = run_checkpoint.load(tmp_path / "early/checkpoint.pt")
    forged = own | {name: whole[name] for name in ("progress", "scheduler")}
    run_checkpoint.save(tmp_path / "early/checkpoint.pt", forged)
    with pytest.raises(UsageError, match="is beyond the run's end"):
        trainer.train(run, tmp_path / "early", resume=True)


@pytest.mark.parametrize("length", [0.0, -0.5, 1.5, float("nan")])
def test_a_length_that_is_no_share_is_refused(length):
    with pytest.raises(UsageError, match="erm-early: length must be a number above 0 and at most"):
        check_settings(Method("erm-early", length=length))


def test_a_warm_up_is_within_its_own_epochs():
    validation.check(early(epochs=8, warmup=3))
    with pytest.raises(UsageError, match="the 4 of 8 epochs that erm-early has, got 4: shorten"):
        validation.check(early(epochs=8, warmup=4))
    with pytest.raises(UsageError, match="shorter than the training's 8 epochs, got 8"):
        validation.check(run_of("erm", epochs=8, warmup=8))


def test_a_log_counts_the_epochs_that_it_has(tmp_path, capsys):
    words = ("train", *SMALL, "--method", "erm-early", "--length", 0.5, "--epochs", 4)
    assert aesam(*words, "--out", tmp_path) == 0
    told = capsys.readouterr().out
    assert "seed 0: 2 epochs, 16 steps" in told
    assert "epoch 2/2" in told
    assert "/4" not in told


@pytest.mark.slow
def test_it_stands_in_one_comparison_with_whole_trainings_at_its_share_of_the_cost(
    tmp_path, capsys
):
    words = ("--methods", "erm", "erm-early", "sam", "--length", 0.25, "--epochs", 8, "--jobs", 1)
    code, told = aesam("compare", *SMALL, *words, "--seeds", 0, 1, "--out", tmp_path, capsys=capsys)
    assert code == 0
    assert "erm-early seed 0 noise 0.4, 2 epochs: finished" in told
    assert "erm seed 0 noise 0.4, 8 epochs: finished" in told
    (comparison,) = json.loads((tmp_path / "results.json").read_text())["comparisons"]
    rows = {row["label"]: row for row in comparison["rows"]}
    costs = {label: row["gradients_per_step"] for label, row in rows.items()}
    assert costs == {"ERM": 1.0, "ERM, stopped early": 0.25, "SAM": 2.0}
    assert rows["ERM, stopped early"]["settings"]["length"] == 0.25
    assert "ERM, stopped early" in (tmp_path / "report.html").read_text()
    assert aesam("report", tmp_path, "--out", tmp_path / "again") == 0


@pytest.mark.slow
def test_tune_searches_its_length_each_with_a_score_of_its_own(tmp_path):
    words = ("--methods", "erm-early", "--seeds", 0, "--limit", 0, "--epochs", 16, "--noise", 0.4)
    assert aesam("tune", *SMALL, *words, "--jobs", 1, "--out", tmp_path, "--quiet") == 0
    (found,) = json.loads((tmp_path / "tune.json").read_text())["methods"]
    (curve,) = found["curves"]
    assert curve["setting"] == "length"
    assert [point["value"] for point in curve["points"]] == [0.0625, 0.125, 0.25, 0.5]
    assert {point["n"] for point in curve["points"]} == {1}
    runs = [json.loads(path.read_text())["steps"] for path in tmp_path.rglob("summary.json")]
    assert len(set(runs)) == 4
