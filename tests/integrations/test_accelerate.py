"""Accelerate: its scaler, its checkpoints, its own accumulation, and what is refused."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from support.in_stacks import forget_accelerate
from support.plain_loops import PlainLoop, largest_difference, loss_of, micro_batches, new_optimizer
from support.problems import Problem, mlp, same, stochastic_net, weights

import aesam
from aesam.integrations import accelerate

pytestmark = pytest.mark.slow
STEPS = 20
SIZES = (4, 2, 2)


@pytest.fixture(autouse=True)
def _alone():
    forget_accelerate()
    yield
    forget_accelerate()


def scaled(scale=2.0**12, **options):
    """Accelerate makes its scaler on GPUs only; given one, it uses it as its own."""
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, **options)
    return accelerator


def prepared(accelerator, method, net, **options):
    model, opt = accelerator.prepare(net, new_optimizer(method, net, **options))
    return model, opt, lambda batch: loss_of(model, batch)


def train(accelerator, opt, loss_fn, steps, start=0, **options):
    problem = Problem(mlp())
    for t in range(start, start + steps):
        batches = micro_batches(problem, t, SIZES)
        accelerate.step(accelerator, opt, batches, loss_fn, weights=SIZES, **options)


def plain(method, net, max_norm=None, steps=STEPS):
    loop, problem = PlainLoop(method, net, max_norm), Problem(mlp())
    for t in range(steps):
        loop.step(micro_batches(problem, t, SIZES), SIZES)
    return loop


# The scaler -------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_norm", [None, 0.3])
@pytest.mark.parametrize("method", ["sam", "ae-sam", "ae-looksam"])
def test_a_scaler_changes_nothing(method, max_norm, matrix):
    expected = plain(method, mlp(), max_norm)
    accelerator = scaled()
    net = mlp()
    _, opt, loss_fn = prepared(accelerator, method, net)
    assert opt.scaler is accelerator.scaler
    train(accelerator, opt, loss_fn, STEPS, max_norm=max_norm)
    assert accelerator.scaler.get_scale() == 2.0**12
    assert aesam.unwrap(opt).sam_fraction == expected.opt.sam_fraction > 0
    assert largest_difference(net, expected.model) < 1e-12
    matrix.right("Accelerate", "step(…) under a GradScaler, explicit, on the CPU", within=1e-12)


@pytest.mark.parametrize("broken_pass", [1, 2])
@pytest.mark.parametrize("max_norm", [None, 0.3])
def test_an_overflow_in_either_pass_is_a_skipped_step_to_accelerate_and_to_us(
    broken_pass, max_norm, matrix
):
    accelerator = scaled()
    net = mlp()
    model, opt, loss_fn = prepared(accelerator, "sam", net)
    ours = aesam.unwrap(opt)
    train(accelerator, opt, loss_fn, 1)
    assert not accelerator.optimizer_step_was_skipped
    before, calls = weights(net), []

    def overflowing(batch):
        calls.append(batch)
        return loss_fn(batch) * (float("inf") if len(calls) == 3 * broken_pass else 1.0)

    train(accelerator, opt, overflowing, 1, max_norm=max_norm)
    assert accelerator.optimizer_step_was_skipped
    assert ours.skipped_steps == 1
    assert ours.last_step.index == 0
    assert accelerator.scaler.get_scale() == 2.0**11
    assert same(before, weights(net))
    train(accelerator, opt, loss_fn, 1)
    assert not accelerator.optimizer_step_was_skipped
    assert ours.last_step.index == 1
    assert not same(before, weights(net))
    matrix.right("Accelerate", "step(…): an overflow skips the step, as Accelerate tells", 0.0)


def test_a_raw_optimizer_that_was_prepared_tells_accelerate_of_an_overflow():
    accelerator = scaled()
    _, opt, loss_fn = prepared(accelerator, "sam", mlp())
    train(accelerator, aesam.unwrap(opt), lambda b: loss_fn(b) * float("inf"), 1)
    assert accelerator.optimizer_step_was_skipped


def test_a_scaler_with_an_optimizer_that_was_not_prepared_is_refused():
    accelerator = scaled()
    net = accelerator.prepare(mlp())
    opt = new_optimizer("sam", net)
    with pytest.raises(RuntimeError, match="must be prepared.*accelerator.prepare"):
        train(accelerator, opt, lambda b: loss_of(net, b), 1)


def test_without_a_scaler_an_optimizer_that_was_not_prepared_will_do():
    accelerator = Accelerator(cpu=True)
    net = accelerator.prepare(mlp())
    train(accelerator, new_optimizer("ae-sam", net), lambda b: loss_of(net, b), STEPS)
    assert largest_difference(net, plain("ae-sam", mlp()).model) < 1e-12


def test_bf16_is_autocast_around_the_model(matrix):
    """Accelerate runs the forward in bfloat16 and hands out float32."""

    class Autocast(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp().float()

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                out = self.net(x)
            assert out.dtype == torch.bfloat16
            return out.float()

    expected = PlainLoop("ae-sam", Autocast())
    problem = Problem(expected.model)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    net = mlp().float()
    _, opt, loss_fn = prepared(accelerator, "ae-sam", net)
    for t in range(STEPS):
        batches = micro_batches(problem, t, (4, 4))
        expected.step(batches)
        accelerate.step(accelerator, opt, batches, loss_fn)
    assert 0 < expected.opt.sam_fraction < 1
    assert largest_difference(net, expected.model.net) == 0.0
    matrix.right("Accelerate", 'step(…) with mixed_precision="bf16"', within=0.0)


# Its own settings -------------------------------------------------------------------------------


def test_gradient_accumulation_steps_of_the_accelerator_do_not_shrink_the_gradient(matrix):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    net = mlp()
    _, opt, loss_fn = prepared(accelerator, "ae-looksam", net)
    train(accelerator, opt, loss_fn, STEPS)
    assert largest_difference(net, plain("ae-looksam", mlp()).model) < 1e-12
    matrix.right("Accelerate", "step(…) with gradient_accumulation_steps=4", within=1e-12)


def test_inside_accumulate_it_is_refused(matrix):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    net = mlp()
    model, opt, loss_fn = prepared(accelerator, "sam", net)
    before = weights(net)
    with accelerator.accumulate(model):
        with pytest.raises(RuntimeError, match="outside of accelerator.accumulate") as told:
            train(accelerator, opt, loss_fn, 1)
    assert same(before, weights(net))
    matrix.refused("Accelerate", "step(…) inside accumulate()", told.value)


def test_a_prepared_scheduler_waits_for_steps_that_were_skipped():
    accelerator = scaled()
    net = mlp()
    _, opt, loss_fn = prepared(accelerator, "sam", net)
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5))
    rates = []
    for factor in (1.0, float("inf"), 1.0):
        train(accelerator, opt, lambda b, f=factor: loss_fn(b) * f, 1)
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    assert rates == pytest.approx([0.05, 0.05, 0.025])


@pytest.mark.parametrize("kind", ["DEEPSPEED", "MEGATRON_LM", "XLA", "FSDP"])
def test_engines_that_hide_gradients_are_refused(kind):
    with pytest.raises(RuntimeError, match="cannot measure them whole.*DDP or FSDP2"):
        accelerate._refuse_what_cannot_be_measured(DistributedType(kind), False)
    accelerate._refuse_what_cannot_be_measured(DistributedType.FSDP, True)


# Checkpoints ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ss-sam", "ae-sam", "ae-looksam"])
@pytest.mark.parametrize("with_scaler", [False, True])
def test_save_state_and_load_state_go_on_to_the_bit(method, with_scaler, tmp_path, matrix):
    def new():
        forget_accelerate()
        accelerator = scaled(growth_interval=7) if with_scaler else Accelerator(cpu=True)
        net = stochastic_net()
        _, opt, loss_fn = prepared(accelerator, method, net)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
        return accelerator, net, opt, loss_fn, accelerator.prepare(schedule)

    def run(parts, steps, start=0):
        accelerator, _, opt, loss_fn, schedule = parts
        for t in range(start, start + steps):
            train(accelerator, opt, loss_fn, 1, start=t)
            schedule.step()

    torch.manual_seed(1)
    whole = new()
    run(whole, 11)
    whole[0].save_state(str(tmp_path / "kept"), safe_serialization=False)
    run(whole, 9, start=11)
    torch.manual_seed(2)  # load_state brings the random state back too
    again = new()
    again[0].load_state(str(tmp_path / "kept"))
    run(again, 9, start=11)
    assert largest_difference(whole[1], again[1]) == 0.0
    left, right = (aesam.unwrap(parts[2]) for parts in (whole, again))
    assert left.last_step == right.last_step
    assert left.sam_fraction == right.sam_fraction > 0
    matrix.right("Accelerate", "save_state and load_state", within=0.0)
