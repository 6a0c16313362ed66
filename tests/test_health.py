"""Whether second gradients do anything, told from what their steps saw."""

import math
import warnings

import pytest
import torch
from support.problems import BASES, METHODS, Problem, mlp, same, weights

import aesam
from aesam._core import tensors
from aesam._core.health import Health
from aesam.parts.ascents import Ascent
from aesam.parts.combine import Mix
from aesam.parts.part import Direction
from aesam.parts.policies import Always, Periodic
from aesam.parts.samples import SubBatch

STEPS, RHO = 3, 0.2


class WithLoss(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return (self.net(x) - y).square().sum(1).mean() / 2


class Downhill(Ascent):
    def direction(self, gradient, memory, generator):
        down = [-g for g in gradient.values]
        length = gradient.norm * gradient.scale
        return Direction(gradient.params, down, gradient.radii, length, gradient.scale)


def literal(model, problem, t):
    """Rise, cosine and bend of one step, written out; the model is left as it was."""
    params, home = list(model.parameters()), weights(model)
    loss = problem.losses(t).mean()
    g = torch.cat([x.flatten() for x in torch.autograd.grad(loss, params)])
    with torch.no_grad():
        at = 0
        for p in params:
            p.add_(RHO * g[at : at + p.numel()].view_as(p) / g.norm())
            at += p.numel()
    away = problem.losses(t).mean()
    g_s = torch.cat([x.flatten() for x in torch.autograd.grad(away, params)])
    with torch.no_grad():
        for p, w in zip(params, home, strict=True):
            p.copy_(w)
    cosine = g @ g_s / (g.norm() * g_s.norm())
    bend = (g_s - (g @ g_s) / (g @ g) * g).norm() / g.norm()
    return ((away - loss) / loss).item(), cosine.item(), bend.item()


def told_by_hand(problem, opt, t):
    opt.zero_grad()
    with opt.first_pass():
        loss = problem.losses(t).mean()
        loss.backward()
    if opt.needs_second_pass(loss=loss):
        with opt.perturbed() as at:
            at.loss = problem.losses(t).mean()
            at.loss.backward()
    opt.step()


FORMS = {"closure": lambda problem, opt, t: problem.step(opt, t), "by hand": told_by_hand}


@pytest.mark.parametrize("combine", [None, Mix(0.7)], ids=["replace", "mix"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_seen_is_what_happened(form, combine):
    model = mlp()
    opt = aesam.SharpnessAware(
        BASES["sgd"](model.parameters()), model, policy=Always(), combine=combine, rho=RHO
    )
    problem, found = Problem(model), []
    for t in range(2):  # the first two are looked at closely
        found.append(literal(model, problem, t))
        FORMS[form](problem, opt, t)
    seen = opt.health()
    means = [sum(each) / 2 for each in zip(*found, strict=True)]
    assert [seen.rise, seen.cosine, seen.bend] == pytest.approx(means, rel=1e-9)
    assert seen.share == 1.0
    assert 0.0 < seen.time_share <= 1.0
    assert seen.seconds > 0.0
    assert str(seen) == seen.verdict
    assert f"the loss rises by {100 * means[0]:.2g} % at w + ε" in seen.verdict


@pytest.mark.parametrize(
    ("rise", "told"),
    [(0.00012, "0.012 %"), (0.994, "99 %"), (0.996, "100 %"), (1.12, "112 %"), (34.5, "3450 %")],
)
def test_a_rise_is_told_in_plain_digits(rise, told):
    seen = Health(rise, None, None, share=1.0, seconds=1.0, time_share=0.5)
    assert f"the loss rises by {told} at w + ε" in seen.verdict


def test_a_step_tells_what_it_saw_itself():
    model = mlp()
    opt = aesam.LookSAM(BASES["sgd"](model.parameters()), model, k=2, rho=RHO)
    problem = Problem(model)
    expected = literal(model, problem, 0)
    problem.step(opt, 0)
    told = opt.last_step
    assert [told.rise, told.cosine, told.bend] == pytest.approx(expected, rel=1e-9)
    assert told.seconds > 0.0
    problem.step(opt, 1)
    told = opt.last_step
    assert [told.rise, told.cosine, told.bend, told.seconds] == [None] * 4


def test_a_training_that_goes_on_looks_at_the_steps_that_it_would_have():
    seen = []
    for cut in (None, 3):
        model = mlp()
        opt, problem = aesam.SAM(BASES["sgd"](model.parameters()), model, rho=RHO), Problem(model)
        seen.append([])
        for t in range(9):
            if t == cut:
                saved, opt = opt.state_dict(), aesam.SAM(BASES["sgd"](model.parameters()), model)
                opt.load_state_dict(saved)
                assert opt.health().verdict == "no second gradient was taken yet"
            problem.step(opt, t)
            seen[-1].append(opt.last_step.cosine)
    assert seen[0] == seen[1]
    assert [t + 1 for t, cosine in enumerate(seen[0]) if cosine is not None] == [1, 2, 4, 8]


@pytest.mark.parametrize("replay", [False, True], ids=["losses", "bare"])
def test_a_pass_at_w_is_none_that_was_seen(replay):
    """A sub-batch's step runs on all rows whether its policy fires or not."""
    net = mlp()
    problem, model = Problem(net), WithLoss(net)
    base, samples = BASES["sgd"](model.parameters()), SubBatch(0.5)
    policy = ~Periodic(2)
    opt = aesam.SharpnessAware(base, model, policy=policy, samples=samples, replay=replay)
    found, angles = [], []
    for t in range(8):
        if replay:
            opt.zero_grad()
            model(problem.x[t], problem.y[t]).backward()
            opt.step()
        else:
            opt.step(lambda rows=None, t=t: problem.losses(t, rows))
        found.append((opt.last_step.used_sam, opt.last_step.seconds is not None))
        angles += [t] * (opt.last_step.cosine is not None)
        if t == 0:
            assert str(opt.health()) == "no second gradient was taken yet"
    assert found == [(False, False), (True, True)] * 4
    assert angles == [1, 3, 7]  # of the first, second and fourth that was taken


def test_without_losses_the_angle_tells():
    model = mlp()
    opt, problem = aesam.SAM(BASES["sgd"](model.parameters()), model, rho=RHO), Problem(model)
    for t in range(STEPS):
        problem.own_passes(opt, t)
    seen = opt.health()
    assert seen.rise is None
    assert 0.0 < seen.cosine < 1.0
    assert f"differ (cosine {seen.cosine:.3f})" in seen.verdict


def test_losses_of_other_rows_are_not_compared():
    model = mlp()
    opt, problem = aesam.ESAM(BASES["sgd"](model.parameters()), model), Problem(model)
    problem.step(opt, 0)
    assert opt.health().rise is None


@pytest.mark.parametrize("method", METHODS)
def test_looking_changes_nothing_of_the_training(method, monkeypatch):
    trained = []
    for looks in (True, False):
        monkeypatch.setattr("aesam._core.health.Sightings.wants_angle", looks)
        model = mlp()
        opt, problem = METHODS[method](BASES["adamw"](model.parameters()), model), Problem(model)
        problem.train(opt, 6)
        trained.append(weights(model))
    assert same(*trained)


def test_nothing_is_waited_for(monkeypatch):
    """Whatever is looked at comes with a transfer that happens anyway."""
    counts = []
    for looks in (True, False):
        monkeypatch.setattr("aesam._core.health.Sightings.wants_angle", looks)
        model = mlp()
        opt, problem = aesam.SAM(BASES["sgd"](model.parameters()), model), Problem(model)
        transfers = []
        found = tensors.to_host
        with monkeypatch.context() as patch:
            patch.setattr(tensors, "to_host", lambda v, t=transfers, f=found: t.append(1) or f(v))
            problem.train(opt, 4)
            opt.health()
        counts.append(len(transfers))
    assert counts[0] == counts[1] == 8


def train(opt, model, steps):
    problem = Problem(model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        problem.train(opt, steps)
    return [str(w.message) for w in said]


def test_an_ascent_that_descends_is_told_once():
    model = mlp()
    base = torch.optim.SGD(model.parameters(), lr=1e-3)
    opt = aesam.SharpnessAware(base, model, policy=Always(), ascent=Downhill(), rho=RHO)
    (said,) = train(opt, model, 60)
    assert "at w + ε: the ascent descends" in said
    assert opt.health().rise < 0.0
    assert "the loss falls by" in opt.health().verdict


def test_a_radius_that_does_nothing_is_told_once():
    model = mlp()
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=1e-3), model, rho=1e-7)
    (said,) = train(opt, model, 60)
    assert "ρ is too small to change anything" in said
    assert opt.health().cosine > 1 - 1e-9


def test_a_radius_of_zero_was_meant():
    model = mlp()
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=1e-3), model, rho=0.0)
    assert train(opt, model, 40) == []


def test_a_usual_training_says_nothing():
    model = mlp()
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=1e-2), model, rho=0.05)
    assert train(opt, model, 60) == []


def test_a_skipped_step_was_not_seen():
    model = mlp()
    opt, problem = aesam.SAM(BASES["sgd"](model.parameters()), model), Problem(model)
    calls = []

    def closure():
        opt.zero_grad()
        calls.append(1)
        loss = problem.losses(0).mean() * (math.nan if len(calls) == 2 else 1.0)
        loss.backward()
        return loss

    with pytest.warns(UserWarning, match="skipped"):
        opt.step(closure)
    assert opt.health().rise is None
    assert opt.health().verdict == "no second gradient was taken yet"


def test_loggers_are_told():
    model = mlp()
    opt, problem = aesam.SAM(BASES["sgd"](model.parameters()), model, rho=RHO), Problem(model)
    problem.train(opt, STEPS)
    told, seen = aesam.metrics(opt), opt.health()
    assert told["percent_rise"] == 100.0 * seen.rise
    assert told["cosine"] == seen.cosine
    assert told["bend"] == seen.bend
    assert told["percent_time"] == 100.0 * seen.time_share
    erm = aesam.ERM(BASES["sgd"](model.parameters()), model)
    assert "cosine" not in aesam.metrics(erm)
