"""What a pass writes without gradient is written once: frozen statistics and metrics."""

import copy
import os
import subprocess
import sys

import pytest
import torch
import torchmetrics
from support.copies import Copies
from support.problems import Problem, mlp, same
from torch import nn
from torchmetrics.wrappers import MinMaxMetric, Running

import aesam
from aesam._core.bystanders import Attributes


def frozen(*shape):
    return nn.Parameter(torch.zeros(*shape, dtype=torch.float64), requires_grad=False)


WAYS = ["in place", "through data, a new tensor", "through data, in place", "a new parameter"]


class Centred(nn.Module):
    """Keeps a moving average of its input in a frozen parameter, written in one of four ways."""

    def __init__(self, size, way):
        super().__init__()
        self.mean, self.way = frozen(size), way
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x):
        seen = x.detach().mean().expand_as(self.mean)
        now = 0.9 * self.mean.detach() + 0.1 * seen
        if self.way == "in place":
            with torch.no_grad():
                self.mean.copy_(now)
        elif self.way == "through data, a new tensor":
            self.mean.data = now
        elif self.way == "through data, in place":
            self.mean.data.copy_(now)
        else:
            self.mean = nn.Parameter(now, requires_grad=False)
        return self.layer(x)


SMALL, LARGE = 5, 300 * 300  # either side of what is looked at whole


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def optimizer(model, kind=aesam.SAM, **options):
    return kind(torch.optim.SGD(trainable(model), lr=0.0), model, **options)


FORMS = ["closure", "own passes", "own passes without first_pass", "a bare step"]


def step_in(form, problem, opt, t):
    if form == "closure":
        problem.step(opt, t)
    elif form == "a bare step":
        problem.losses(t).mean().backward()
        opt.step()
        opt.zero_grad()
    else:
        problem.own_passes(opt, t, first_pass=form == "own passes")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("way", WAYS)
def test_statistics_in_a_frozen_parameter_count_each_batch_once(way, size, form):
    model = Centred(size, way)
    problem, single = Problem(model), copy.deepcopy(model)
    opt = optimizer(model, aesam.LookSAM, k=2, replay=form == "a bare step")
    for t in range(5):
        step_in(form, problem, opt, t)
        single(problem.x[t])
        assert torch.equal(model.mean, single.mean)
    assert single.mean.abs().sum() > 0.0
    assert opt.sam_fraction == 0.6


def test_a_momentum_encoder_inside_the_model_moves_once_a_step():
    """MoCo's: the keys' weights follow the queries' in each training forward."""

    class Contrast(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = mlp(0), mlp(1).requires_grad_(False)

        def forward(self, x):
            for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
                k.data = k.data * 0.9 + q.data * 0.1
            return self.query(x) - self.key(x)

    model = Contrast()
    problem, single = Problem(model), copy.deepcopy(model)
    opt = optimizer(model, rho=0.5)
    for t in range(4):
        problem.step(opt, t)
        single(problem.x[t])
    assert same(list(model.key.parameters()), list(single.key.parameters()))


class LowRank(nn.Module):
    """A large frozen matrix and a small trained correction, as LoRA has it."""

    def __init__(self, width=512):
        super().__init__()
        self.wide = nn.Linear(3, width).double().requires_grad_(False)
        self.frozen = nn.Linear(width, width).double().requires_grad_(False)
        self.down = nn.Linear(width, 2).double()
        self.up = nn.Linear(2, width).double()
        self.head = nn.Linear(width, 2).double().requires_grad_(False)

    def forward(self, x):
        x = self.wide(x)
        return self.head(self.frozen(x) + self.up(self.down(x)))


@pytest.mark.parametrize("load", ["before", "after the optimizer is made", "after a resume"])
def test_large_frozen_weights_are_neither_copied_nor_written(load):
    model = LowRank()
    if load == "before":
        model.load_state_dict(LowRank().state_dict())
    problem, opt = Problem(model), optimizer(model)
    if load == "after a resume":
        problem.train(opt, 1)
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    if load != "before":
        model.load_state_dict(LowRank().state_dict())
    held = model.frozen.weight
    before = held._version
    with Copies() as made:
        problem.train(opt, 3)
    assert held.numel() not in made.sizes
    assert model.down.weight.numel() in made.sizes  # what is trained is
    assert held is model.frozen.weight
    assert held._version == before


class Late(nn.Module):
    """Writes in every second forward only, and so in second passes only."""

    def __init__(self, size):
        super().__init__()
        self.seen, self.calls = frozen(size), 0
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x):
        self.calls += 1
        if self.calls % 2 == 0:
            with torch.no_grad():
                self.seen.add_(1.0)
        return self.layer(x)


def test_what_only_the_second_pass_writes_is_refused_once_and_then_guarded():
    model = Late(SMALL)
    problem, opt = Problem(model), optimizer(model)
    before = copy.deepcopy(model.layer.state_dict())
    with pytest.raises(RuntimeError, match=r"is lost: seen\. Register"):
        problem.step(opt, 0)
    assert all(torch.equal(before[k], v) for k, v in model.layer.state_dict().items())
    assert opt.skipped_steps == 1
    lost = model.seen.clone()
    problem.train(opt, 3)
    assert torch.equal(model.seen, lost)


def test_copies_of_the_optimizer_learn_anew():
    model = Centred(LARGE, "in place")
    problem, opt = Problem(model), optimizer(model)
    problem.train(opt, 2)
    other, another = copy.deepcopy((model, opt))
    single, again = copy.deepcopy(model), Problem(other)
    for t in range(3):
        again.step(another, t)
        single(again.x[t])
    assert torch.equal(other.mean, single.mean)


# Metrics ---------------------------------------------------------------------------------------


def some_metrics():
    classes = {"task": "multiclass", "num_classes": 2}
    return nn.ModuleDict(
        {
            "accuracy": torchmetrics.Accuracy(**classes),
            "mean": torchmetrics.MeanMetric(),
            "all": torchmetrics.CatMetric(),
            "several": torchmetrics.MetricCollection(
                [
                    torchmetrics.Precision(**classes, average="macro"),
                    torchmetrics.Recall(**classes, average="macro"),
                    torchmetrics.MeanSquaredError(),
                ]
            ),
            "extreme": MinMaxMetric(torchmetrics.MeanMetric()),
            "recent": Running(torchmetrics.SumMetric(), window=3),
        }
    )


class Measured(nn.Module):
    """Counts its own answers, by `update` and by `forward`, into lists and totals."""

    def __init__(self):
        super().__init__()
        self.net, self.metrics = mlp(), some_metrics()

    def forward(self, x):
        out = self.net(x)
        answer, truth = out.detach().argmax(1), (x[:, 0] > 0).long()
        self.metrics["accuracy"](answer, truth)
        self.metrics["mean"].update(out.detach())
        self.metrics["all"].update(out.detach().sum(1))
        self.metrics["several"](answer, truth)
        self.metrics["extreme"](out.detach().mean())
        self.metrics["recent"](out.detach().sum())
        return out


def readings(model):
    """All that each metric holds, and what it makes of it."""
    each = [m for m in model.modules() if isinstance(m, torchmetrics.Metric)]
    states = [copy.deepcopy((m.metric_state, m._update_count)) for m in each]
    return states, {name: m.compute() for name, m in model.metrics.items()}


@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
@pytest.mark.parametrize("form", FORMS)
def test_metrics_in_the_model_count_each_batch_once(form):
    model = Measured()
    problem, single = Problem(model), copy.deepcopy(model)
    opt = optimizer(model, aesam.LookSAM, k=2, replay=form == "a bare step")
    for t in range(5):
        step_in(form, problem, opt, t)
        single(problem.x[t])
        torch.testing.assert_close(readings(model), readings(single), rtol=0, atol=0)
    assert single.metrics["mean"]._update_count == 5
    assert len(model.metrics["all"].value) == 5


def test_a_second_pass_that_fails_leaves_metrics_and_statistics_as_after_the_first():
    model = nn.Sequential(Measured(), nn.Linear(2, 3).double(), Centred(LARGE, "in place"))
    single, x = copy.deepcopy(model), Problem(mlp()).x
    opt = optimizer(model)

    def closure():
        opt.zero_grad()
        loss = model(x[0]).square().sum()
        loss.backward()
        if opt._ledger.pending is not None:
            raise KeyboardInterrupt
        return loss

    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    single(x[0])
    assert torch.equal(model[2].mean, single[2].mean)
    assert model[0].metrics["mean"].compute() == single[0].metrics["mean"].compute()


# Keras -----------------------------------------------------------------------------------------

KERAS = """
import keras, torch, aesam
keras.utils.set_random_seed(0)
keras.config.set_floatx("float64")
layers = keras.layers
model = keras.Sequential(
    [layers.Input((3,)), layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3),
     layers.Dense(2)]
)
single = keras.models.clone_model(model)
single.set_weights(model.get_weights())
trained = [p for p in model.parameters() if p.requires_grad]
opt = aesam.SAM(torch.optim.SGD(trained, lr=0.0), model, rho=0.5)
batches = torch.randn(5, 8, 3, dtype=torch.float64)
masks = []
model.layers[2].register_forward_hook(lambda layer, inputs, out: masks.append(out == 0.0))
for x in batches:
    def closure():
        opt.zero_grad()
        loss = model(x, training=True).square().mean()
        loss.backward()
        return loss
    opt.step(closure)
    single(x, training=True)
frozen = [[p for p in m.parameters() if not p.requires_grad] for m in (model, single)]
ours, theirs = ([p for p in ps if p.is_floating_point()] for ps in frozen)
assert len(ours) == 2 and all(map(torch.equal, ours, theirs))
assert single.layers[1].moving_mean.value.abs().sum() > 0.0
assert all(map(torch.equal, masks[::2], masks[1::2]))
assert opt.sam_fraction == 1.0
print("once")
"""


@pytest.mark.slow
def test_batchnorm_of_keras_counts_each_batch_once(tmp_path, matrix):
    environment = {**os.environ, "KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", KERAS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "once\n", done.stdout + done.stderr
    matrix.right("Keras 3 (torch)", "BatchNormalization, Dropout", within=0.0)


def test_an_attribute_that_a_pass_adds_is_gone_after_it():
    thing = torchmetrics.MeanMetric()
    before = Attributes(thing)
    names = set(vars(thing))
    thing.gained, thing.mean_value = 1, 5
    before.restore()
    assert set(vars(thing)) == names
