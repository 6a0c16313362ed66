"""SAF: the term of the loss, whose outputs it compares with, and what a run goes on with."""

from dataclasses import replace

import pytest
import torch
from support.commands import StopsAt, metrics_of, summary_of
from support.literal_training import Literal, run_of
from support.small_runs import numbers_of
from torch.nn.functional import cross_entropy

from aesam.lab.config import Method
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import check_settings
from aesam.lab.training import run_checkpoint, trainer
from aesam.lab.training.interrupts import Stopped
from aesam.lab.training.restored import load_run

#: 512 samples in batches of 100 leave some over in each epoch.
SETTINGS = {"weight": 0.8, "temperature": 2.0, "epochs_back": 2, "wait_epochs": 3}


def saf_run(dataset="synthetic", **training):
    short = {"epochs": 6, "batch_size": 100} | training
    return run_of(Method("saf", **SETTINGS), dataset, **short)


def literally(run):
    """The mean training loss of each epoch, the model, and how many samples had no past."""
    literal, outputs, losses, without, step = Literal(run), {}, [], 0, 0
    for epoch in range(run.training.epochs):
        of_epoch = []
        rows = literal.batches.rows(epoch)
        for (images, labels), numbers in zip(literal.batches.epoch(epoch), rows, strict=True):
            logits = literal.net(images.double())
            loss = cross_entropy(logits, labels)
            for i, number in enumerate(numbers.tolist()):
                past = outputs.get((epoch - 2, number))
                outputs[epoch, number] = logits[i].detach()
                if epoch >= 3 and past is None:
                    without += 1
                elif epoch >= 3:
                    p, q = torch.softmax(past / 2.0, 0), torch.softmax(logits[i] / 2.0, 0)
                    loss = loss + 0.8 * 2.0**2 * (p * (p.log() - q.log())).sum() / len(labels)
            of_epoch.append(loss.item())
            literal.update(torch.autograd.grad(loss, literal.params), literal.rate(step))
            step += 1
        losses.append(sum(of_epoch) / len(of_epoch))
    return losses, literal, without


@pytest.mark.parametrize("dataset", ["synthetic", pytest.param("digits", marks=pytest.mark.slow)])
def test_a_run_is_the_rule_as_it_is_written(dataset, tmp_path):
    run = saf_run(dataset)
    trainer.train(run, tmp_path)
    losses, literal, without = literally(run)
    assert without > 0
    found = [line["train_loss"] for line in metrics_of(tmp_path)]
    assert found == pytest.approx(losses, rel=1e-9)
    saved = load_run(tmp_path).model.parameters()
    for ours, expected in zip(saved, literal.params, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-7, atol=1e-12)


def test_it_is_plain_training_until_it_has_waited(tmp_path):
    run = saf_run()
    trainer.train(run, tmp_path / "saf")
    trainer.train(replace(run, method=Method("erm")), tmp_path / "erm")
    ours, theirs = metrics_of(tmp_path / "saf"), metrics_of(tmp_path / "erm")
    assert ours[:3] == theirs[:3]
    assert ours[3]["train_loss"] != theirs[3]["train_loss"]
    assert "evaluated" not in summary_of(tmp_path / "saf")
    assert summary_of(tmp_path / "saf")["gradients"] == summary_of(tmp_path / "saf")["steps"]


def test_a_run_goes_on_to_the_bit_from_anywhere(tmp_path):
    run = saf_run()
    trainer.train(run, tmp_path / "whole")
    for step in range(1, summary_of(tmp_path / "whole")["steps"] + 1, 3):
        with pytest.raises(Stopped):
            trainer.train(run, tmp_path / "cut", resume=True, reporter=StopsAt(step))
    trainer.train(run, tmp_path / "cut", resume=True)
    assert numbers_of(tmp_path / "whole") == numbers_of(tmp_path / "cut")


def test_accumulating_is_the_whole_batch(tmp_path):
    for accumulate in (1, 4):
        trainer.train(saf_run(accumulate=accumulate), tmp_path / str(accumulate))
    ends = [metrics_of(tmp_path / str(n))[-1]["train_loss"] for n in (1, 4)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_mixed_precision_trains(tmp_path):
    summary = trainer.train(saf_run(precision="bf16"), tmp_path)
    assert summary["train_loss"] < metrics_of(tmp_path)[0]["train_loss"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.pop("kept"),
        lambda c: c.update(kept=3),
        lambda c: c.update(kept=c["kept"][1:]),
        lambda c: c.update(kept=c["kept"].int()),
        lambda c: c.update(epoch=7),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(damage, tmp_path):
    run = saf_run()
    with pytest.raises(Stopped):
        trainer.train(run, tmp_path, reporter=StopsAt(7))
    content = run_checkpoint.load(tmp_path / "checkpoint.pt")
    damage(content["companion"])
    run_checkpoint.save(tmp_path / "checkpoint.pt", content)
    with pytest.raises(UsageError, match="is damaged"):
        trainer.train(run, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight": -0.1}, "weight must be"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"epochs_back": 0}, "epochs_back must be a whole number >= 1"),
        ({"wait_epochs": -1}, "wait_epochs must be a whole number >= 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        check_settings(Method("saf", **settings))
