"""Methods that only the lab has, in every command and where they must be refused."""

import json

import pytest
from support.commands import aesam
from support.literal_training import run_of

from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import label_of
from aesam.lab.own_methods import list_own_methods
from aesam.lab.training import sharding, trainer

SMALL = ("--dataset", "synthetic", "--epochs", 3, "--seeds", 0, "--quiet")


@pytest.mark.slow
def test_compare_trains_all_of_them_and_reports_what_was_evaluated(tmp_path):
    words = ("--methods", "erm", *list_own_methods(), "--noise", 0.2, "--jobs", 1)
    assert aesam("compare", *SMALL, *words, "--out", tmp_path) == 0
    (comparison,) = json.loads((tmp_path / "results.json").read_text())["comparisons"]
    rows = {row["label"]: row for row in comparison["rows"]}
    assert rows.keys() == {"ERM", *map(label_of, list_own_methods())}
    costs = {label: row["gradients_per_step"] for label, row in rows.items()}
    assert costs.pop("SWAD") == 21 / 24  # it trains on nine tenths of the samples
    assert costs.pop("ERM, stopped early") == 1 / 3  # it has one of three epochs
    assert set(costs.values()) == {1.0}
    page = (tmp_path / "report.html").read_text()
    assert "EMA: accuracy of an exponential average of the weights." in page
    assert "SAF: accuracy of" not in page  # the model's own weights are
    assert "SAF: no outputs were compared, since that begins after epoch 5: trained as ERM." in page


@pytest.mark.slow
def test_tune_searches_what_their_records_have_a_grid_for(tmp_path):
    words = ("--methods", "ema", "--limit", 0, "--jobs", 1, "--out", tmp_path)
    assert aesam("tune", *SMALL, *words) == 0
    (found,) = json.loads((tmp_path / "tune.json").read_text())["methods"]
    (curve,) = found["curves"]
    assert curve["setting"] == "ema_decay"
    assert {point["value"] for point in curve["points"]} == {0.9, 0.99, 0.999}


@pytest.mark.slow
def test_sharpness_measures_the_weights_that_were_evaluated(tmp_path, capsys):
    out = ("--out", tmp_path / "run", "--quiet")
    assert aesam("train", "--method", "ema", "--epochs", 1, *out) == 0
    assert aesam("sharpness", tmp_path / "run", "--samples", 16, "--grid", 3) == 0
    assert "sharpness" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "enough", "told"),
    [
        ("saf", ("--wait-epochs", 1, "--epochs-back", 1), "since that begins after epoch 5: train"),
        ("swad", ("--optimum-patience", 1), "there was no start to average from"),
        ("entropy-sgd", ("--inner-steps", 16), "w was never moved, since that takes 20 steps;"),
    ],
)
def test_a_run_that_was_too_short_for_its_method_says_so(method, enough, told, tmp_path, capsys):
    short = ("train", "--method", method, "--dataset", "synthetic", "--epochs", 2)
    aesam(*short, "--out", tmp_path / "short")
    assert told in capsys.readouterr().out
    aesam(*short, *enough, "--out", tmp_path / "enough")
    assert "train for longer" not in capsys.readouterr().out


def test_a_batch_larger_than_what_is_left_to_train_on_is_refused_before_anything(tmp_path, capsys):
    """1,437 digits without a half for itself are fewer than 1,000."""
    words = ("--methods", "erm", "swad", "--batch-size", 1000, "--own-holdout", 0.5)
    code, told = aesam("compare", *words, "--out", tmp_path / "runs", capsys=capsys)
    assert code == 2
    assert "batch_size 1000 is larger than the 71" in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("method", list_own_methods())
def test_a_model_that_is_sharded_is_refused(method, tmp_path, monkeypatch):
    """FSDP2 needs an accelerator in the lab, so that only the answer is given here."""
    monkeypatch.setattr(sharding, "is_sharded", lambda _: True)
    with pytest.raises(UsageError, match=f"{method} needs the whole model on each process"):
        trainer.train(run_of(method), tmp_path)


def test_an_average_under_mixed_precision_is_of_the_whole_weights(tmp_path):
    summary = trainer.train(run_of("ema", precision="bf16"), tmp_path)
    assert summary["evaluated"]
    content = trainer.run_checkpoint.load(tmp_path / "checkpoint.pt")
    assert {str(t.dtype) for t in content["companion"]["average"]["tensors"]} == {"torch.float32"}
