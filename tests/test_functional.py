"""Functional SAM in every form of a step, against its rule written out with torch.func."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from support.problems import BASES, AboveAverageLoss, Problem, mlp, same, stochastic_net, weights
from support.processes import on_processes
from torch import nn
from torch.func import functional_call, grad, vjp
from torch.nn.parallel import DistributedDataParallel

import aesam
from aesam.parts.between import Reuse
from aesam.parts.combine import Mix
from aesam.parts.policies import Adaptive, Always, Never, Periodic
from aesam.parts.samples import KeptOutputGradients
from aesam.parts.scaled_ascents import WithWeights

STEPS, RHO = 12, 0.4
DATA = Problem(mlp())


def loss_of(outputs, y):
    return (outputs.exp() - y).square().sum(1).mean() / 2


def second_gradient(net, batches, w, epsilon):
    """``Σ J(w+ε)ᵀ ∂L/∂f`` over the micro-batches, and ``g`` for an ε of None."""
    total = {name: torch.zeros_like(v) for name, v in w.items()}
    at = w if epsilon is None else {name: w[name] + epsilon[name] for name in w}
    for x, y in batches:
        outputs = functional_call(net, w, (x,))
        slope = grad(lambda f, y=y: loss_of(f, y) / len(batches))(outputs)
        _, back = vjp(lambda p, x=x: functional_call(net, p, (x,)), at)
        total = {name: total[name] + g for name, g in back(slope)[0].items()}
    return total


class Oracle:
    """Functional SAM, line by line: ``fires`` says on which steps, the others are options."""

    def __init__(self, net=mlp, base="sgd", fires=lambda t: True, mix=1.0, asam=None, reuse=None):
        self.net = net()
        self.base = BASES[base](self.net.parameters())
        self.fires, self.mix, self.asam, self.reuse = fires, mix, asam, reuse
        self.kept = None

    def step(self, t, count=1):
        w = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        batches = list(zip(DATA.x[t].chunk(count), DATA.y[t].chunk(count), strict=True))
        g = second_gradient(self.net, batches, w, None)
        d = g
        if self.fires(t):
            g_s = second_gradient(self.net, batches, w, self.epsilon(w, g))
            d = {n: (1 - self.mix) * g[n] + self.mix * g_s[n] for n in g}
            along = dot(g, g_s) / dot(g, g)
            self.kept = {n: g_s[n] - along * g[n] for n in g}
        elif self.reuse is not None and self.kept is not None:
            factor = self.reuse * math.sqrt(dot(g, g) / dot(self.kept, self.kept))
            d = {n: g[n] + factor * self.kept[n] for n in g}
        for name, p in self.net.named_parameters():
            p.grad = d[name]
        self.base.step()

    def epsilon(self, w, g):
        t = {n: torch.ones_like(v) for n, v in w.items()}
        if self.asam is not None:
            t = {n: v.abs() + self.asam if v.dim() > 1 else t[n] for n, v in w.items()}
        length = math.sqrt(sum((t[n] * g[n]).square().sum() for n in g))
        return {n: RHO * t[n] ** 2 * g[n] / length for n in g}


def dot(a, b):
    return sum((a[n] * b[n]).sum().item() for n in a)


def optimizer(model, base="sgd", **options):
    return aesam.FunctionalSAM(BASES[base](model.parameters()), model, **({"rho": RHO} | options))


# How a step can be made: each takes the optimizer, the model and the micro-batches' losses --------


def backpropagate(model, t, count, scaler=None):
    for x, y in zip(DATA.x[t].chunk(count), DATA.y[t].chunk(count), strict=True):
        loss = loss_of(model(x), y) / count
        (loss if scaler is None else scaler.scale(loss)).backward()
    return loss.detach()


def bare(opt, model, t, count, scaler):
    backpropagate(model, t, count, scaler)
    opt.step() if scaler is None else scaler.step(opt)
    opt.zero_grad()


def by_closure(opt, model, t, count, scaler):
    calls = []

    def closure():
        calls.append(t)
        opt.zero_grad()
        return backpropagate(model, t, count, scaler)

    opt.step(closure, scaler=scaler)
    assert calls == [t]


def own_passes(opt, model, t, count, scaler):
    with opt.first_pass():
        backpropagate(model, t, count, scaler)
    scale = 1.0 if scaler is None else scaler.get_scale()
    assert not opt.needs_second_pass(grad_scale=scale)
    if scaler is not None:
        scaler.unscale_(opt)
    opt.step() if scaler is None else scaler.step(opt)
    opt.zero_grad()


FORMS = {"bare": bare, "closure": by_closure, "own passes": own_passes}


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaler"])
@pytest.mark.parametrize("count", [1, 4], ids=["whole", "accumulated"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_step_is_the_rule_written_out(form, count, scaled):
    model, oracle = mlp(), Oracle()
    opt, scaler = optimizer(model), torch.amp.GradScaler("cpu") if scaled else None
    for t in range(STEPS):
        FORMS[form](opt, model, t, count, scaler)
        if scaler is not None:
            scaler.update()
        oracle.step(t, count)
        assert opt.last_step.used_sam
        close(model, oracle.net)
    assert opt.sam_fraction == 1.0


def train_on(rank, form, count, given_raw):
    """Accumulation without traffic but for the last micro-batch, through DDP's wrapper."""
    raw = mlp()
    model = DistributedDataParallel(raw, gradient_as_bucket_view=count == 1)
    opt = aesam.FunctionalSAM(
        BASES["sgd"](model.parameters()), raw if given_raw else model, rho=RHO
    )

    def backward(t):
        x, y = DATA.x[t].chunk(2)[rank], DATA.y[t].chunk(2)[rank]
        for i, (rows, labels) in enumerate(zip(x.chunk(count), y.chunk(count), strict=True)):
            with nullcontext() if i == count - 1 else model.no_sync():
                (loss_of(model(rows), labels) / count).backward()

    for t in range(4):
        if form == "closure":
            opt.step(lambda t=t: backward(t))
        else:
            backward(t)
            assert form == "bare" or not opt.needs_second_pass()
            opt.step()
        opt.zero_grad()
    return [w.numpy() for w in weights(raw)]


def loss_in_the_wrapped_module(rank):
    """DDP around a module that returns the loss cannot be run again from inside."""
    whole = Returns(loss_of)
    model = DistributedDataParallel(whole)
    opt = optimizer(whole.net)
    model(DATA.x[0], DATA.y[0]).backward()
    with pytest.raises(RuntimeError, match=r"wrap the model itself in DDP"):
        opt.step()


DISTRIBUTED = [(form, count, raw) for form in FORMS for count, raw in ((1, True), (2, False))]


def on_each(rank):
    loss_in_the_wrapped_module(rank)
    return [train_on(rank, *case) for case in DISTRIBUTED]


@pytest.mark.slow
def test_two_processes_are_the_rule_written_out_on_the_whole_batch():
    oracle = Oracle()
    for t in range(4):
        oracle.step(t)
    for of_rank in on_processes(on_each):
        for ends in of_rank:
            for left, right in zip(ends, weights(oracle.net), strict=True):
                torch.testing.assert_close(torch.from_numpy(left), right, rtol=0, atol=1e-12)


def close(model, net, atol=1e-12):
    for left, right in zip(weights(model), weights(net), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=atol)


def test_it_is_not_sam():
    ends = []
    for make in (aesam.FunctionalSAM, aesam.SAM):
        model = mlp()
        opt = make(BASES["sgd"](model.parameters()), model, rho=RHO)
        Problem(model).train(opt, 3)
        ends.append(torch.cat([w.flatten() for w in weights(model)]))
    assert (ends[0] - ends[1]).abs().max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_it_goes_with_a_policy_an_ascent_a_reuse_and_a_mix(form, base):
    """An adaptive functional ASAM that mixes both gradients and reuses their difference."""
    model = mlp()
    opt = aesam.SharpnessAware(
        BASES[base](model.parameters()),
        model,
        policy=Adaptive(total_steps=STEPS),
        ascent=WithWeights(0.05),
        samples=KeptOutputGradients(),
        between=Reuse(0.3),
        combine=Mix(0.7),
        rho=RHO,
    )
    used = []
    oracle = Oracle(base=base, fires=lambda t: used[t], mix=0.7, asam=0.05, reuse=0.3)
    for t in range(STEPS):
        FORMS[form](opt, model, t, 2, None)
        used.append(opt.last_step.used_sam)
        oracle.step(t, 2)
        close(model, oracle.net)
    assert 0.0 < opt.sam_fraction < 1.0


@pytest.mark.parametrize("form", FORMS)
def test_dropout_draws_the_same_masks_and_batch_norm_counts_once(form):
    """At ρ = 0 the second gradient is the first: the base optimizer's own training."""
    model, twin = stochastic_net(), stochastic_net()
    opt, base = optimizer(model, rho=0.0), BASES["sgd"](twin.parameters())
    for t in range(STEPS):
        torch.manual_seed(t)
        FORMS[form](opt, model, t, 2, None)
        after = torch.get_rng_state()
        torch.manual_seed(t)
        backpropagate(twin, t, 2)
        base.step()
        base.zero_grad()
        assert torch.equal(after, torch.get_rng_state())
    close(model, twin, atol=1e-13)
    assert all(map(torch.equal, model.buffers(), twin.buffers()))


@pytest.mark.parametrize("form", FORMS)
def test_under_autocast_the_second_forward_is_cast_alike(form):
    """The oracle in float64 of forwards in bfloat16 differs by their rounding, and no more."""
    model, oracle = mlp().float(), Oracle()
    opt = optimizer(model)
    moved = [w.double().clone() for w in weights(model)]
    for t in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = []
            handle = model.register_forward_hook(lambda *a, o=outputs: o.append(a[2].dtype))
            FORMS[form](opt, SingleInputs(model), t, 1, None)
            handle.remove()
        assert set(outputs) == {torch.bfloat16}
        assert len(outputs) >= 2
        oracle.step(t)
    for left, right, start in zip(weights(model), weights(oracle.net), moved, strict=True):
        assert (left.double() - right).norm() < 0.1 * (right - start).norm()


class SingleInputs(nn.Module):
    """A caller with inputs in float64 of a model in float32."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x.float()).double()


def test_a_step_resumes_to_the_bit_and_a_checkpoint_of_sam_is_refused():
    model = mlp()
    opt = optimizer(model)
    Problem(model).train(opt, 3)
    kept = copy.deepcopy((model.state_dict(), opt.state_dict()))
    Problem(model).train(opt, 3, start=3)
    other = mlp(seed=4)
    resumed = optimizer(other)
    other.load_state_dict(kept[0])
    resumed.load_state_dict(kept[1])
    Problem(other).train(resumed, 3, start=3)
    assert same(weights(model), weights(other))
    with pytest.raises(ValueError, match="KeptOutputGradients"):
        resumed.load_state_dict(aesam.SAM(BASES["sgd"](other.parameters()), other).state_dict())


def test_a_copy_of_the_optimizer_records_its_own_model():
    model = mlp()
    opt = optimizer(model)
    Problem(model).train(opt, 2)
    other = copy.deepcopy(opt)
    Problem(model).train(opt, 2, start=2)
    Problem(other.model).train(other, 2, start=2)
    assert same(weights(model), weights(other.model))


def test_a_policy_that_never_fires_is_the_base_optimizer():
    model, twin = mlp(), mlp()
    base = BASES["sgd"](model.parameters())
    opt = aesam.SharpnessAware(base, model, policy=Never(), samples=KeptOutputGradients())
    plain = BASES["sgd"](twin.parameters())
    for t, form in enumerate(FORMS.values()):
        form(opt, model, t, 1, None)
        opt.zero_grad()
        backpropagate(twin, t, 1)
        plain.step()
        plain.zero_grad()
    assert same(weights(model), weights(twin))


def test_a_batch_that_a_closure_threw_away_is_forgotten():
    """Its own clearing begins anew, also where gradients of before would be in its way."""
    model, oracle = mlp(), Oracle()
    opt = optimizer(model)
    thrown = DATA.x[9].clone()
    loss_of(model(thrown), DATA.y[9]).backward()
    thrown.zero_()  # which a forward that is run again would be refused for
    by_closure(opt, model, 0, 1, None)
    oracle.step(0)
    close(model, oracle.net)


# What would be SAM, or is not known, is refused ---------------------------------------------------


class Returns(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.net, self.what = mlp(), what

    def forward(self, x, y):
        return self.what(self.net(x), y)


LOSSES = {
    "a number": loss_of,
    "a vector of one": lambda f, y: loss_of(f, y).reshape(1),
    "the loss beside logits": lambda f, y: {"loss": loss_of(f, y), "logits": f},
}


@pytest.mark.parametrize("form", ["bare", "closure", "own passes"])
@pytest.mark.parametrize("what", LOSSES)
def test_a_model_that_returns_the_loss_is_refused(what, form):
    model = Returns(LOSSES[what])
    opt, before = optimizer(model), weights(model)

    def backward():
        found = model(DATA.x[0], DATA.y[0])
        (found["loss"] if isinstance(found, dict) else found).backward()

    if form != "closure":
        backward()
    step = {"bare": opt.step, "own passes": opt.needs_second_pass}.get(form)
    with pytest.raises(RuntimeError, match=r"returns the\s+logits as model"):
        step() if step is not None else opt.step(backward)
    assert same(before, weights(model))


def test_the_module_inside_that_returns_the_logits_may_be_given():
    model, oracle = Returns(loss_of), Oracle()
    opt = optimizer(model.net)
    for t in range(3):
        model(DATA.x[t], DATA.y[t]).backward()
        opt.step()
        opt.zero_grad()
        oracle.step(t)
    close(model.net, oracle.net)


def test_a_penalty_that_the_model_returns_beside_its_logits_is_an_output():
    """At ρ = 0 nothing is left out: a mixture of experts' balance is an output like others."""
    model = Returns(lambda f, y: (f, f.square().mean()))
    twin = copy.deepcopy(model)
    opt, base = optimizer(model, rho=0.0), BASES["sgd"](twin.parameters())
    for t in range(3):
        for net, each in ((model, opt), (twin, base)):
            logits, penalty = net(DATA.x[t], DATA.y[t])
            (loss_of(logits, DATA.y[t]) + 0.1 * penalty).backward()
            each.step()
            each.zero_grad()
    close(model, twin, atol=1e-13)


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_last_batch_of_one_row_and_one_output_is_no_loss(shape):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    opt = optimizer(model)
    for rows in (4, 1):
        model(DATA.x[0, :rows]).reshape(rows, *shape[1:]).square().mean().backward()
        opt.step()
        opt.zero_grad()
    assert opt.last_step.index == 1


def test_without_the_model_it_is_refused():
    base = BASES["sgd"](mlp().parameters())
    with pytest.raises(ValueError, match=r"KeptOutputGradients\(\) needs the model"):
        aesam.FunctionalSAM(base)


def test_a_second_pass_of_the_caller_s_is_refused():
    """Who computes the loss again at w + ε would get SAM: there is no such place to do it."""
    model = mlp()
    opt = optimizer(model)
    backpropagate(model, 0, 1)
    assert not opt.needs_second_pass()
    with pytest.raises(RuntimeError, match="second pass was made"), opt.perturbed():
        backpropagate(model, 0, 1)
    backpropagate(model, 0, 1)
    opt.zero_grad()
    with pytest.raises(RuntimeError, match="without a decision"), opt.perturbed():
        backpropagate(model, 0, 1)


def test_a_bare_step_is_refused_where_the_policy_looks_at_the_loss():
    model = mlp()
    opt = aesam.SharpnessAware(
        BASES["sgd"](model.parameters()),
        model,
        policy=AboveAverageLoss(),
        samples=KeptOutputGradients(),
    )
    by_closure(opt, model, 0, 1, None)
    assert opt.last_step.used_sam
    backpropagate(model, 1, 1)
    with pytest.raises(RuntimeError, match=r"looks at the loss, which a bare step\(\)"):
        opt.step()


def test_gradients_that_were_changed_on_purpose_are_refused():
    model = mlp()
    opt = optimizer(model)
    backpropagate(model, 0, 1)
    with pytest.raises(ValueError, match="edited=True"):
        opt.needs_second_pass(edited=True)


def test_refusals_of_the_recording_name_the_method_and_a_way_out():
    model = mlp()
    opt = optimizer(model)
    x = DATA.x[0].clone()
    loss_of(model(x), DATA.y[0]).backward()
    x.zero_()
    with pytest.raises(RuntimeError, match=r"(?s)^functional SAM: .*use SAM with step") as e:
        opt.needs_second_pass()
    assert "replay=True" not in str(e.value)
    opt.zero_grad()
    penalty = sum(p.square().sum() for p in model.parameters())
    (loss_of(model(DATA.x[0]), DATA.y[0]) + penalty).backward()
    with pytest.raises(RuntimeError, match="functional SAM cannot make the gradient of 0.weight"):
        opt.step()


def test_its_part_records_forwards_and_others_do_not():
    model = mlp()
    opt = aesam.SharpnessAware(BASES["sgd"](model.parameters()), model, policy=Periodic(2))
    assert not opt.replay
    assert aesam.SharpnessAware(
        BASES["sgd"](model.parameters()), model, policy=Always(), samples=KeptOutputGradients()
    ).replay
