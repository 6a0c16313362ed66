"""SWAD: which epochs are averaged, by which loss, on which samples."""

import random
from dataclasses import replace

import pytest
import torch
from support.commands import StopsAt, metrics_of, summary_of
from support.literal_training import Literal, mean_of, run_of

from aesam.lab.companions.companion import Stage
from aesam.lab.companions.dense_average import DenseAverage
from aesam.lab.config import Method
from aesam.lab.data.run_samples import samples_of
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import check_settings
from aesam.lab.training import run_checkpoint, trainer
from aesam.lab.training.interrupts import Stopped
from aesam.lab.training.restored import load_run

STEPS = 3  # of an epoch


def chosen_epochs(losses, first, last, tolerance):
    """The start and the end (both included) as the algorithm of Cha et al. 2021 is printed."""
    start = threshold = None
    for i in range(len(losses)):
        if start is None:
            window = losses[i - first + 1 : i + 1] if i >= first - 1 else []
            if window and window[0] == min(window):
                start, threshold = i - first + 1, tolerance * sum(window) / first
        elif i >= last - 1 and min(losses[i - last + 1 : i + 1]) > threshold:
            return start, i - last
    return (None, None) if start is None else (start, len(losses) - 1)


def through(losses, **settings):
    """A companion and the weights after every step, for losses that are given."""
    net, told = torch.nn.Linear(2, 1).double(), iter(losses)
    companion = DenseAverage(own_holdout=0.1, **settings)
    total = STEPS * len(losses)
    companion.begin(Stage(net, None, total, STEPS, 9, None, lambda: next(told)))
    iterates = []
    for epoch in range(len(losses)):
        for step in range(STEPS):
            for p in net.parameters():
                torch.nn.init.normal_(p)
            companion.after_step(epoch * STEPS + step + 1)
            iterates.append([p.detach().clone() for p in net.parameters()])
        companion.after_epoch(epoch + 1)
    return companion, iterates


def drawn(seed):
    """Losses that fall and rise, and settings."""
    draw = random.Random(seed)
    first, last, tolerance = draw.randint(1, 4), draw.randint(1, 5), draw.uniform(1.0, 1.5)
    floor, count = draw.uniform(0.3, 1.0), draw.randint(1, 22)
    losses = [abs(i / 6 - 1) + floor + draw.uniform(0, 0.4) for i in range(count)]
    return losses, first, last, tolerance


@pytest.mark.parametrize("seed", range(40))
def test_the_mean_is_of_the_epochs_that_the_printed_algorithm_chooses(seed):
    losses, first, last, tolerance = drawn(seed)
    companion, iterates = through(
        losses, optimum_patience=first, overfit_patience=last, tolerance=tolerance
    )
    start, end = chosen_epochs(losses, first, last, tolerance)
    if start is None:
        assert companion.weights() is None
        return
    expected = mean_of(iterates[start * STEPS : (end + 1) * STEPS])
    for found, mean in zip(companion.weights(), expected, strict=True):
        assert torch.allclose(found, mean, rtol=1e-12, atol=1e-14)


def test_what_is_drawn_has_every_kind_of_end():
    """No start, an end before the last epoch, and none; patience of either kind the longer one."""
    kinds = set()
    for losses, first, last, tolerance in map(drawn, range(40)):
        start, end = chosen_epochs(losses, first, last, tolerance)
        kinds.add(None if start is None else (end < len(losses) - 1, last < first))
    assert kinds == {None, (True, True), (True, False), (False, True), (False, False)}


@pytest.mark.parametrize("dataset", ["synthetic", pytest.param("digits", marks=pytest.mark.slow)])
def test_a_run_averages_by_the_loss_on_samples_that_it_does_not_train_on(dataset, tmp_path):
    method = Method("swad", optimum_patience=2, overfit_patience=2, tolerance=1.0, own_holdout=0.25)
    run = run_of(method, dataset, epochs=6, lr=0.3, noise=0.5, batch_size=64)
    trainer.train(run, tmp_path)
    literal, iterates, losses = Literal(run), [], []
    for step in literal.epochs():
        if step is None:
            losses.append(literal.loss_now(literal.samples.kept))
        else:
            iterates.append(literal.weights())
    each = len(literal.batches)
    start, end = chosen_epochs(losses, 2, 2, 1.0)
    mean = mean_of(iterates[start * each : (end + 1) * each])
    expected = literal.loss_of(mean, literal.samples.held)
    assert metrics_of(tmp_path)[-1]["test_loss"] == pytest.approx(expected, rel=1e-10)
    saved = load_run(tmp_path).model.parameters()
    assert all(torch.allclose(p, m, rtol=1e-10) for p, m in zip(saved, mean, strict=True))


def test_what_it_keeps_is_of_the_training_samples_and_has_their_wrong_labels():
    run = run_of(Method("swad", own_holdout=0.25), noise=0.5, holdout=0.25)
    samples, plain = samples_of(run), samples_of(replace(run, method=Method("erm")))
    assert (len(samples.train), len(samples.kept), len(samples.held)) == (288, 96, 128)
    assert plain.kept is None
    both = torch.cat([samples.train.images, samples.kept.images]).flatten(1)
    labels = torch.cat([samples.train.labels, samples.kept.labels])
    order, theirs = rows_in_order(both), rows_in_order(plain.train.images.flatten(1))
    assert torch.equal(both[order], plain.train.images.flatten(1)[theirs])
    assert torch.equal(labels[order], plain.train.labels[theirs])
    assert torch.equal(samples.held.labels, plain.held.labels)


def rows_in_order(rows):
    return torch.tensor(sorted(range(len(rows)), key=lambda i: rows[i].tolist()))


def test_a_run_goes_on_to_the_bit_before_within_and_after_its_average(tmp_path):
    method = Method("swad", optimum_patience=1, overfit_patience=1, tolerance=1.0)
    run = run_of(method, epochs=6, lr=0.3, noise=0.5)
    trainer.train(run, tmp_path / "whole")
    steps = summary_of(tmp_path / "whole")["steps"]
    for step in range(1, steps + 1, 2):
        with pytest.raises(Stopped):
            trainer.train(run, tmp_path / "cut", resume=True, reporter=StopsAt(step))
    trainer.train(run, tmp_path / "cut", resume=True)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "cut")
    ends = [run_checkpoint.load(tmp_path / n / "checkpoint.pt") for n in ("whole", "cut")]
    assert all(torch.equal(t, ends[1]["evaluated"][k]) for k, t in ends[0]["evaluated"].items())


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.pop("chosen"),
        lambda c: c.update(before=3),
        lambda c: c.update(before=[[1.0]]),
        lambda c: c.update(threshold="high"),
        lambda c: c.update(above=None),
        lambda c: c.update(ended=1),
        lambda c: c["epoch"].update(tensors=[]),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(damage, tmp_path):
    run = run_of("swad")
    with pytest.raises(Stopped):
        trainer.train(run, tmp_path, reporter=StopsAt(5))
    content = run_checkpoint.load(tmp_path / "checkpoint.pt")
    damage(content["companion"])
    run_checkpoint.save(tmp_path / "checkpoint.pt", content)
    with pytest.raises(UsageError, match="is damaged"):
        trainer.train(run, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tolerance": 0.9}, "tolerance must be at least 1, got 0.9"),
        ({"optimum_patience": 0}, "optimum_patience must be a whole number >= 1"),
        ({"overfit_patience": 0}, "overfit_patience must be a whole number >= 1"),
        ({"own_holdout": 0.0}, "own_holdout must be a number strictly between 0 and 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        check_settings(Method("swad", **settings))
