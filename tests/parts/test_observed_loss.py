"""A policy that asks for the loss is given it, however the loop is written."""

import math

import pytest
import torch
from support.problems import AboveAverageLoss, Problem, mlp, same, weights

import aesam
from aesam import Decision, Policy
from aesam.parts.policies import Always


class Watching(Policy):
    """Keeps what it saw, for the tests to look at; never fires."""

    def __init__(self, asks=True):
        self.looks_at_loss = asks
        self.seen = []

    def decide(self, now, state):
        self.seen.append(now.loss)
        return Decision(False), state


def watched(asks=True):
    model = mlp()
    policy = Watching(asks)
    opt = aesam.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), model, policy=policy)
    return Problem(model), opt, policy.seen


def test_the_closure_s_loss_is_seen():
    problem, opt, seen = watched()
    expected = [problem.step(opt, t).item() for t in range(3)]
    assert seen == pytest.approx(expected, rel=1e-12)


def test_the_mean_of_per_sample_losses_is_seen():
    problem, opt, seen = watched()
    loss = opt.step(lambda rows=None: problem.losses(0, rows))
    assert seen == [pytest.approx(loss.item(), rel=1e-12)]


@pytest.mark.parametrize("kind", [float, torch.tensor, lambda x: torch.tensor([x])])
def test_a_loop_that_owns_its_passes_hands_it_over(kind):
    problem, opt, seen = watched()
    problem.losses(0).mean().backward()
    opt.needs_second_pass(loss=kind(0.25))
    assert seen == [0.25]


def test_it_is_none_where_the_caller_has_none_or_nobody_asks():
    problem, opt, seen = watched()
    problem.losses(0).mean().backward()
    opt.needs_second_pass()
    opt.step()

    def closure():
        opt.zero_grad()
        problem.losses(1).mean().backward()
        return {"loss": "of a trainer"}

    opt.step(closure)
    assert seen == [None, None]
    problem, opt, seen = watched(asks=False)
    problem.step(opt, 0)
    assert seen == [None]


def test_both_forms_decide_alike():
    ends = []
    for own_passes in (False, True):
        model = mlp()
        problem = Problem(model)
        base = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = aesam.SharpnessAware(base, model, policy=AboveAverageLoss(), rho=0.2)
        for t in range(20):
            problem.own_passes(opt, t) if own_passes else problem.step(opt, t)
        assert 0.0 < opt.sam_fraction < 1.0
        ends.append(weights(model))
    assert same(*ends)


def test_a_loss_that_is_not_finite_skips_the_step_and_leaves_no_trace():
    problem, opt, _ = watched()
    before = weights(problem.model)
    problem.losses(0).mean().backward()
    assert not opt.needs_second_pass(loss=math.nan)
    with pytest.warns(UserWarning, match="infinite or NaN"):
        opt.step()
    assert same(weights(problem.model), before)
    assert (opt.skipped_steps, opt.last_step) == (1, None)


@pytest.mark.parametrize(
    ("loss", "error", "words"),
    [
        ("low", TypeError, "loss must be a number or a tensor with one, got 'low'"),
        (torch.zeros(3), ValueError, r"loss must be one number, got a tensor of shape \(3,\)"),
    ],
)
def test_anything_else_is_refused(loss, error, words):
    problem, opt, _ = watched()
    problem.losses(0).mean().backward()
    with pytest.raises(error, match=words):
        opt.needs_second_pass(loss=loss)


def test_the_host_waits_once_for_norm_and_loss(monkeypatch):
    from aesam._core import tensors

    fetched = []
    real = tensors.to_host
    monkeypatch.setattr(tensors, "to_host", lambda v: fetched.append(len(v)) or real(v))
    problem, opt, _ = watched()
    problem.step(opt, 0)
    assert fetched == [3]  # and whether gradients were changed since


def test_a_closure_that_returns_nothing_is_fine_for_other_policies():
    model = mlp()
    opt = aesam.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), policy=Always())

    def closure():
        opt.zero_grad()
        Problem(model).losses(0).mean().backward()

    assert opt.step(closure) is None
    assert opt.sam_fraction == 1.0
