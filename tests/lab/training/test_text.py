"""Training on text: a label at every place, every method, stopped anywhere, and its commands."""

import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from support.commands import StopsAt, aesam, metrics_of, summary_of
from support.fixtures_data import write_bible
from support.forked import CONTEXT
from torch.nn.functional import cross_entropy

from aesam.lab.config import Method
from aesam.lab.data import data_record, evaluation_chunks, samples_of
from aesam.lab.lab_methods import fill
from aesam.lab.training import trainer
from aesam.lab.training.interrupts import Stopped
from aesam.lab.training.reporters import Silent
from aesam.lab.training.restored import load_run

pytestmark = pytest.mark.slow
FAST = ("--dataset", "kjv-text", "--batch-size", 8, "--subset", 24)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_bible(tmp_path_factory.mktemp("data"))


def small_run(root, method="sam", **data):
    usual = data_record("kjv-text").usual
    return replace(
        usual,
        data=replace(usual.data, root=str(root), subset=24, **data),
        training=replace(usual.training, epochs=2, batch_size=8, evaluate_every=1),
        method=fill(Method(method)),
    )


def test_loss_and_accuracy_are_means_over_all_places(root, tmp_path):
    run = small_run(root)
    summary = trainer.train(run, tmp_path)
    trained, samples = load_run(tmp_path), samples_of(run)
    total, right, count = 0.0, 0, 0
    for x, y in evaluation_chunks(samples.held, samples.data_set, 7, "cpu"):
        scores = trained.model.eval()(x).detach().double().log_softmax(1)
        total -= scores.gather(1, y[:, None]).sum().item()
        right += int((scores.argmax(1) == y).sum())
        count += y.numel()
    assert summary["test_loss"] == pytest.approx(total / count, rel=1e-5)
    assert summary["test_accuracy"] == pytest.approx(100.0 * right / count)
    assert 0.0 < summary["train_accuracy"] < 100.0
    assert summary["train_loss"] < math.log(63)


#: One of each kind of step: rows chosen before, between and after, reuse, one gradient, recorded.
KINDS = ("erm", "sam", "esam", "k-sam", "sub-sam", "ae-looksam", "wsam", "msam", "functional-sam")


@pytest.mark.parametrize("method", KINDS)
def test_a_run_on_text_goes_on_where_it_stopped_to_the_same_numbers(method, root, tmp_path):
    run = small_run(root, method)
    whole = trainer.train(run, tmp_path / "whole")
    assert whole["steps"] == 6
    with pytest.raises(Stopped):
        trainer.train(run, tmp_path / "cut", reporter=StopsAt(4))
    trainer.train(run, tmp_path / "cut", resume=True)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "cut")


def test_the_loss_of_a_sample_is_the_mean_over_its_places(root, tmp_path):
    """So that a method that chooses rows ranks whole samples: all of them is the plain loss."""
    ends = []
    for method in (Method("sam", rho=0.05), Method("esam", rho=0.05, beta=1.0, gamma=1.0)):
        run = replace(small_run(root), method=fill(method))
        ends.append(trainer.train(run, tmp_path / method.name))
    assert ends[0]["test_loss"] == pytest.approx(ends[1]["test_loss"], rel=1e-5)


class Dies(Silent):
    """Kills its process when so many steps are done, as kill -9 would."""

    every = 0.0

    def step(self, done, epoch, loss, percent_sam):
        if done == 4:
            os.kill(os.getpid(), signal.SIGKILL)


def train_and_die(run, folder):
    trainer.train(run, folder, reporter=Dies())


def test_a_killed_run_goes_on_to_the_same_numbers(root, tmp_path):
    run = small_run(root, "ae-looksam")
    trainer.train(run, tmp_path / "whole")
    process = CONTEXT.Process(target=train_and_die, args=(run, tmp_path / "cut"))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(metrics_of(tmp_path / "cut")) == 1
    trainer.train(run, tmp_path / "cut", resume=True)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "cut")
    assert summary_of(tmp_path / "whole") == summary_of(tmp_path / "cut")


def test_noise_that_is_asked_for_is_refused(root, tmp_path, capsys):
    words = ("compare", *FAST, "--root", root, "--noise", 0.4, "--out", tmp_path)
    code, told = aesam(*words, capsys=capsys)
    assert code == 2
    assert "noise must be 0 for a text" in told


def test_methods_are_compared_and_ranked_by_their_loss(root, tmp_path, capsys):
    words = ("--methods", "erm", "sam", "--seeds", 0, 1, "--epochs", 2, "--jobs", 1)
    code, told = aesam("compare", *FAST, "--root", root, *words, "--out", tmp_path, capsys=capsys)
    assert code == 0
    assert "test loss" in told
    (found,) = json.loads((tmp_path / "results.json").read_text())["comparisons"]
    assert found["score"] == "loss"
    losses = {row["method"]: row["loss"]["mean"] for row in found["rows"]}
    best = [row["method"] for row in found["rows"] if row["best_overall"]]
    assert best == [min(losses, key=losses.get)]
    page = (tmp_path / "report.html").read_text()
    assert "Lowest loss" in page
    assert "Most accurate" not in page


def test_settings_are_tuned_by_the_loss(root, tmp_path, capsys):
    words = ("--methods", "sam", "--rhos", 0.05, 3.0, "--seeds", 0, "--epochs", 2, "--jobs", 1)
    more = ("--limit", 0, "--holdout", 0.5, "--out", tmp_path)
    code, told = aesam("tune", *FAST, "--root", root, *words, *more, capsys=capsys)
    assert code == 0
    assert "loss" in told
    found = json.loads((tmp_path / "tune.json").read_text())
    losses = {row["settings"]["rho"]: row["validation_loss"] for row in found["rows"]}
    assert set(losses) == {0.05, 3.0}
    assert found["methods"][0]["chosen"]["rho"] == min(losses, key=losses.get)
    assert "validation_accuracy" not in found["rows"][0]


def test_the_sharpness_of_a_text_is_measured(root, tmp_path, capsys):
    run = small_run(root)
    trainer.train(run, tmp_path)
    fast = ("--samples", 4, "--k", 1, "--trace-samples", 2, "--grid", 2)
    code, _ = aesam("sharpness", tmp_path, *fast, "--root", root, capsys=capsys)
    assert code == 0
    found = json.loads((tmp_path / "sharpness.json").read_text())["summary"]["loss"]
    trained = load_run(tmp_path)
    batches = trained.training_batches(4)
    with torch.no_grad():
        expected = [cross_entropy(trained.model.eval()(x), y).item() for x, y in batches]
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-4)
