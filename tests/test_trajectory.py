"""MESA is its rule, written out slowly, in every form; what cannot be exact is refused."""

import copy
import io
import math
from dataclasses import dataclass

import pytest
import torch
from support.problems import Problem, mlp, same, stochastic_net, weights
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import aesam
from aesam.parts.policies import Always
from aesam.parts.trajectory import TowardAverage, trajectory_loss

STEPS = 6
SETTINGS = {"weight": 0.7, "temperature": 2.0, "decay": 0.8}


def two_groups(model, kind="sgd"):
    first, *rest = model.parameters()
    groups = [{"params": [first]}, {"params": rest, "lr": 0.05}]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-3)
    return torch.optim.AdamW(groups, lr=0.01)


def new(model, base=None, **options):
    return aesam.MESA(base or two_groups(model), model, **(SETTINGS | options))


def literal(kind="sgd", net=mlp, steps=STEPS, start=0, settings=SETTINGS):
    """The loss with λ τ² Σ p_e log(p_e / p_w) in it, e a copy of the model, handed to autograd."""
    model = net()
    base, problem = two_groups(model, kind), Problem(model)
    weight, tau, beta = settings["weight"], settings["temperature"], settings["decay"]
    average = copy.deepcopy(model)
    for t in range(steps):
        torch.manual_seed(t)
        with torch.no_grad():
            for e, w in zip(average.parameters(), model.parameters(), strict=True):
                e.copy_(beta * e + (1 - beta) * w)
            before = torch.get_rng_state()
            past = average(problem.x[t])
            torch.set_rng_state(before)
        base.zero_grad()
        now = model(problem.x[t])
        loss = (now - problem.y[t]).square().sum(1).mean() / 2
        if t >= start:
            p_e = torch.exp(past / tau) / torch.exp(past / tau).sum(1, keepdim=True)
            p_w = torch.exp(now / tau) / torch.exp(now / tau).sum(1, keepdim=True)
            divergence = (p_e * (p_e.log() - p_w.log())).sum(1).mean()
            loss = loss + weight * tau**2 * divergence
        loss.backward()
        base.step()
    return [*weights(model), *(b.clone() for b in model.buffers())]


def ends(model):
    return [*weights(model), *(b.clone() for b in model.buffers())]


def close(left, right, atol=1e-12):
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


def bare(problem, opt, t):
    opt.zero_grad()
    problem.losses(t).mean().backward()
    opt.step()


def by_scaler(problem, opt, t):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def closure():
        opt.zero_grad()
        loss = problem.losses(t).mean()
        scaler.scale(loss).backward()
        return loss

    opt.step(closure, scaler=scaler)


FORMS = {
    "closure": lambda problem, opt, t: problem.step(opt, t),
    "losses": lambda problem, opt, t: opt.step(lambda rows=None: problem.losses(t, rows)),
    "own passes": lambda problem, opt, t: problem.own_passes(opt, t),
    "bare": bare,
    "scaler": by_scaler,
}


@pytest.mark.parametrize(
    ("kind", "net"),
    [("sgd", mlp), ("adamw", mlp), ("sgd", stochastic_net)],
    ids=["sgd", "adamw", "sgd with BatchNorm and dropout"],
)
@pytest.mark.parametrize("form", FORMS)
def test_mesa_is_the_literal_rule_in_every_form(form, kind, net):
    """Also with BatchNorm and dropout: the average has the batch's statistics and the masks."""
    model = net()
    opt, problem = new(model, two_groups(model, kind)), Problem(model)
    for t in range(STEPS):
        torch.manual_seed(t)
        FORMS[form](problem, opt, t)
    close(ends(model), literal(kind, net))
    without = literal(kind, net, settings=SETTINGS | {"weight": 0.0})
    assert max((a - b).abs().max() for a, b in zip(ends(model), without, strict=True)) > 1e-4
    assert opt.sam_fraction == 0.0


def test_it_starts_after_some_steps_with_the_average_of_all():
    model = mlp()
    opt, problem = new(model, start=3), Problem(model)
    for t in range(STEPS):
        bare(problem, opt, t)
    close(weights(model), literal(start=3))


def test_the_term_is_the_divergence_and_gives_the_past_no_gradient():
    now = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    past = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    found = trajectory_loss(now, past, 2.0)
    p, q = (past / 2).softmax(1), (now / 2).softmax(1)
    torch.testing.assert_close(found, 4 * (p * (p / q).log()).sum(1).mean())
    found.backward()
    assert past.grad is None
    torch.testing.assert_close(now.grad, (2 * (q - p) / 5).detach())


def test_logits_of_half_precision_are_compared_in_more():
    rows = torch.tensor([[30.0, 29.9]], dtype=torch.bfloat16)
    assert trajectory_loss(rows, rows.flip(1)).dtype == torch.float32


# Models that return the loss --------------------------------------------------------------------


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class WithLoss(nn.Module):
    """Returns the loss beside its logits, as Transformers' models do."""

    def __init__(self, kind=dict):
        super().__init__()
        self.net, self.kind = mlp(), kind

    def forward(self, x, y, num_items_in_batch=None):
        logits = self.net(x)
        loss = (logits - y).square().sum() / 2 / (num_items_in_batch or len(x))
        return self.kind(loss=loss, logits=logits)


@pytest.mark.parametrize("kind", [dict, Output])
@pytest.mark.parametrize("scaled", [False, True])
def test_beside_the_model_s_own_loss_the_term_has_every_factor_of_it(kind, scaled):
    model = WithLoss(kind)
    opt, problem = new(model), Problem(model.net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    for t in range(STEPS):
        opt.zero_grad()
        output = model(problem.x[t], problem.y[t], num_items_in_batch=torch.tensor(8))
        loss = output["loss"] if kind is dict else output.loss
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    close(weights(model.net), literal())


def test_a_loss_divided_by_others_samples_is_refused():
    model = WithLoss()
    opt, problem = new(model), Problem(model.net)
    model(problem.x[0], problem.y[0])["loss"].backward()
    opt.step()
    with pytest.raises(RuntimeError, match="8 samples divided by 32"):
        model(problem.x[1], problem.y[1], num_items_in_batch=32)


def test_logits_beside_a_loss_that_is_not_backpropagated_are_refused():
    model = WithLoss()
    opt, problem = new(model), Problem(model.net)
    model(problem.x[0], problem.y[0])["loss"].backward()
    opt.step()
    opt.zero_grad()
    model(problem.x[1], problem.y[1])["logits"].square().mean().backward()
    refused(opt, "returns its loss, backpropagate that")


# What is refused --------------------------------------------------------------------------------


def begun(net=mlp, **options):
    model = net()
    opt, problem = new(model, **options), Problem(model)
    for t in range(2):
        torch.manual_seed(t)
        bare(problem, opt, t)
    opt.zero_grad()
    return model, opt, problem


def refused(opt, match):
    with pytest.raises(RuntimeError, match=match):
        opt.step()


def test_micro_batches_are_refused_since_their_weights_are_not_known():
    model, opt, problem = begun()
    before = weights(model)
    for part in torch.arange(8).chunk(2):
        (problem.losses(2, part).sum() / 8).backward()
    refused(opt, "is of 2: how\nthe losses of micro-batches")
    assert same(weights(model), before)
    opt.zero_grad()
    bare(problem, opt, 2)
    close(weights(model), literal(steps=3))


@pytest.mark.parametrize("net", [mlp, stochastic_net])
def test_two_forwards_of_one_backward_are_refused(net):
    _, opt, problem = begun(net)
    (problem.losses(2, slice(4)).mean() + problem.losses(2, slice(4, 8)).mean()).backward()
    refused(opt, "is of 2")


def test_a_scaler_in_a_bare_loop_is_refused_and_by_hand_too():
    model, opt, problem = begun()
    before = weights(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(problem.losses(2).mean()).backward()
    with pytest.raises(RuntimeError, match=r"(?s)factor 8 .*opt.step\(closure, scaler=scaler\)"):
        scaler.step(opt)
    opt.zero_grad()
    (problem.losses(2).mean() * 4).backward()
    with pytest.raises(RuntimeError, match="factor 4 of a loss scaler"):
        opt.needs_second_pass(grad_scale=4.0)
    assert same(weights(model), before)


@pytest.mark.parametrize("how", ["eval", "forward", "submodule", "beside"])
def test_a_gradient_without_the_term_is_refused(how):
    model, opt, problem = begun()
    if how == "eval":
        model.eval()
        problem.losses(2).mean().backward()
    elif how == "forward":
        model.forward(problem.x[2]).square().mean().backward()
    elif how == "submodule":
        model[2](torch.tanh(model[0](problem.x[2]))).square().mean().backward()
    else:
        problem.losses(2).mean().backward()
        sum(p.square().sum() for p in model.parameters()).backward()
    refused(opt, "no training forward of the model")


def test_a_gradient_penalty_is_refused():
    _, _, problem = begun()
    x = problem.x[2].clone().requires_grad_()
    loss = problem.model(x).square().mean()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, x, create_graph=True)


class Shaped(nn.Module):
    """Returns its rows in some other way."""

    def __init__(self, shape):
        super().__init__()
        self.net, self.shape = mlp(), shape

    def forward(self, x):
        return self.shape(self.net(x))


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        (lambda rows: rows.square().mean(), r"returned \(\)"),
        (lambda rows: rows[:, :1], r"returned \(8, 1\)"),
        (lambda rows: rows.reshape(4, 2, 2), r"returned \(4, 2, 2\)"),
        (lambda rows: (rows, rows), "returned tuple"),
        (lambda rows: {"scores": rows}, "returned dict"),
    ],
)
def test_outputs_that_are_no_rows_of_logits_are_refused(shape, found):
    model = Shaped(shape)
    opt, problem = new(model), Problem(model.net)
    model.net(problem.x[0]).square().mean().backward()
    opt.step()
    before = weights(model)
    with pytest.raises(RuntimeError, match=found):
        model(problem.x[1])
    assert same(weights(model), before)


def doubles(_, args):
    args[0].mul_(2.0)


def test_inputs_that_the_model_writes_to_are_refused():
    model = Shaped(lambda rows: rows)
    model.register_forward_pre_hook(doubles)
    opt, problem = new(model), Problem(model)
    problem.losses(0).mean().backward()
    opt.step()
    before = weights(model)
    with pytest.raises(RuntimeError, match="writes to its inputs"):
        model(problem.x[1])
    assert same(weights(model), before)


def test_what_cannot_work_is_refused_where_it_is_made():
    model = mlp()
    base = two_groups(model)
    with pytest.raises(ValueError, match="pass it as model"):
        aesam.MESA(base)
    with pytest.raises(ValueError, match="takes no second gradient, which Always"):
        aesam.SharpnessAware(base, model, policy=Always(), ascent=TowardAverage())
    half = mlp().to(torch.bfloat16)
    with pytest.raises(ValueError, match="more than the 16 bits of the weights"):
        aesam.MESA(two_groups(half), half)
    for wrong, said in [
        ({"weight": -1}, "weight must be a finite number >= 0"),
        ({"temperature": 0.0}, "temperature must be a finite number > 0"),
        ({"decay": 1.0}, "decay must be a number strictly between 0 and 1"),
        ({"start": -1}, "start must be a whole number >= 0"),
    ]:
        with pytest.raises(ValueError, match=said):
            aesam.MESA(base, model, **wrong)


# What it must not disturb ------------------------------------------------------------------------


def test_evaluation_and_forwards_without_gradient_are_the_model_s_own():
    model, _, problem = begun(stochastic_net)
    kept, before = ends(model), torch.get_rng_state()
    with torch.no_grad():
        model.eval()(problem.x[2])
    assert same(ends(model), kept)
    assert torch.equal(torch.get_rng_state(), before)


def test_outputs_and_loss_are_those_without_the_term():
    model, _, problem = begun(stochastic_net)
    twin = copy.deepcopy(model)
    torch.manual_seed(2)
    found = model(problem.x[2])
    torch.manual_seed(2)
    assert torch.equal(found, twin(problem.x[2]))
    assert same(ends(model), ends(twin))


def test_outputs_changed_in_place_have_the_term():
    model = mlp()
    opt, problem = new(model), Problem(model)
    for t in range(STEPS):
        opt.zero_grad()
        rows = model(problem.x[t])
        rows -= problem.y[t]
        (rows.square().sum(1).mean() / 2).backward()
        opt.step()
    close(weights(model), literal())


@pytest.mark.parametrize("failing", ["average", "model", "interrupt"])
def test_after_an_error_in_a_forward_the_weights_are_home_and_training_goes_on(failing):
    model, opt, problem = begun(stochastic_net)
    kept, calls = ends(model), []

    def spoil(*_):
        calls.append(1)
        if len(calls) == (2 if failing == "model" else 1):
            raise KeyboardInterrupt if failing == "interrupt" else ValueError("on purpose")

    handle = model[2].register_forward_hook(spoil)
    with pytest.raises((ValueError, KeyboardInterrupt)):
        problem.losses(2)
    handle.remove()
    assert same(weights(model), kept[: len(weights(model))])
    for buffer, then in zip(model.buffers(), kept[len(weights(model)) :], strict=True):
        buffer.copy_(then)
    opt.zero_grad()
    for t in range(2, STEPS):
        torch.manual_seed(t)
        bare(problem, opt, t)
    close(ends(model), literal(net=stochastic_net))


def test_going_on_from_a_checkpoint_is_not_stopping_to_the_bit():
    model, opt, problem = begun()
    file = io.BytesIO()
    torch.save((model.state_dict(), opt.state_dict()), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other_model = mlp(seed=5)
    other = new(other_model)
    other_model.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    for t in range(2, STEPS):
        bare(problem, opt, t)
        bare(Problem(other_model), other, t)
    assert same(weights(model), weights(other_model))


def test_an_overflow_of_a_loss_scaler_leaves_the_average():
    model = mlp()
    opt, problem = new(model), Problem(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for t in range(STEPS):
        for spoiled in (True, False) if t == 3 else (False,):

            def closure(t=t, spoiled=spoiled):
                opt.zero_grad()
                loss = problem.losses(t).mean()
                scaler.scale(loss * (math.inf if spoiled else 1.0)).backward()
                return loss

            opt.step(closure, scaler=scaler)
            scaler.update()
    close(weights(model), literal())
    bare(problem, opt, STEPS)  # the scaler's factor is not announced any more


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints_are_no_forwards_of_their_own(reentrant):
    inner = mlp()

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = inner

        def forward(self, x):
            return checkpoint(self.net, x.detach().requires_grad_(), use_reentrant=reentrant)

    model = Checkpointed()
    opt, problem = new(model, two_groups(inner)), Problem(model)
    for t in range(STEPS):
        bare(problem, opt, t)
    close(weights(inner), literal())


def test_a_compiled_model_is_compared_too():
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    opt = aesam.MESA(two_groups(model), compiled, **SETTINGS)
    problem = Problem(compiled)
    problem.x, problem.y = Problem(model).x, Problem(model).y
    for t in range(3):
        bare(problem, opt, t)
    close(weights(model), literal(steps=3))


def test_under_autocast_both_run_in_it():
    model = mlp().float()
    opt, problem = new(model), Problem(model)
    for t in range(4):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            rows = model(problem.x[t])
            assert rows.dtype == torch.bfloat16
            loss = cross_entropy(rows.float(), torch.arange(8) % 2)
        loss.backward()
        opt.step()
    assert all(w.isfinite().all() for w in weights(model))


def test_neither_the_model_nor_a_copy_of_it_holds_the_optimizer():
    model, opt, problem = begun()
    copied = copy.deepcopy(model)
    assert type(copied(problem.x[0]).grad_fn).__name__ != "CloneBackward0"
    assert type(model(problem.x[0]).grad_fn).__name__ == "CloneBackward0"
    del opt
    assert type(model(problem.x[0]).grad_fn).__name__ != "CloneBackward0"
