"""The loops of Accelerate's and Fabric's own documentation, with a bare ``step()``: replay=True."""

import lightning as L
import pytest
import torch
from support.in_stacks import (
    STEPS,
    WithLoss,
    accelerate_s_loop,
    fabric_s_loop,
    forget_accelerate,
    in_accelerate,
    rows,
)
from support.plain_loops import PlainLoop, largest_difference, micro_batches, new_optimizer
from support.problems import Problem, mlp, same, stochastic_net, weights

import aesam

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
]


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
