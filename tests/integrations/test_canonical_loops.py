"""The loops of Accelerate's and Fabric's own documentation, with a bare ``step()``: replay=True."""

import lightning as L
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.plain_loops import PlainLoop, largest_difference, loss_of, micro_batches, new_optimizer
from support.problems import Problem, mlp, same, stochastic_net, weights
from support.processes import in_processes
from torch import nn

import aesam

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
]
STEPS = 12


class WithLoss(nn.Module):
    """A net that returns its loss, as Transformers' do: there replaying is the same step."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return loss_of(self.net, (x, y))


def forget_accelerate():
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.fixture(autouse=True)
def _alone():
    forget_accelerate()
    yield
    forget_accelerate()


def plain(method, pieces, net=stochastic_net, max_norm=None, scaler=None):
    """The plain loop over ``pieces`` micro-batches of two rows a step."""
    loop = PlainLoop(method, net(), max_norm, scaler)
    problem = Problem(loop.model)
    torch.manual_seed(3)
    for t in range(STEPS):
        loop.step(micro_batches(problem, t, [8 // pieces] * pieces))
    return loop


def rows(pieces, first=0, last=8):
    """The same micro-batches, one after the other; a DataLoader would draw a random number."""
    problem = Problem(mlp())
    x, y = (b[:STEPS, first:last].flatten(0, 1) for b in (problem.x, problem.y))
    size = (last - first) // pieces
    return list(zip(x.split(size), y.split(size), strict=True))


def accelerate_s_loop(accelerator, model, opt, scheduler, loader, clip=None):
    torch.manual_seed(3)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = model(x, y)
            accelerator.backward(loss)
            if clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            scheduler.step()
            opt.zero_grad()


def in_accelerate(method, pieces, net=stochastic_net, scaler=None, **options):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=pieces)
    accelerator.scaler = scaler
    model = WithLoss(net())
    opt = new_optimizer(method, model, replay=True, **options)
    scheduler = torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0)
    return accelerator, *accelerator.prepare(model, opt, scheduler)


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("method", ["sam", "ae-sam", "ae-looksam"])
def test_accelerate_s_loop_with_a_bare_step_is_the_plain_loop(method, pieces, matrix):
    expected = plain(method, pieces)
    accelerator, model, opt, scheduler = in_accelerate(method, pieces)
    accelerate_s_loop(accelerator, model, opt, scheduler, rows(pieces))
    assert aesam.unwrap(opt).last_step.index == STEPS - 1
    assert aesam.unwrap(opt).sam_fraction == expected.opt.sam_fraction > 0
    assert largest_difference(model.net, expected.model) < 1e-12
    use = "its own loop, replay=True" + (", accumulate() over 4" if pieces == 4 else "")
    matrix.right("Accelerate", use, within=1e-12)


def test_accelerate_s_loop_with_max_norm_is_the_plain_loop(matrix):
    expected = plain("ae-looksam", 4, max_norm=0.3)
    accelerator, model, opt, scheduler = in_accelerate("ae-looksam", 4, max_norm=0.3)
    accelerate_s_loop(accelerator, model, opt, scheduler, rows(4))
    assert largest_difference(model.net, expected.model) < 1e-12
    matrix.right("Accelerate", "its own loop, replay=True, max_norm=…", within=1e-12)


def test_accelerate_s_own_clipping_is_refused_with_what_to_do(matrix):
    accelerator, model, opt, scheduler = in_accelerate("ae-sam", 1)
    before = weights(model)
    with pytest.raises(RuntimeError, match="(?s)gradients were changed.*max_norm=") as told:
        accelerate_s_loop(accelerator, model, opt, scheduler, rows(1), clip=0.3)
    assert same(before, weights(model))
    matrix.refused("Accelerate", "its own loop with clip_grad_norm_", told.value)


def test_accelerate_s_loop_under_a_scaler_is_the_plain_loop_with_one(matrix):
    def scaler():
        return torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=5)

    expected = plain("ae-looksam", 4, mlp, scaler=scaler())
    accelerator, model, opt, scheduler = in_accelerate("ae-looksam", 4, mlp, scaler())
    assert opt.scaler is accelerator.scaler
    accelerate_s_loop(accelerator, model, opt, scheduler, rows(4))
    assert accelerator.scaler.get_scale() == 2.0**14
    assert largest_difference(model.net, expected.model) < 1e-12
    matrix.right("Accelerate", "its own loop, replay=True, GradScaler on the CPU", within=1e-12)


def test_an_overflow_in_accelerate_s_loop_is_told_to_accelerate():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    accelerator, model, opt, _ = in_accelerate("sam", 1, mlp, scaler)
    before = weights(model)
    problem = Problem(model)
    accelerator.backward(model(problem.x[0], problem.y[0] * float("inf")))
    opt.step()
    assert accelerator.optimizer_step_was_skipped
    assert same(before, weights(model))


def test_a_closure_inside_accumulate_is_refused_with_what_to_do(matrix):
    accelerator, model, opt, _ = in_accelerate("sam", 4)
    before = weights(model)

    def train():
        for x, y in rows(4):
            with accelerator.accumulate(model):

                def closure(x=x, y=y):
                    opt.zero_grad()
                    loss = model(x, y)
                    accelerator.backward(loss)
                    return loss

                opt.step(closure)

    with pytest.raises(RuntimeError, match=r"aesam.integrations.accelerate.step") as told:
        train()
    assert same(before, weights(model))
    matrix.refused("Accelerate", "a closure inside accumulate()", told.value)


# Fabric -----------------------------------------------------------------------------------------


def fabric_s_loop(fabric, model, opt, loader, pieces, clip=None):
    torch.manual_seed(3)
    for i, (x, y) in enumerate(loader, start=1):
        accumulating = i % pieces != 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            loss = model(x, y)
            fabric.backward(loss / pieces)
        if not accumulating:
            if clip is not None:
                fabric.clip_gradients(model, opt, max_norm=clip)
            opt.step()
            opt.zero_grad()


def in_fabric(method, given="before", net=stochastic_net, **options):
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model = WithLoss(net())
    if given == "before":
        return fabric, *fabric.setup(model, new_optimizer(method, model, replay=True, **options))
    model = fabric.setup_module(model)
    opt = new_optimizer(method, model, replay=True, **options)
    return fabric, model, fabric.setup_optimizers(opt)


@pytest.mark.parametrize("given", ["before", "after"])
@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("method", ["sam", "ae-looksam"])
def test_fabric_s_loop_with_a_bare_step_is_the_plain_loop(method, pieces, given, matrix):
    """The optimizer may be made with the model before it is set up, or after."""
    expected = plain(method, pieces)
    fabric, model, opt = in_fabric(method, given)
    fabric_s_loop(fabric, model, opt, rows(pieces), pieces)
    assert opt.last_step.index == STEPS - 1
    assert opt.sam_fraction == expected.opt.sam_fraction > 0
    assert largest_difference(model.net, expected.model) < 1e-12
    use = "its own loop, replay=True" + (", accumulation over 4" if pieces == 4 else "")
    matrix.right("Fabric", use, within=1e-12)


def test_fabric_s_loop_with_max_norm_is_the_plain_loop(matrix):
    expected = plain("ae-looksam", 4, max_norm=0.3)
    fabric, model, opt = in_fabric("ae-looksam", max_norm=0.3)
    fabric_s_loop(fabric, model, opt, rows(4), 4)
    assert largest_difference(model.net, expected.model) < 1e-12
    matrix.right("Fabric", "its own loop, replay=True, max_norm=…", within=1e-12)


def test_fabric_s_own_clipping_is_refused_with_what_to_do(matrix):
    fabric, model, opt = in_fabric("ae-sam")
    before = weights(model)
    with pytest.raises(RuntimeError, match="(?s)gradients were changed.*max_norm=") as told:
        fabric_s_loop(fabric, model, opt, rows(1), 1, clip=0.3)
    assert same(before, weights(model))
    matrix.refused("Fabric", "its own loop with clip_gradients", told.value)


# Two processes ----------------------------------------------------------------------------------


def train_rank(rank, stack):
    ours = rows(2, first=4 * rank, last=4 * rank + 4)
    if stack == "Accelerate":
        accelerator, model, opt, scheduler = in_accelerate("ae-looksam", 2, mlp)
        accelerate_s_loop(accelerator, model, opt, scheduler, ours)
    else:
        fabric = L.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        net = WithLoss(mlp())
        model, opt = fabric.setup(net, new_optimizer("ae-looksam", net, replay=True))
        fabric_s_loop(fabric, model, opt, ours, 2)
    assert any(isinstance(m, nn.parallel.DistributedDataParallel) for m in model.modules())
    return [w.numpy() for w in weights(model)], aesam.unwrap(opt).sam_fraction


@pytest.mark.parametrize("stack", ["Accelerate", "Fabric"])
def test_the_own_loop_of_two_processes_equals_one_on_the_whole_batch(stack, matrix):
    expected = plain("ae-looksam", 1, mlp)
    for ends, share in in_processes(train_rank, stack):
        assert share == expected.opt.sam_fraction > 0
        for left, right in zip(ends, weights(expected.model), strict=True):
            torch.testing.assert_close(torch.from_numpy(left), right, rtol=0, atol=1e-10)
    matrix.right(stack, "DDP × 2: its own loop, replay=True, accumulation over 2", within=1e-10)
