"""EMA and SWA: which weights are averaged, evaluated, saved and gone on with."""

import json
from dataclasses import replace

import pytest
import torch
from support.commands import StopsAt, aesam, metrics_of, summary_of
from support.literal_training import Literal, mean_of, run_of
from torch import nn

from aesam.lab.config import Method, Model
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import check_settings
from aesam.lab.models import ModelRecord, forget_model, register_model
from aesam.lab.training import run_checkpoint, trainer
from aesam.lab.training.interrupts import Stopped
from aesam.lab.training.restored import load_run

DATA = ["synthetic", pytest.param("digits", marks=pytest.mark.slow)]


def losses_of(folder):
    return [line["test_loss"] for line in metrics_of(folder)]


def close(found, expected):
    return found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("dataset", DATA)
def test_ema_evaluates_the_literal_exponential_average_after_every_epoch(dataset, tmp_path):
    run = run_of(Method("ema", ema_decay=0.9), dataset)
    trainer.train(run, tmp_path)
    literal, average, expected = Literal(run), None, []
    for step in literal.epochs():
        if step is None:
            expected.append(literal.loss_of(average, literal.samples.held))
        elif average is None:
            average = literal.weights()
        else:
            now = literal.weights()
            average = [0.9 * m + 0.1 * w for m, w in zip(average, now, strict=True)]
    assert close(losses_of(tmp_path), expected)
    saved = load_run(tmp_path).model.parameters()
    assert all(torch.allclose(p, m, rtol=1e-10) for p, m in zip(saved, average, strict=True))


@pytest.mark.parametrize("dataset", DATA)
def test_swa_evaluates_the_mean_of_late_epochs_under_a_rate_that_stays_up(dataset, tmp_path):
    run = run_of(Method("swa", average_after=0.5, rate_floor=0.4), dataset, epochs=5)
    trainer.train(run, tmp_path)
    literal, late, expected, epoch = Literal(run), [], [], 0
    for step in literal.epochs(floor=0.4):
        if step is None:
            epoch += 1
            if epoch > 2.5:
                late.append(literal.weights())
                expected.append(literal.loss_of(mean_of(late), literal.samples.held))
    assert len(late) == 3
    assert close(losses_of(tmp_path)[2:], expected)
    assert metrics_of(tmp_path)[-1]["lr"] == pytest.approx(0.4 * run.training.lr)


def test_before_there_is_an_average_the_model_itself_is_evaluated(tmp_path):
    """Until the mean begins, SWA without a floor is the plain training; in the end it is not."""
    plain, averaged = run_of("erm"), run_of(Method("swa", rate_floor=0.0))
    trainer.train(plain, tmp_path / "plain")
    trainer.train(averaged, tmp_path / "swa")
    ours, theirs = losses_of(tmp_path / "swa"), losses_of(tmp_path / "plain")
    assert ours[:3] == theirs[:3]
    assert ours[3] == theirs[3]  # of one epoch: the mean of one
    longer = replace(averaged.training, epochs=8)
    trainer.train(replace(averaged, training=longer), tmp_path / "longer")
    trainer.train(replace(plain, training=longer), tmp_path / "plain longer")
    ours, theirs = losses_of(tmp_path / "longer"), losses_of(tmp_path / "plain longer")
    assert ours[:7] == theirs[:7]
    assert ours[7] != theirs[7]


@pytest.fixture
def dropping():
    """The name of a model with BatchNorm and dropout."""
    record = ModelRecord(
        name="dropping", label="Dropping", help="drops half of its units",
        build=lambda task: nn.Sequential(
            nn.Flatten(), nn.Linear(task.channels * task.size**2, 16), nn.BatchNorm1d(16),
            nn.Dropout(), nn.Linear(16, task.classes),
        ),
    )  # fmt: skip
    register_model(record)
    yield record.name
    forget_model(record.name)


def test_evaluating_an_average_changes_nothing_of_the_training(dropping, tmp_path):
    """Neither the statistics of BatchNorm nor the draws of dropout."""
    often = replace(run_of("ema"), model=Model(dropping))
    seldom = replace(often, training=replace(often.training, evaluate_every=4))
    plain = replace(often, method=Method("erm"))
    for name, run in (("often", often), ("seldom", seldom), ("plain", plain)):
        trainer.train(run, tmp_path / name)
    ends = [
        run_checkpoint.load(tmp_path / name / "checkpoint.pt")["model"]
        for name in ("often", "seldom", "plain")
    ]
    assert all(torch.equal(ends[0][k], end[k]) for end in ends[1:] for k in ends[0])
    assert losses_of(tmp_path / "often")[-1] == metrics_of(tmp_path / "seldom")[-1]["test_loss"]


@pytest.mark.parametrize("method", [Method("ema"), Method("swa", average_after=0.0)], ids=str)
def test_a_run_with_an_average_goes_on_to_the_bit(method, tmp_path):
    run = run_of(method)
    trainer.train(run, tmp_path / "whole")
    steps = summary_of(tmp_path / "whole")["steps"]
    for step in (1, steps // 2, steps * 3 // 4, steps):  # the last: after an epoch's last batch
        with pytest.raises(Stopped):
            trainer.train(run, tmp_path / "cut", resume=True, reporter=StopsAt(step))
    trainer.train(run, tmp_path / "cut", resume=True)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "cut")
    ends = [run_checkpoint.load(tmp_path / n / "checkpoint.pt") for n in ("whole", "cut")]
    for part in ("model", "evaluated"):
        assert all(torch.equal(ends[0][part][k], ends[1][part][k]) for k in ends[0][part])
    assert any(not torch.equal(ends[0]["model"][k], t) for k, t in ends[0]["evaluated"].items())


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.pop("companion"),
        lambda c: c.update(companion={}),
        lambda c: c.update(companion=[1]),
        lambda c: c["companion"]["average"].update(count=-1),
        lambda c: c["companion"]["average"].update(count=10**6),
        lambda c: c["companion"]["average"]["tensors"].pop(),
        lambda c: c["companion"]["average"]["tensors"].__setitem__(0, torch.zeros(1)),
    ],
)
def test_a_checkpoint_whose_average_is_of_something_else_is_refused(damage, tmp_path):
    run = run_of("ema")
    with pytest.raises(Stopped):
        trainer.train(run, tmp_path, reporter=StopsAt(6))
    content = run_checkpoint.load(tmp_path / "checkpoint.pt")
    damage(content)
    run_checkpoint.save(tmp_path / "checkpoint.pt", content)
    with pytest.raises(UsageError, match="is damaged"):
        trainer.train(run, tmp_path, resume=True)


def test_the_commands_say_what_was_evaluated(tmp_path, capsys):
    words = ("--dataset", "synthetic", "--epochs", 2, "--out", tmp_path / "run")
    code, told = aesam("train", "--method", "ema", *words, capsys=capsys)
    assert code == 0
    assert "test accuracy of an exponential average of the weights" in told
    evaluated = json.loads((tmp_path / "run/summary.json").read_text())["evaluated"]
    assert evaluated == "an exponential average of the weights"
    assert aesam("report", tmp_path, capsys=capsys)[0] == 0
    page = (tmp_path / "report.html").read_text()
    assert "EMA: accuracy of an exponential average of the weights." in page


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Method("ema", ema_decay=1.0), "ema_decay must be a number strictly between 0 and 1"),
        (Method("swa", average_after=1.5), "average_after must be a number between 0 and 1"),
        (Method("swa", rate_floor=-0.1), "rate_floor must be a number between 0 and 1"),
        (Method("swa", rho=0.1), "swa has no setting rho: it has rate_floor, average_after"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_before_anything_is_trained(method, said):
    with pytest.raises(UsageError, match=said):
        check_settings(method)
