"""What a run records of its gradients: the right numbers, and nothing of the training changed."""

from dataclasses import replace

import pytest
import torch
from support.commands import StopsAt, metrics_of
from torch.nn.functional import cross_entropy

from aesam.lab.config import Method
from aesam.lab.data import Batches, data_record
from aesam.lab.data.run_samples import samples_of
from aesam.lab.lab_methods import fill
from aesam.lab.training import trainer
from aesam.lab.training.interrupts import Stopped
from aesam.lab.training.meter import BATCHES, Meter
from aesam.lab.training.restored import load_run

SIZE, COUNT = 64, 256  # of a batch and of the training set, so that every pass is four batches


def small_run(**changes):
    usual = data_record("synthetic").usual
    return replace(
        usual,
        data=replace(usual.data, subset=COUNT),
        method=fill(Method("ae-sam")),
        training=replace(usual.training, batch_size=SIZE, **changes),
    )


def gradient(net, images, labels):
    loss = cross_entropy(net(images), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run of one epoch that recorded its gradients, and its model after it."""
    folder = tmp_path_factory.mktemp("measured")
    run = small_run(epochs=1, measure="gradients")
    trainer.train(run, folder)
    return run, folder


def test_means_are_those_of_the_batches_and_of_the_whole_training_set(measured):
    run, folder = measured
    net = load_run(folder).model
    samples = samples_of(run, None)
    meter = Meter(run, samples.train, samples.data_set, torch.device("cpu"))
    batches = Batches(
        samples.train, samples.data_set, COUNT, 0, augment=False, device=torch.device("cpu")
    )
    ((images, labels),) = batches.epoch(0)
    full = gradient(net, images, labels).square().sum().item()
    line = meter.after(1, net)
    assert line["full_squared_norm"] == pytest.approx(full, rel=1e-4)
    assert line["gradient_variance"] == pytest.approx(
        line["mean_squared_norm"] - line["full_squared_norm"], rel=1e-6
    )
    assert line["mean_squared_norm"] > full
    assert metrics_of(folder)[-1]["full_squared_norm"] == pytest.approx(full, rel=1e-4)


def test_norms_are_those_of_the_batches_one_by_one(measured):
    run, folder = measured
    run = replace(run, training=replace(run.training, epochs=10, measure="norms"))
    net = load_run(folder).model
    samples = samples_of(run, None)
    meter = Meter(run, samples.train, samples.data_set, torch.device("cpu"))
    kept = {epoch for epoch in range(1, 11) if "norms" in meter.after(epoch, net)}
    assert kept == {3, 6, 9}
    norms = meter.after(3, net)["norms"]
    assert len(norms) == BATCHES["norms"]
    first = next(iter(meter._batches.epoch(0)))
    assert norms[0] == pytest.approx(gradient(net, *first).square().sum().item(), rel=1e-4)
    assert len(set(norms)) > 300  # passes are shuffled anew


def test_recording_changes_nothing_of_the_training(measured, tmp_path):
    _, folder = measured
    trainer.train(small_run(epochs=1), tmp_path)
    (plain,), (recorded,) = metrics_of(tmp_path), metrics_of(folder)
    assert recorded.items() >= plain.items()
    assert recorded.keys() - plain.keys() == {
        "mean_squared_norm", "full_squared_norm", "gradient_variance",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["gradients", "norms"])
def test_a_run_gone_on_with_records_the_same(kind, tmp_path):
    run = small_run(epochs=3, measure=kind)
    trainer.train(run, tmp_path / "whole")
    for step in (3, 8):
        with pytest.raises(Stopped):
            trainer.train(run, tmp_path / "cut", resume=True, reporter=StopsAt(step))
    trainer.train(run, tmp_path / "cut", resume=True)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "cut")
