"""Fabric: its scaler, its checkpoints, bf16, and what is refused."""

import lightning as L
import pytest
import torch
from lightning.fabric.plugins import MixedPrecision
from lightning.fabric.strategies import DDPStrategy, FSDPStrategy
from support.plain_loops import PlainLoop, largest_difference, loss_of, micro_batches, new_optimizer
from support.problems import Problem, mlp, same, stochastic_net, weights

import aesam
from aesam.integrations import fabric as helper

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
]
STEPS = 20
SIZES = (4, 2, 2)


class Autocast(torch.nn.Module):
    """What Fabric makes of a forward under mixed precision: inputs cast, outputs in float32."""

    def __init__(self, dtype):
        super().__init__()
        self.net, self.dtype = mlp().float(), dtype

    def forward(self, x):
        with torch.autocast("cpu", self.dtype):
            return self.net(x.to(self.dtype)).float()


def new(method, net, **options):
    fabric = L.Fabric(accelerator="cpu", devices=1, **options)
    fabric.launch()
    model, opt = fabric.setup(net, new_optimizer(method, net))
    return fabric, opt, lambda batch: loss_of(model, batch)


def train(fabric, opt, loss_fn, steps, start=0, data=None, **options):
    problem = Problem(mlp() if data is None else data)
    for t in range(start, start + steps):
        helper.step(fabric, opt, micro_batches(problem, t, SIZES), loss_fn, **options)


def plain(method, net, max_norm=None, scaler=None):
    loop, problem = PlainLoop(method, net, max_norm, scaler), Problem(net)
    for t in range(STEPS):
        loop.step(micro_batches(problem, t, SIZES))
    return loop


def test_bf16_mixed_is_autocast_around_the_model(matrix):
    expected = plain("ae-sam", Autocast(torch.bfloat16))
    net = mlp().float()
    fabric, opt, loss_fn = new("ae-sam", net, precision="bf16-mixed")
    train(fabric, opt, loss_fn, STEPS, data=net)
    assert 0 < expected.opt.sam_fraction < 1
    assert largest_difference(net, expected.model.net) == 0.0
    matrix.right("Fabric", 'step(…) with precision="bf16-mixed"', within=0.0)


def scaled(scale=2.0**8, **options):
    """On a CPU Fabric makes bf16 of 16-mixed by itself; as a plugin it stays what it is."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, **options)
    return MixedPrecision("16-mixed", "cpu", scaler)


@pytest.mark.parametrize("max_norm", [None, 0.3])
@pytest.mark.parametrize("method", ["sam", "ae-looksam"])
def test_a_16_mixed_plugin_with_a_scaler_is_the_plain_loop_with_one(method, max_norm, matrix):
    expected = plain(method, Autocast(torch.float16), max_norm, scaled().scaler)
    net = mlp().float()
    plugin = scaled()
    fabric, opt, loss_fn = new(method, net, plugins=plugin)
    train(fabric, opt, loss_fn, STEPS, data=net, max_norm=max_norm)
    assert fabric.strategy.precision.scaler is plugin.scaler
    assert plugin.scaler.get_scale() == 2.0**8
    assert opt.last_step.index == STEPS - 1
    assert opt.sam_fraction == expected.opt.sam_fraction > 0
    assert largest_difference(net, expected.model.net) < 1e-6
    matrix.right("Fabric", "step(…) under a 16-mixed plugin with a GradScaler, on the CPU", 1e-6)


@pytest.mark.parametrize("broken_pass", [1, 2])
@pytest.mark.parametrize("inside", [False, True])
def test_an_overflow_in_either_pass_skips_the_step(broken_pass, inside, matrix):
    net = mlp().float()
    plugin = scaled()
    fabric, opt, loss_fn = new("sam", net, plugins=plugin)
    given = aesam.unwrap(opt) if inside else opt
    before, calls = weights(net), []

    def overflowing(batch):
        calls.append(batch)
        return loss_fn(batch) * (float("inf") if len(calls) == 3 * broken_pass else 1.0)

    train(fabric, given, overflowing, 1, data=net)
    assert same(before, weights(net))
    assert (opt.skipped_steps, opt.last_step) == (1, None)
    assert plugin.scaler.get_scale() == 2.0**7
    train(fabric, given, loss_fn, 1, data=net)
    assert opt.last_step.index == 0
    matrix.right("Fabric", "step(…): an overflow skips the step", within=0.0)


@pytest.mark.parametrize("method", ["ss-sam", "ae-looksam"])
def test_save_and_load_go_on_to_the_bit(method, tmp_path, matrix):
    def parts():
        net = stochastic_net()
        return net, *new(method, net)

    torch.manual_seed(1)
    net, fabric, opt, loss_fn = parts()
    train(fabric, opt, loss_fn, 11)
    fabric.save(tmp_path / "kept", {"model": net, "opt": opt, "random": torch.get_rng_state()})
    train(fabric, opt, loss_fn, 9, start=11)
    again, fabric, reopened, loss_fn = parts()
    rest = fabric.load(tmp_path / "kept", {"model": again, "opt": reopened}, strict=False)
    torch.set_rng_state(rest["random"])
    train(fabric, reopened, loss_fn, 9, start=11)
    assert largest_difference(net, again) == 0.0
    assert opt.last_step == reopened.last_step
    assert opt.sam_fraction == reopened.sam_fraction > 0
    matrix.right("Fabric", "save and load", within=0.0)


def test_strategies_that_hide_gradients_are_refused():
    with pytest.raises(RuntimeError, match="FSDPStrategy keeps gradients.*DDP or FSDP2"):
        helper._refuse_what_cannot_be_measured(FSDPStrategy())
    helper._refuse_what_cannot_be_measured(DDPStrategy())


@pytest.mark.parametrize("method", ["sam", "ae-looksam"])
def test_fabric_s_own_loop_with_a_closure_is_the_plain_loop(method, matrix):
    net = mlp()
    expected, problem = PlainLoop(method, mlp()), Problem(net)
    fabric = L.Fabric(accelerator="cpu", devices=1)
    model, opt = fabric.setup(net, new_optimizer(method, net))
    for t in range(STEPS):
        (batch,) = micro_batches(problem, t, [8])
        expected.step([batch])

        def closure(batch=batch):
            opt.zero_grad()
            loss = loss_of(model, batch)
            fabric.backward(loss)
            return loss

        assert opt.step(closure).item() == pytest.approx(expected.losses[-1], abs=1e-12)
    assert largest_difference(net, expected.model) < 1e-12
    matrix.right("Fabric", "optimizer.step(closure)", within=1e-12)
