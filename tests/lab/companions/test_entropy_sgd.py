"""Entropy-SGD: Langevin steps, the step of w, what is evaluated, and what a run goes on with."""

import inspect
import json

import pytest
import torch
from support.commands import StopsAt, aesam, metrics_of, summary_of
from support.literal_training import Literal, run_of
from support.small_runs import numbers_of

from aesam.lab import draws
from aesam.lab.companions.entropy_sgd import EntropySGD
from aesam.lab.config import Method
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import check_settings, record_of
from aesam.lab.training import run_checkpoint, trainer
from aesam.lab.training.interrupts import Stopped
from aesam.lab.training.restored import load_run

SETTINGS = {
    "inner_steps": 3, "inner_lr": 0.2, "scope": 0.3, "scoping": 0.1, "inner_noise": 0.05,
    "inner_average": 0.6, "outer": 0.7,
}  # fmt: skip


def literally(run):
    """w after each epoch, as the rule is written, and the steps of w that were taken."""
    s, literal, after, rounds, number = run.method.settings, Literal(run), [], 0, 0
    decay = run.training.weight_decay
    w = literal.weights()
    for epoch in range(run.training.epochs):
        for images, labels in literal.batches.epoch(epoch):
            if number % 3 == 0:
                mean = [each.clone() for each in w]
            gradients = literal.gradients(images, labels)
            source = draws.generator("langevin", run.seed, number)
            scope = 0.3 * 1.1**rounds
            for i, p in enumerate(literal.params):
                at = p.detach().clone()
                drift = gradients[i] + decay * at + scope * (at - w[i])
                noise = torch.randn(at.shape, generator=source, dtype=torch.float64)
                at = at - 0.2 * drift + 0.2**0.5 * 0.05 * noise
                mean[i] = (1 - 0.6) * mean[i] + 0.6 * at
                p.data.copy_(at)
            if number % 3 == 2:
                for p, each in zip(literal.params, w, strict=True):
                    p.data.copy_(each)
                toward = [s["outer"] * (a - m) for a, m in zip(w, mean, strict=True)]
                literal.update(toward, literal.rate(number))
                w, rounds = literal.weights(), rounds + 1
            number += 1
        after.append((w, literal.loss_of(w, literal.samples.held)))
    return after, rounds


@pytest.mark.parametrize("dataset", ["synthetic", pytest.param("digits", marks=pytest.mark.slow)])
def test_a_run_is_the_rule_as_it_is_written(dataset, tmp_path):
    run = run_of(Method("entropy-sgd", **SETTINGS), dataset, weight_decay=0.01)
    trainer.train(run, tmp_path)
    after, rounds = literally(run)
    assert rounds == 5  # of 16 batches: the last one is of a round that does not end
    found = [line["test_loss"] for line in metrics_of(tmp_path)]
    assert found == pytest.approx([loss for _, loss in after], rel=1e-9)
    saved, last = load_run(tmp_path).model.parameters(), after[-1][0]
    assert all(torch.allclose(p, w, rtol=1e-9) for p, w in zip(saved, last, strict=True))


def test_a_gradient_is_counted_for_every_batch(tmp_path):
    """So that runs of as many epochs as others are runs of as many gradients."""
    summary = trainer.train(run_of(Method("entropy-sgd", **SETTINGS)), tmp_path)
    assert summary["gradients"] == summary["steps"] == 16
    assert summary["percent_sam"] == 0.0
    assert summary["evaluated"] == "the weights that the Langevin steps start from"


def test_a_run_goes_on_to_the_bit_from_anywhere_in_a_round(tmp_path):
    run = run_of(Method("entropy-sgd", **SETTINGS))
    trainer.train(run, tmp_path / "whole")
    for step in range(1, summary_of(tmp_path / "whole")["steps"] + 1, 2):
        with pytest.raises(Stopped):
            trainer.train(run, tmp_path / "cut", resume=True, reporter=StopsAt(step))
    trainer.train(run, tmp_path / "cut", resume=True)
    assert numbers_of(tmp_path / "whole") == numbers_of(tmp_path / "cut")
    ends = [run_checkpoint.load(tmp_path / n / "checkpoint.pt") for n in ("whole", "cut")]
    assert all(torch.equal(t, ends[1]["evaluated"][k]) for k, t in ends[0]["evaluated"].items())
    assert any(not torch.equal(t, ends[0]["model"][k]) for k, t in ends[0]["evaluated"].items())


@pytest.mark.parametrize(
    "damage",
    [
        lambda own: own.pop("mean"),
        lambda own: own.update(inner=3),
        lambda own: own.update(rounds=-1),
        lambda own: own["anchor"].pop(),
        lambda own: own["mean"].__setitem__(0, torch.zeros(1)),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(damage, tmp_path):
    run = run_of(Method("entropy-sgd", **SETTINGS))
    with pytest.raises(Stopped):
        trainer.train(run, tmp_path, reporter=StopsAt(5))
    content = run_checkpoint.load(tmp_path / "checkpoint.pt")
    damage(content["optimizer"]["state"]["base"])
    run_checkpoint.save(tmp_path / "checkpoint.pt", content)
    with pytest.raises(UsageError, match="is damaged"):
        trainer.train(run, tmp_path, resume=True)


@pytest.mark.parametrize("changes", [{"optimizer": "adamw", "lr": 0.01}, {"precision": "bf16"},
                                     {"clip": 2.0}, {"accumulate": 4}])  # fmt: skip
def test_options_of_training_train(changes, tmp_path):
    run = run_of(Method("entropy-sgd", inner_steps=2), **changes)
    assert trainer.train(run, tmp_path)["train_loss"] < metrics_of(tmp_path)[0]["train_loss"]


def test_the_command_has_its_settings(tmp_path):
    words = ("--dataset", "synthetic", "--epochs", 1, "--scope", 0.1, "--inner-steps", 4)
    assert aesam("train", "--method", "entropy-sgd", *words, "--out", tmp_path, "--quiet") == 0
    method = json.loads((tmp_path / "config.json").read_text())["method"]
    assert (method["scope"], method["inner_steps"], method["inner_lr"]) == (0.1, 4, 0.1)


def test_the_defaults_of_the_optimizer_are_those_of_the_record():
    given = inspect.signature(EntropySGD).parameters.values()
    own = {p.name: p.default for p in given if p.name not in ("base", "seed")}
    assert own == record_of("entropy-sgd").defaults


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"inner_steps": 0}, "inner_steps must be a whole number >= 1"),
        ({"inner_lr": 0.0}, "inner_lr must be"),
        ({"scope": -1.0}, "scope must be"),
        ({"inner_average": 0.0}, "inner_average must be"),
        ({"outer": 0.0}, "outer must be"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        check_settings(Method("entropy-sgd", **settings))
