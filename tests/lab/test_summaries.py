"""Runs that diverged are told from those that did not, in every place that shows them."""

import json
import math
import random

import numpy as np
import pytest
from support.commands import aesam, summary_of
from support.fixtures_report import write_short_run
from support.small_runs import WORDS, tiny_run

from aesam.lab import summaries
from aesam.lab.cli.console import diverged
from aesam.lab.errors import UsageError
from aesam.lab.show import as_json, as_text, compare, read_runs, results_sheet
from aesam.lab.show.comparison_tables import runs_sheet
from aesam.lab.training import trainer
from aesam.lab.training.engine import seed_all


def test_a_run_diverged_by_its_loss_or_by_more_than_a_tenth_of_its_steps():
    assert not summaries.has_diverged(100, 10, [0.5, 0.5])
    assert summaries.has_diverged(100, 11, [0.5, 0.5])
    assert summaries.has_diverged(100, 0, [math.nan, 0.5])
    assert summaries.has_diverged(100, 0, [0.5, math.inf])


@pytest.mark.parametrize(
    ("method", "flags"),
    [("erm", "--lr"), ("sam", "--lr or --rho"), ("looksam", "--lr, --rho or --alpha"),
     ("nobody-s", "--lr")],
)  # fmt: skip
def test_advice_on_a_run_that_diverged_names_what_its_method_has(method, flags, tmp_path):
    told = diverged({"method": method, "steps": 8, "skipped_steps": 8}, tmp_path)
    assert f"Lower {flags}, or give --clip" in told


def test_a_damaged_summary_is_told_with_what_to_do(tmp_path):
    write_short_run(tmp_path, "sam", seconds=-1.0)
    with pytest.raises(UsageError, match=r"is damaged: .*'seconds'.* Move its folder away"):
        read_runs([tmp_path])


def test_a_summary_of_before_diverged_if_its_loss_is_lost():
    assert not summaries.is_diverged({"train_loss": 0.5})
    assert not summaries.is_diverged({})
    assert summaries.is_diverged({"train_loss": None})
    assert summaries.is_diverged({"train_loss": math.nan})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a gradient, or the direction:UserWarning")
def test_a_run_that_took_no_step_is_marked_and_ends_with_1(tmp_path, capsys):
    words = (*WORDS[:5], "--method", "sam", "--rho", "1e23", "--epochs", 1, "--out", tmp_path)
    code, told = aesam(*words, capsys=capsys)
    assert code == 1
    assert "diverged, 8 of 8 steps skipped" in told
    assert "Lower --lr or --rho" in told
    assert summary_of(tmp_path)["diverged"] is True
    assert aesam(*words, "--resume", "--quiet") == 1


@pytest.mark.slow
def test_a_run_that_went_well_is_not_marked(tmp_path):
    assert trainer.train(tiny_run(), tmp_path)["diverged"] is False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a gradient, or the direction:UserWarning")
def test_tune_never_calls_a_setting_that_diverged_the_best(tmp_path, capsys):
    words = ("tune", "--dataset", "synthetic", "--model", "mlp", "--methods", "sam", "--epochs", 1)
    more = ("--seeds", 0, "--limit", 0, "--out", tmp_path, "--quiet")
    assert aesam(*words, "--rhos", "1e23", 0.1, *more) == 0
    best, other = json.loads((tmp_path / "tune.json").read_text())["rows"]
    assert (best["settings"]["rho"], best["best"], best["diverged"]) == (0.1, True, 0)
    assert (other["best"], other["diverged"]) == (False, 1)
    assert "1 of 1 diverged" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a gradient, or the direction:UserWarning")
def test_compare_names_runs_that_diverged_and_ends_with_0(tmp_path, capsys):
    words = ("compare", "--dataset", "synthetic", "--model", "mlp", "--methods", "sam")
    more = ("--rho", "1e23", "--epochs", 1, "--seeds", 0, "--noise", 0, "--out", tmp_path)
    code, told = aesam(*words, *more, capsys=capsys)
    assert code == 0
    assert "diverged (8 of 8 steps were skipped)" in told
    assert "SAM †" in told


def test_runs_that_diverged_are_marked_in_tables_and_counted_in_the_means(tmp_path):
    write_short_run(tmp_path / "a", "sam", 0, test_accuracy=80.0)
    write_short_run(
        tmp_path / "b", "sam", 1, test_accuracy=10.0, train_loss=None, skipped_steps=720
    )
    write_short_run(tmp_path / "c", "erm", 0)
    (comparison,) = compare(read_runs([tmp_path]))
    row = next(row for row in comparison.rows if row.method == "sam")
    assert row.accuracy.mean == 45.0
    assert row.diverged_seeds == [1]
    text = as_text(results_sheet(comparison), width=1000)
    assert "SAM †" in text
    assert "† SAM: 1 of 2 runs diverged (seed 1)" in text
    assert "SAM skipped 720 of 1440 steps" in text
    assert "diverged, 720 of 720 steps skipped" in as_text(runs_sheet(comparison))
    rows = as_json([comparison], "")["comparisons"][0]["rows"]
    assert [run["diverged"] for row in rows for run in row["runs"]].count(True) == 1


def test_tables_of_runs_that_went_well_have_no_remarks(tmp_path):
    write_short_run(tmp_path, "sam")
    (comparison,) = compare(read_runs([tmp_path]))
    assert "remark" not in runs_sheet(comparison).columns
    assert "†" not in as_text(results_sheet(comparison))


def test_a_seed_is_of_every_generator():
    drawn = []
    for _ in range(2):
        seed_all(2**32 - 1)
        drawn.append((random.random(), np.random.rand()))
    assert drawn[0] == drawn[1]
