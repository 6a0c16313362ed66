"""Gradients of some rows: sub-batch ascent and K-SAM against their rules, written out."""

import copy
import functools

import pytest
import torch
from support.problems import BASES, Problem, mlp, same, stochastic_net, weights
from torch import nn

import aesam
from aesam.parts.between import Reuse
from aesam.parts.combine import Mix
from aesam.parts.policies import Adaptive, Always, Never, Periodic
from aesam.parts.samples import LargestLoss, SubBatch

STEPS, RHO = 6, 0.3


def gradient(model, problem, t, rows=None):
    loss = problem.losses(t, rows).mean()
    return torch.autograd.grad(loss, list(model.parameters()))


def at_distance(model, g, find):
    """What ``find`` finds at w + ρ g/‖g‖."""
    norm = torch.sqrt(sum((x * x).sum() for x in g))
    home = weights(model)
    with torch.no_grad():
        for p, x in zip(model.parameters(), g, strict=True):
            p.add_(RHO * x / norm)
    found = find()
    with torch.no_grad():
        for p, w in zip(model.parameters(), home, strict=True):
            p.copy_(w)
    return found


def literal(kind, fires, share, base):
    """Weights after a few steps of the rule, and the squared norms that were decided on."""
    model = mlp()
    optimizer, problem, norms = BASES[base](model.parameters()), Problem(model), []
    for t in range(STEPS):
        losses = problem.losses(t).detach()
        if kind == "sub-batch":
            first = torch.arange(0, len(losses), round(1 / share))
            second = None
        else:
            first = second = losses.sort(descending=True).indices[: round(share * len(losses))]
        g = gradient(model, problem, t, first)
        norms.append(float(sum((x * x).sum() for x in g)))
        find = functools.partial(gradient, model, problem, t, second)
        d = at_distance(model, g, find) if fires(t) else find()
        for p, x in zip(model.parameters(), d, strict=True):
            p.grad = x
        optimizer.step()
    return weights(model), norms


SAMPLES = {"sub-batch": SubBatch, "hardest": LargestLoss}


def new(kind, policy, share, base="sgd", net=mlp, **options):
    model = net()
    made = aesam.SharpnessAware(
        BASES[base](model.parameters()), model, policy=policy, samples=SAMPLES[kind](share),
        rho=RHO, **options,
    )  # fmt: skip
    return model, made, Problem(model)


def by_hand(problem, opt, t):
    """The loop owns its passes."""
    samples, rows = opt.parts.samples, None
    if samples.looks_first:
        with torch.no_grad():
            rows = samples.rows_at_first(problem.losses(t))
    opt.zero_grad()
    with opt.first_pass():
        problem.losses(t, samples.first_rows if rows is None else rows).mean().backward()
    if opt.needs_second_pass():
        with opt.perturbed():
            problem.losses(t, rows).mean().backward()
    opt.step()


FORMS = {"losses": lambda problem, opt, t: problem.step(opt, t), "own passes": by_hand}
POLICIES = {
    "always": (Always(), lambda t: True),
    "periodic": (Periodic(2), lambda t: t % 2 == 0),
}


@pytest.mark.parametrize("base", ["sgd", "adamw"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SAMPLES)
def test_the_rule_is_the_literal_one(kind, form, policy, base):
    chosen, fires = POLICIES[policy]
    model, opt, problem = new(kind, chosen, 0.25, base)
    norms = []
    for t in range(STEPS):
        FORMS[form](problem, opt, t)
        norms.append(opt.last_step.squared_norm)
        assert opt.last_step.used_sam == fires(t)
    expected, squares = literal(kind, fires, 0.25, base)
    for left, right in zip(weights(model), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    assert norms == pytest.approx(squares, rel=1e-12)


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_adaptive_policy_decides_on_the_norm_of_those_rows(kind):
    model, opt, problem = new(kind, Adaptive(0.0, 2.0, total_steps=STEPS), 0.25)
    fired = []
    for t in range(STEPS):
        problem.step(opt, t)
        fired.append(opt.last_step.used_sam)
    expected, _ = literal(kind, lambda t: fired[t], 0.25, "sgd")
    for left, right in zip(weights(model), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    assert True in fired
    assert False in fired


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_loss_that_step_returns_is_at_w(kind):
    _, opt, problem = new(kind, Always(), 0.25)
    losses = Problem(mlp()).losses(0).detach()
    expected = losses[::4].mean() if kind == "sub-batch" else losses.mean()
    torch.testing.assert_close(problem.step(opt, 0), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SAMPLES)
def test_statistics_are_of_one_forward_over_the_whole_batch(kind, form):
    model, opt, problem = new(kind, Periodic(2), 0.5, net=stochastic_net)
    for t in range(4):
        home = copy.deepcopy(model)
        FORMS[form](problem, opt, t)
        if t % 2 or kind == "hardest":  # where all rows pass at w
            home(problem.x[t])
            torch.testing.assert_close(model[1].running_mean, home[1].running_mean)
        assert model[1].num_batches_tracked == t + 1


def test_random_numbers_of_a_sub_batch_leave_no_trace():
    """The whole batch draws what it would draw in plain training."""
    model, opt, problem = new("sub-batch", Periodic(1000), 0.5, net=stochastic_net)
    plain = stochastic_net()
    base, other = BASES["sgd"](plain.parameters()), Problem(plain)
    for t in range(4):
        torch.manual_seed(t)
        problem.step(opt, t + 1 if t else 0)
        torch.manual_seed(t)
        if t == 0:
            plain.load_state_dict(copy.deepcopy(model.state_dict()))
            base.load_state_dict(copy.deepcopy(opt.base.state_dict()))
            continue
        base.zero_grad()
        other.losses(t + 1).mean().backward()
        base.step()
        for left, right in zip(weights(model), weights(plain), strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_checkpoint_goes_on_to_the_bit(kind):
    model, opt, problem = new(kind, Adaptive(total_steps=STEPS), 0.25)
    for t in range(3):
        problem.step(opt, t)
    again, resumed, other = new(kind, Adaptive(total_steps=STEPS), 0.25)
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    for t in range(3, STEPS):
        problem.step(opt, t)
        other.step(resumed, t)
    assert same(weights(model), weights(again))


def test_all_rows_are_sam():
    model, opt, problem = new("hardest", Always(), 1.0)
    sam = mlp()
    reference, other = aesam.SAM(BASES["sgd"](sam.parameters()), sam, rho=RHO), Problem(sam)
    for t in range(3):
        problem.step(opt, t)
        other.step(reference, t)
    assert same(weights(model), weights(sam))


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_poisoned_second_pass_leaves_no_trace(kind):
    model, opt, problem = new(kind, Always(), 0.5)
    problem.step(opt, 0)
    home = weights(model)
    calls = []

    def losses(rows=None):
        calls.append(rows)
        spoiled = float("nan") if len(calls) == (2 if kind == "sub-batch" else 3) else 1.0
        return problem.losses(1, rows) * spoiled

    with pytest.warns(UserWarning, match="the update was skipped"):
        opt.step(losses)
    assert same(weights(model), home)
    assert opt.skipped_steps == 1


REFUSED = {
    "reuse": ({"policy": Always(), "between": Reuse()}, "needs the gradient of the whole batch"),
    "mix": ({"policy": Always(), "combine": Mix()}, "needs the gradient of the whole batch at w"),
    "never": ({"policy": Never()}, "is for the ascent, which Never"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_the_whole_gradient_is_refused_beside_a_sub_batch(case):
    options, said = REFUSED[case]
    model = mlp()
    with pytest.raises(ValueError, match=said):
        aesam.SharpnessAware(BASES["sgd"](model.parameters()), model, samples=SubBatch(), **options)


@pytest.mark.parametrize("share", [0.3, 1.0, 0.0, 2.0])
def test_a_share_that_no_stride_has_is_refused(share):
    with pytest.raises(ValueError, match="share must be"):
        SubBatch(share)


def test_a_plain_closure_is_told_what_to_give():
    model = nn.Linear(2, 1)
    opt = aesam.SubSAM(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(TypeError, match="it needs their losses"):
        opt.step(lambda: model(torch.ones(1, 2)).sum())
