"""Sub-batch ascent in bare loops: the model's own forward takes the gradient of some rows first."""

import copy
import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.problems import BASES, AboveAverageLoss, Problem, mlp, same, stochastic_net, weights
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import aesam
from aesam._core import messages
from aesam.parts.ascents import RandomSubset
from aesam.parts.policies import Adaptive, Always, Periodic
from aesam.parts.samples import SubBatch
from aesam.parts.scaled_ascents import WithWeights

STEPS, RHO, SHARE = 6, 0.3, 0.25
ALWAYS = Always()


class WithLoss(nn.Module):
    """A model that returns its loss, as Transformers' do, in one of their forms."""

    def __init__(self, net: nn.Module, form: str = "number") -> None:
        super().__init__()
        self.net, self.form = net, form

    def forward(self, x: Tensor, y: Tensor | None = None, factor: Any = None) -> Any:
        found = self.net(x)
        loss = None if y is None else (found - y).square().sum(1).mean() / 2
        if loss is not None and factor is not None:
            loss = loss * factor.mean()
        if self.form == "number":
            return loss
        if self.form == "dict":
            return {"logits": found, "loss": loss}
        return Output(found, loss)


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None


def loss_of(output):
    if isinstance(output, dict):
        return output["loss"]
    return output if isinstance(output, Tensor) else output.loss


def new(policy=ALWAYS, net=mlp, base="sgd", form="number", **options):
    model = WithLoss(net(), form)
    opt = aesam.SharpnessAware(
        BASES[base](model.parameters()), model, policy=policy,
        samples=SubBatch(SHARE), rho=RHO, replay=True, **options,
    )  # fmt: skip
    return model, opt, Problem(model.net)


def bare(model, opt, problem, t):
    opt.zero_grad()
    loss_of(model(problem.x[t], problem.y[t])).backward()
    opt.step()


def cleared_between(model, opt, problem, t):
    loss = loss_of(model(problem.x[t], y=problem.y[t]))
    opt.zero_grad()
    loss.backward()
    opt.step()


def closure(model, opt, problem, t):
    def closure():
        opt.zero_grad()
        loss = loss_of(model(problem.x[t], problem.y[t]))
        loss.backward()
        return loss

    opt.step(closure)


def scaled(model, opt, problem, t):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    opt.zero_grad()
    scaler.scale(loss_of(model(problem.x[t], problem.y[t]))).backward()
    scaler.step(opt)
    scaler.update()


def scaled_closure(model, opt, problem, t):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def closure():
        opt.zero_grad()
        loss = loss_of(model(problem.x[t], problem.y[t]))
        scaler.scale(loss).backward()
        return loss

    opt.step(closure, scaler=scaler)
    scaler.update()


def by_losses(model, opt, problem, t):
    opt.step(lambda rows=None: problem.losses(t, rows))


def own_passes(model, opt, problem, t):
    opt.zero_grad()
    with opt.first_pass():
        problem.losses(t, opt.parts.samples.first_rows).mean().backward()
    assert opt.needs_second_pass()
    with opt.perturbed():
        problem.losses(t).mean().backward()
    opt.step()


LOOPS = {
    "bare": bare, "cleared between": cleared_between, "closure": closure, "scaler": scaled,
    "closure and scaler": scaled_closure, "losses": by_losses, "own passes": own_passes,
}  # fmt: skip


# The rule, written out ----------------------------------------------------------------------------


def gradient(model, problem, t, rows=slice(None)):
    loss = (model(problem.x[t][rows]) - problem.y[t][rows]).square().sum(1).mean() / 2
    return torch.autograd.grad(loss, list(model.parameters()))


def literal(fires, base="sgd", elementwise=False):
    """Weights after a few steps, and the squared norms of the gradients of every fourth row."""
    model = mlp()
    optimizer, problem, squares = BASES[base](model.parameters()), Problem(model), []
    for t in range(STEPS):
        g = gradient(model, problem, t, slice(0, None, 4))
        squares.append(sum(float((x * x).sum()) for x in g))
        home = weights(model)
        scales = [w.abs() + 0.01 if elementwise and w.dim() > 1 else 1.0 for w in home]
        norm = sum(float((s * x).square().sum()) for s, x in zip(scales, g, strict=True)) ** 0.5
        with torch.no_grad():
            for p, x, s in zip(model.parameters(), g, scales, strict=True):
                p.add_(fires(t) * RHO * s * s * x / norm)
        d = gradient(model, problem, t)
        with torch.no_grad():
            for p, w, x in zip(model.parameters(), home, d, strict=True):
                p.copy_(w)
                p.grad = x
        optimizer.step()
    return weights(model), squares


def close(left, right):
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("base", ["sgd", "adamw"])
@pytest.mark.parametrize("loop", LOOPS)
def test_the_rule_is_the_literal_one_in_every_loop(loop, base):
    model, opt, problem = new(base=base)
    squares = []
    for t in range(STEPS):
        LOOPS[loop](model, opt, problem, t)
        squares.append(opt.last_step.squared_norm)
        assert opt.last_step.used_sam
    expected, norms = literal(lambda t: True, base)
    close(weights(model), expected)
    assert squares == pytest.approx(norms, rel=1e-12)
    assert not same(weights(model), literal(lambda t: False, base)[0])


@pytest.mark.parametrize("form", ["number", "dict", "output"])
@pytest.mark.parametrize("loop", ["bare", "closure"])
def test_a_step_that_the_policy_leaves_out_is_taken_at_w(loop, form):
    model, opt, problem = new(Periodic(2), form=form)
    for t in range(STEPS):
        LOOPS[loop](model, opt, problem, t)
        assert opt.last_step.used_sam == (t % 2 == 0)
    close(weights(model), literal(lambda t: t % 2 == 0)[0])


POLICIES = {
    "adaptive": lambda: Adaptive(0.0, 2.0, total_steps=STEPS),
    "of the loss": AboveAverageLoss,
}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_sees_what_it_sees_of_some_rows_by_losses(policy):
    models, fired = [], []
    for loop in (bare, by_losses):
        model, opt, problem = new(POLICIES[policy]())
        fired.append([])
        for t in range(STEPS):
            loop(model, opt, problem, t)
            fired[-1].append((opt.last_step.used_sam, opt.last_step.threshold))
        models.append(model)
    assert fired[0] == fired[1]
    assert {used for used, _ in fired[0]} == {True, False}
    close(*map(weights, models))


@pytest.mark.parametrize("ascent", [WithWeights(), RandomSubset(0.5, 3)])
def test_every_ascent_along_one_gradient_goes_with_it(ascent):
    models = []
    for loop in (bare, by_losses):
        model, opt, problem = new(Periodic(2), ascent=ascent, compensate=2.0, max_norm=0.5)
        for t in range(STEPS):
            loop(model, opt, problem, t)
        models.append(model)
    close(*map(weights, models))


def test_an_elementwise_ascent_is_the_literal_one():
    model, opt, problem = new(ascent=WithWeights())
    for t in range(STEPS):
        bare(model, opt, problem, t)
    close(weights(model), literal(lambda t: True, elementwise=True)[0])


# What the first pass leaves behind ----------------------------------------------------------------


@pytest.mark.parametrize("loop", ["bare", "cleared between", "closure"])
def test_statistics_and_random_numbers_are_those_of_the_whole_batch_once(loop):
    model, opt, problem = new(Periodic(1000), net=stochastic_net)
    plain = WithLoss(stochastic_net())
    base = BASES["sgd"](plain.parameters())
    bare(model, opt, problem, 0)
    plain.load_state_dict(copy.deepcopy(model.state_dict()))
    base.load_state_dict(copy.deepcopy(opt.base.state_dict()))
    for t in range(1, 4):
        torch.manual_seed(t)
        LOOPS[loop](model, opt, problem, t)
        after = torch.get_rng_state()
        torch.manual_seed(t)
        base.zero_grad()
        plain(problem.x[t], problem.y[t]).backward()
        base.step()
        assert torch.equal(after, torch.get_rng_state())
        close(weights(model), weights(plain))
        assert same(list(model.buffers()), list(plain.buffers()))


def test_gradients_that_are_there_stay_there_and_hooks_see_one_backward():
    model, opt, problem = new()
    seen = []
    model.net[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    bare(model, opt, problem, 0)
    held = [p.grad for p in model.parameters()]
    values = [g.clone() for g in held]
    x = problem.x[1].clone().requires_grad_()
    model(x, problem.y[1])
    assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))
    assert same(held, values)
    assert x.grad is None
    opt.zero_grad()


def test_arguments_without_the_batch_s_rows_are_given_whole():
    model, opt, problem = new()
    other, by, _ = new()
    factor = torch.rand(3, dtype=torch.float64)
    for t in range(3):
        opt.zero_grad()
        model(problem.x[t], y=problem.y[t], factor=factor).backward()
        opt.step()

        def losses(rows=None, t=t):
            return Problem(other.net).losses(t, rows) * factor.mean()

        by.step(losses)
    close(weights(model), weights(other))


def test_health_sees_the_angle_of_the_ascent_and_the_second_gradient():
    model, opt, problem = new()
    other, by, _ = new()
    for t in range(4):
        scaled(model, opt, problem, t)
        by_losses(other, by, Problem(other.net), t)
    assert opt.health().cosine == pytest.approx(by.health().cosine, rel=1e-9)
    assert opt.health().bend == pytest.approx(by.health().bend, rel=1e-9)
    assert opt.health().seconds > 0.0


def test_health_is_of_the_gradient_before_a_loop_clips_it():
    model, opt, problem = new()
    other, by, _ = new()
    for t in range(4):
        start = [w.detach().clone() for w in model.parameters()]
        opt.zero_grad()
        model(problem.x[t], y=problem.y[t]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        opt.step()
        with torch.no_grad():
            for w, at in zip(other.parameters(), start, strict=True):
                w.copy_(at)
        by_losses(other, by, Problem(other.net), t)
    assert opt.health().cosine == pytest.approx(by.health().cosine, rel=1e-9)
    assert opt.health().bend == pytest.approx(by.health().bend, rel=1e-9)


# What comes between forward and backward ----------------------------------------------------------


def begun(**options):
    model, opt, problem = new(**options)
    for t in range(2):
        bare(model, opt, problem, t)
    opt.zero_grad()
    return model, opt, problem


def after(steps):
    model, opt, problem = new()
    for t in range(steps):
        bare(model, opt, problem, t)
    return weights(model)


def test_weights_are_away_from_the_forward_to_the_end_of_the_backward_only():
    model, opt, problem = begun()
    home = weights(model)
    loss = model(problem.x[2], problem.y[2])
    assert all(not torch.equal(a, w) for a, w in zip(weights(model), home, strict=True))
    loss.backward()
    assert same(weights(model), home)
    opt.step()
    assert same(weights(model), after(3))


BETWEEN = {
    "eval": lambda model, opt, p: (model.eval(), model(p.x[0], p.y[0]), model.train()),
    "no_grad": lambda model, opt, p: torch.no_grad()(model)(p.x[0], p.y[0]),
    "state_dict": lambda model, opt, p: model.state_dict(),
    "state_dict of a module around": lambda model, opt, p: nn.Sequential(model).state_dict(),
    "the optimizer's": lambda model, opt, p: opt.state_dict(),
    "a copy": lambda model, opt, p: copy.deepcopy(opt),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_all_else_sees_w_and_the_backward_of_other_weights_is_refused(between):
    model, opt, problem = begun()
    home = weights(model)
    loss = model(problem.x[2], problem.y[2])
    BETWEEN[between](model, opt, problem)
    assert same(weights(model), home)
    with pytest.raises(RuntimeError, match="brought back to w before its"):
        loss.backward()
    assert same(weights(model), home)
    bare(model, opt, problem, 2)
    assert same(weights(model), after(3))
    assert opt.last_step.index == 2


def test_two_forwards_before_a_backward_are_refused():
    model, opt, problem = begun()
    total = model(problem.x[2], problem.y[2]) + model(problem.x[3], problem.y[3])
    with pytest.raises(RuntimeError, match="A sub-batch is of one training forward"):
        total.backward()
    bare(model, opt, problem, 2)
    assert same(weights(model), after(3))


def test_a_forward_that_nothing_comes_of_leaves_no_trace():
    model, opt, problem = begun()
    model(problem.x[3], problem.y[3])
    bare(model, opt, problem, 2)
    assert same(weights(model), after(3))
    assert opt.skipped_steps == 1


def test_accumulation_is_refused_with_what_to_do(matrix):
    model, opt, problem = begun()
    home = weights(model)
    for t in (2, 3):
        (model(problem.x[t], problem.y[t]) / 2).backward()
    with pytest.raises(RuntimeError, match="own the passes: inside") as error:
        opt.step()
    matrix.refused("plain PyTorch", "sub-batch ascent, bare step(), accumulation", error.value)
    assert same(weights(model), home)
    bare(model, opt, problem, 2)
    assert same(weights(model), after(3))


def test_an_overflow_that_a_scaler_skips_leaves_no_trace_however_gradients_are_cleared():
    for clear_first in (True, False):
        model, opt, problem = new()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for t in range(STEPS):
            for spoiled in (True, False) if t == 3 else (False,):
                if clear_first:
                    opt.zero_grad()
                loss = model(problem.x[t], problem.y[t])
                if not clear_first:
                    opt.zero_grad()
                scaler.scale(loss * (float("inf") if spoiled else 1.0)).backward()
                scaler.step(opt)
                scaler.update()
        close(weights(model), literal(lambda t: True)[0])
        assert opt.skipped_steps == 1
        assert scaler.get_scale() == 2.0**9


@pytest.mark.parametrize("spoiled", ["some rows", "all rows"])
def test_gradients_that_are_no_numbers_skip_the_step(spoiled):
    model, opt, problem = begun()
    home, x = weights(model), problem.x[2].clone()
    x[0 if spoiled == "some rows" else 1] = float("nan")
    model(x, problem.y[2]).backward()
    with pytest.warns(UserWarning, match="the update was skipped"):
        opt.step()
    assert same(weights(model), home)
    bare(model, opt, problem, 2)
    assert same(weights(model), after(3))
    assert opt.skipped_steps == 1


@pytest.mark.parametrize("failing", ["some rows", "all rows", "interrupt", "backward", "closure"])
def test_after_an_error_the_weights_are_home_and_training_goes_on(failing):
    model, opt, problem = begun()
    home, calls = weights(model), []

    def raising(*_):
        calls.append(1)
        if len(calls) == (1 if failing == "some rows" else 2):
            raise KeyboardInterrupt if failing == "interrupt" else ValueError("on purpose")

    target = model.net[0].weight if failing in ("backward", "closure") else model.net[1]
    register = getattr(target, "register_forward_hook", None) or target.register_hook
    handle = register(raising)
    with pytest.raises(KeyboardInterrupt if failing == "interrupt" else ValueError):
        (closure if failing == "closure" else bare)(model, opt, problem, 2)
    handle.remove()
    if failing != "backward":
        assert failing == "interrupt" or same(weights(model), home)
    assert same(list(model.state_dict().values()), home)
    bare(model, opt, problem, 2)
    assert same(weights(model), after(3))


def test_a_checkpoint_goes_on_to_the_bit():
    model, opt, problem = new(Adaptive(total_steps=STEPS))
    for t in range(3):
        bare(model, opt, problem, t)
    again, resumed, other = new(Adaptive(total_steps=STEPS))
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    for t in range(3, STEPS):
        bare(model, opt, problem, t)
        bare(again, resumed, other, t)
    assert same(weights(model), weights(again))
    assert opt.last_step == resumed.last_step


def test_a_copy_trains_its_own_model():
    model, opt, problem = begun()
    twin = copy.deepcopy(opt)
    bare(twin.model, twin, Problem(twin.model.net), 2)
    assert not same(weights(twin.model), weights(model))
    bare(model, opt, problem, 2)
    assert same(weights(twin.model), weights(model))


# What cannot be right -----------------------------------------------------------------------------


class Logits(WithLoss):
    def forward(self, x, y=None):
        return self.net(x)


def test_a_model_that_does_not_return_the_loss_is_refused_at_its_first_forward(matrix):
    model = Logits(mlp())
    opt = aesam.SubSAM(BASES["sgd"](model.parameters()), model, replay=True)
    problem = Problem(model.net)
    home = weights(model)
    with pytest.raises(RuntimeError, match="class WithLoss") as error:
        model(problem.x[0])
    matrix.refused("plain PyTorch", "sub-batch ascent, bare step(), loss outside", error.value)
    assert same(weights(model), home)
    by_losses(model, opt, problem, 0)  # which it is told to do


def test_another_output_than_the_loss_is_no_beginning_of_a_backward():
    model, opt, problem = new(form="output")
    found = model(problem.x[0], problem.y[0])
    with pytest.raises(RuntimeError, match="began at another output of the model than its loss"):
        found.logits.sum().backward()
    bare(model, opt, problem, 0)


def test_a_gradient_of_no_training_forward_is_refused():
    model, opt, problem = begun()
    model.eval()
    model(problem.x[2], problem.y[2]).backward()
    with pytest.raises(RuntimeError, match="decides in the model's training forward, and there"):
        opt.step()
    model.train()
    opt.zero_grad()
    model.net(problem.x[2]).sum().backward()
    with pytest.raises(RuntimeError, match="decides in the model's training forward, and there"):
        opt.step()
    opt.zero_grad()
    model(problem.x[2], problem.y[2]).backward()
    with pytest.raises(RuntimeError, match="decides in the model's training forward, and there"):
        opt.needs_second_pass()
    model(problem.x[2], problem.y[2])
    with pytest.raises(RuntimeError, match="found no gradient in any"):
        opt.zero_grad() or opt.step()
    with pytest.raises(RuntimeError, match="decides in the model's training forward, and there"):
        opt.step(lambda: problem.losses(2).mean().backward())
    opt.zero_grad()
    bare(model, opt, problem, 2)
    assert same(weights(model), after(3))


def test_what_has_no_rows_is_refused():
    class Fixed(WithLoss):
        def forward(self, *given):
            return self.net(torch.ones(2, 3, dtype=torch.float64)).sum()

    model = Fixed(mlp())
    opt = aesam.SubSAM(BASES["sgd"](model.parameters()), model, replay=True)
    packed = pack_padded_sequence(torch.ones(2, 3, 1), [3, 2], batch_first=True)
    for given in ((), (packed,), (torch.tensor(1.0),)):
        with pytest.raises(TypeError, match="found no rows in what the model is given"):
            model(*given)
    assert opt.last_step is None


def test_rows_are_as_dense_as_the_batch():
    """Models flatten what they are given by ``view``, which rows that lie apart do not allow."""
    given = []

    class Flat(WithLoss):
        def forward(self, x, y):
            given.append(x)
            return (self.net(x.view(-1, 3)).view(-1) - y.view(-1)).square().mean()

    model = Flat(mlp())
    opt = aesam.SubSAM(BASES["sgd"](model.parameters()), model, share=SHARE, replay=True)
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(8, 5, n, generator=draw, dtype=torch.float64) for n in (3, 2))
    model(x, y).backward()
    opt.step()
    torch.testing.assert_close(given[0], x[::4], rtol=0, atol=0)
    assert [x.is_contiguous() for x in given] == [True, True]


def test_rows_that_two_numbers_could_be_are_refused():
    class TimeFirst(WithLoss):
        def forward(self, x, y, *others):
            return (self.net(x).sum(0) - y).square().mean()

    model = TimeFirst(mlp())
    opt = aesam.SubSAM(BASES["sgd"](model.parameters()), model, replay=True)
    x, y = torch.ones(5, 8, 3, dtype=torch.float64), torch.ones(8, 2, dtype=torch.float64)
    with pytest.raises(TypeError, match="have 5 as have 8: which of them is the batch"):
        model(x, y)
    model(x, y, torch.ones(5)).backward()  # as most have
    opt.step()
    assert opt.last_step.used_sam


def test_an_error_of_the_model_on_some_rows_says_where_it_is_from():
    class Eight(WithLoss):
        def forward(self, x, y):
            return super().forward(x.reshape(8, 3), y)

    model = Eight(mlp())
    opt = aesam.SubSAM(BASES["sgd"](model.parameters()), model, replay=True, share=0.5)
    problem = Problem(model.net)
    with pytest.raises(RuntimeError, match="shape") as error:
        model(problem.x[0], problem.y[0])
    notes = getattr(error.value, "__notes__", [messages.OF_SOME_ROWS])  # Python 3.10 has none
    assert notes == [messages.OF_SOME_ROWS]
    assert opt.last_step is None


def test_a_copy_of_data_parallel_is_refused():
    model, _, problem = new()
    replica = model._replicate_for_data_parallel()
    with pytest.raises(RuntimeError, match="use\nDistributedDataParallel"):
        replica(problem.x[0], problem.y[0])


def test_what_cannot_be_made_is_refused():
    model = WithLoss(mlp())
    make = functools.partial(aesam.SubSAM, BASES["sgd"](model.parameters()), replay=True)
    with pytest.raises(ValueError, match="needs the model"):
        make()
    with pytest.raises(ValueError, match=r"local_ascent=True cannot be combined with replay=True"):
        make(model, local_ascent=True)
    with pytest.raises(ValueError, match="selects rows: a bare"):
        aesam.KSAM(BASES["sgd"](model.parameters()), model, replay=True)


# How the forward may run --------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints_see_the_same_weights(reentrant, matrix):
    class Checkpointed(WithLoss):
        def forward(self, x, y):
            hidden = checkpoint(self.net[0], x.requires_grad_(), use_reentrant=reentrant)
            return (self.net[2](self.net[1](hidden)) - y).square().sum(1).mean() / 2

    model = Checkpointed(mlp())
    opt = aesam.SubSAM(BASES["sgd"](model.parameters()), model, rho=RHO, share=SHARE, replay=True)
    for t in range(STEPS):
        bare(model, opt, Problem(model.net), t)
    close(weights(model), literal(lambda t: True)[0])
    use = f"sub-batch ascent, bare step(), gradient checkpointing, use_reentrant={reentrant}"
    matrix.right("plain PyTorch", use, 1e-12)


def test_autocast_is_that_of_the_loop():
    ends = []
    for loop in (bare, by_losses):
        model, opt, problem = new(Periodic(2), net=lambda: mlp().float())
        for t in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16):
                loop(model, opt, problem, t)
        ends.append(weights(model))
    for left, right in zip(*ends, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e4])
def test_small_and_large_gradients_of_float16_are_seen(size):
    """A loop's scaler is not known in a forward: 1e-8 is 0 in float16, and 1e4 · 2¹⁶ infinite."""

    class Sized(WithLoss):
        def forward(self, x, y):
            return (self.net(x).float() - y).square().sum(1).mean() / 2 * size

    squares = []
    for casts in (True, False):
        model = Sized(mlp().float())
        opt = aesam.SubSAM(BASES["sgd"](model.parameters()), model, share=SHARE, replay=True)
        problem = Problem(model.net)
        with torch.autocast("cpu", torch.float16, enabled=casts):
            loss = model(problem.x[0], problem.y[0])
        (loss / size).backward()
        opt.step()
        squares.append(opt.last_step.squared_norm)
        assert opt.skipped_steps == 0
    assert squares[0] == pytest.approx(squares[1], rel=2e-2, abs=0.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo
@pytest.mark.parametrize("given", ["compiled", "raw"])
def test_compiled_modules_are_right(given, matrix):
    model = WithLoss(mlp())
    compiled = torch.compile(model, backend="eager")
    opt = aesam.SubSAM(
        BASES["sgd"](model.parameters()), compiled if given == "compiled" else model, rho=RHO,
        share=SHARE, replay=True,
    )  # fmt: skip
    for t in range(STEPS):
        bare(compiled, opt, Problem(model.net), t)
    close(weights(model), literal(lambda t: True)[0])
    use = f"sub-batch ascent, bare step(), torch.compile, {given} module given"
    matrix.right("plain PyTorch", use, 1e-12)


def test_the_rows_of_all_loops_are_in_the_matrix(matrix):
    uses = {"bare": "bare step(), the model returns the loss", "closure": "a closure, run once",
            "scaler": "bare step(), GradScaler"}  # fmt: skip
    for loop, use in uses.items():
        model, opt, problem = new()
        for t in range(STEPS):
            LOOPS[loop](model, opt, problem, t)
        close(weights(model), literal(lambda t: True)[0])
        matrix.right("plain PyTorch", f"sub-batch ascent, {use}", 1e-12)
