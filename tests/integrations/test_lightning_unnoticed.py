"""Lightning does not notice the second pass: logs, metrics and hooks are of the first alone."""

import csv
from pathlib import Path

import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from support.lightning_problems import BATCHES, Lit, fit, plain_loop
from support.problems import BASES, METHODS, Problem, mlp

from aesam._core.unnoticed import HOOKS
from aesam.integrations.lightning import SharpnessAwareCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]
WITH_OR_WITHOUT = pytest.mark.parametrize("callback", [True, False], ids=["with", "without"])


class Counting(Lit):
    """Everything that a training step may count with."""

    def __init__(self, **settings):
        super().__init__("sam", **settings)
        self.seen, self.average, self.outputs, self.by_name = 0, torch.zeros(()), [], {"a": 0}
        self.total = torchmetrics.SumMetric()
        self.all = torchmetrics.CatMetric()
        self.loose = [torchmetrics.SumMetric()]
        self.nested = {"train": [], "deep": {"sum": torchmetrics.SumMetric()}}
        own = [torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()]
        self.several = torchmetrics.MetricCollection(own)
        self.register_buffer("counted", torch.zeros(()))
        self.record = self.log  # a bound method, as it may be handed to a part of the model

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.seen += 1
        self.counted += 1
        self.average.mul_(0.9).add_(0.1 * loss.detach())
        self.outputs.append(loss.detach())
        self.by_name["a"] += 1
        self.latest = loss.detach()
        one = torch.ones(())
        self.total(one)
        self.all.update(one)
        self.loose[0].update(one)
        self.nested["train"].append(index)
        self.nested["deep"]["sum"].update(one)
        self.several(self.net(batch[0]).detach(), batch[1])
        self.log("by_step", loss, on_step=True, on_epoch=False)
        self.log_dict({"both": loss, "count": one}, on_step=True, on_epoch=True, reduce_fx="sum")
        self.record("mean", loss, on_epoch=True, on_step=False)
        self.log("metric", self.total, on_epoch=True, on_step=False)
        if self.logger is not None:
            self.logger.log_metrics({"own": 1.0}, step=index)
        return loss


@WITH_OR_WITHOUT
def test_logs_metrics_and_attributes_count_each_batch_once(callback):
    sam, erm = Counting(rho=0.3), Counting(rho=0.3)
    erm.method = "erm"
    erm.settings = {}
    trainers = [fit(lit, callback=callback) for lit in (sam, erm)]
    assert sam.opt.sam_fraction == 1.0
    assert sam.seen == sam.counted == sam.by_name["a"] == len(sam.outputs) == BATCHES
    assert sam.several["MeanSquaredError"].update_count == BATCHES
    assert sam.loose[0].compute() == BATCHES == len(sam.all.compute())
    assert len(sam.nested["train"]) == BATCHES == sam.nested["deep"]["sum"].compute()
    assert sam.several["MeanAbsoluteError"].total == erm.several["MeanAbsoluteError"].total
    found = trainers[0].callback_metrics
    assert found["count_epoch"] == found["metric"] == BATCHES
    losses = torch.stack(sam.outputs)
    assert found["both_epoch"].item() == pytest.approx(losses.sum().item())
    assert found["mean"].item() == pytest.approx(losses.mean().item())
    assert found["by_step"].item() == found["both_step"].item() == losses[-1].item()
    assert sam.latest.equal(sam.outputs[-1])
    average = torch.zeros((), dtype=torch.float32)
    for loss in sam.outputs:
        average.mul_(0.9).add_(0.1 * loss)
    assert sam.average == average


@WITH_OR_WITHOUT
def test_loggers_are_told_each_batch_once(callback, tmp_path):
    lit, logger = Counting(), CSVLogger(tmp_path)
    told, log_metrics = [], logger.log_metrics
    logger.log_metrics = lambda metrics, step=None: (
        told.append(metrics) or log_metrics(metrics, step)
    )
    fit(lit, callback=callback, logger=logger, log_every_n_steps=1)
    assert sum("own" in metrics for metrics in told) == BATCHES
    assert sum("by_step" in metrics for metrics in told) == BATCHES
    assert lit.logger is logger


@WITH_OR_WITHOUT
def test_experiments_of_loggers_can_be_used_in_a_training_step(callback, tmp_path):
    class Draws(Lit):
        def training_step(self, batch, index):
            loss = self.loss(batch)
            self.logger.experiment.add_scalar("own", loss, index)
            return loss

    lit = Draws("sam")
    logger = TensorBoardLogger(tmp_path)
    added, add = [], logger.experiment.add_scalar
    logger.experiment.add_scalar = lambda name, *rest: added.append(name) or add(name, *rest)
    fit(lit, callback=callback, logger=logger)
    assert added.count("own") == BATCHES


class Called(Callback):
    """Counts the hooks that it is called with."""

    def __init__(self):
        self.calls = dict.fromkeys(HOOKS, 0)


class CalledModule(Lit):
    def __init__(self, method):
        super().__init__(method)
        self.calls = dict.fromkeys(HOOKS, 0)


def counting(name):
    def hook(self, *_):
        calls = getattr(self, "calls")  # noqa: B009
        calls[name] += 1

    return hook


for name in HOOKS:
    setattr(Called, name, counting(name))
    setattr(CalledModule, name, counting(name))


@pytest.mark.parametrize("together", [1, 4])
def test_hooks_are_called_as_often_as_with_any_optimizer(together):
    called, calls = {}, {}
    for method in ("sam", "erm"):
        lit, called[method] = CalledModule(method), Called()
        fit(lit, accumulate_grad_batches=together, callbacks=[called[method]])
        calls[method] = lit.calls
        assert not set(HOOKS) & vars(called[method]).keys()
    steps = -(-BATCHES // together)
    by_batch, by_step = ("on_before_backward", "on_after_backward"), HOOKS[::3]
    expected = dict.fromkeys(by_batch, BATCHES) | dict.fromkeys(by_step, steps)
    assert called["sam"].calls == called["erm"].calls == expected
    assert calls["sam"] == calls["erm"] == expected


def test_hooks_are_called_once_without_the_callback_too():
    lit, called = CalledModule("sam"), Called()
    fit(lit, callback=False, callbacks=[called])
    assert set(called.calls.values()) == set(lit.calls.values()) == {BATCHES}


@pytest.mark.parametrize("where", ["a callback before ours", "the module"])
def test_what_a_hook_does_to_the_gradients_is_done_to_the_direction(where):
    def freeze_first_layer(net):
        net[0].weight.grad.zero_()

    class Freezes(Callback):
        def on_after_backward(self, trainer, pl_module):
            freeze_first_layer(pl_module.net)

    class FreezesItself(Lit):
        def on_after_backward(self):
            freeze_first_layer(self.net)

    lit = FreezesItself("sam") if where == "the module" else Lit("sam")
    fit(lit, callbacks=[] if where == "the module" else [Freezes()])
    model = mlp()
    opt = METHODS["sam"](BASES["sgd"](model.parameters()), model)
    opt.register_step_pre_hook(lambda *_: freeze_first_layer(model))
    Problem(model).train(opt, BATCHES)
    for left, right in zip(lit.net.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_the_policy_s_numbers_are_logged_at_every_step(tmp_path):
    lit, logger = Lit("ae-sam"), CSVLogger(tmp_path)
    fit(lit, logger=logger, log_every_n_steps=1, accumulate_grad_batches=4)
    with Path(logger.experiment.metrics_file_path).open() as file:
        rows = [row for row in csv.DictReader(file) if row["aesam/percent_sam"]]
    _, opt = plain_loop("ae-sam", together=4)
    last = opt.last_step
    assert len(rows) == last.index + 1
    names = ("squared_norm", "mean", "threshold")
    found = [float(rows[-1][f"aesam/{name}"]) for name in names]
    assert found == pytest.approx([getattr(last, name) for name in names], rel=1e-6)
    assert float(rows[-1]["aesam/percent_sam"]) == pytest.approx(100 * opt.sam_fraction)


def test_logging_can_be_left_out():
    trainer = fit(Lit("sam"), callback=False, callbacks=[SharpnessAwareCallback(log=False)])
    assert not trainer.callback_metrics


def test_a_large_tensor_that_is_written_in_place_is_refused():
    class Queue(Lit):
        def training_step(self, batch, _):
            self.queue.add_(1.0)
            return self.loss(batch)

    lit = Queue("sam")
    lit.queue = torch.zeros(1 << 21)
    with pytest.raises(RuntimeError, match=r"in place to self\.queue.*register_buffer"):
        fit(lit)
    lit = Queue("sam")
    lit.register_buffer("queue", torch.zeros(1 << 21))
    fit(lit, limit_train_batches=3)
    assert lit.queue[0] == 3.0
