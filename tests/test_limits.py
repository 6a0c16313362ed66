"""Where a method's dial is turned to its end, it is another method to the bit."""

import math

import pytest
import torch
from support.problems import BASES, METHODS, Problem, mlp, same, stochastic_net, weights
from torch import nn

import aesam
from aesam.parts.part import Memory
from aesam.parts.policies import Adaptive, Always, Never, Observation
from aesam.parts.samples import LargestRise


def trained(make, net=stochastic_net, base="sgd", steps=30, losses=False):
    model = net()
    problem = Problem(model)
    opt = make(BASES[base](model.parameters()), model)
    torch.manual_seed(7)
    for t in range(steps):
        if losses:
            opt.step(lambda rows=None, t=t: problem.losses(t, rows))
        else:
            problem.step(opt, t)
    return [*weights(model), *(b.clone() for b in model.buffers())]


@pytest.mark.parametrize("base", BASES)
def test_never_policy_is_the_base_optimizer_bit_for_bit(base):
    model = stochastic_net()
    problem, plain = Problem(model), BASES[base](model.parameters())
    torch.manual_seed(7)
    for t in range(30):
        plain.zero_grad()
        problem.losses(t).mean().backward()
        plain.step()
    wanted = [*weights(model), *model.buffers()]
    assert same(trained(METHODS["erm"], base=base), wanted)


@pytest.mark.parametrize("base", BASES)
def test_minus_infinity_is_sam_and_infinity_is_erm_bit_for_bit(base):
    def at(limit):
        return lambda b, m: aesam.AESAM(b, m, total_steps=9, lambda1=limit, lambda2=limit)

    with pytest.warns(UserWarning, match="past total_steps"):
        assert same(trained(at(-math.inf), base=base), trained(METHODS["sam"], base=base))
    with pytest.warns(UserWarning, match="past total_steps"):
        assert same(trained(at(math.inf), base=base), trained(METHODS["erm"], base=base))


def test_looksam_at_every_step_is_sam_bit_for_bit():
    every = trained(lambda b, m: aesam.LookSAM(b, m, k=1))
    assert same(every, trained(METHODS["sam"]))


def test_bernoulli_with_certainty_is_sam_and_with_none_is_erm_bit_for_bit():
    assert same(trained(lambda b, m: aesam.SSSAM(b, m, p=1.0)), trained(METHODS["sam"]))
    assert same(trained(lambda b, m: aesam.SSSAM(b, m, p=0.0)), trained(METHODS["erm"]))


def test_esam_with_everything_taking_part_is_sam_bit_for_bit():
    whole = trained(lambda b, m: aesam.ESAM(b, m, beta=1.0, gamma=1.0))
    assert same(whole, trained(METHODS["sam"]))
    by_losses = trained(lambda b, m: aesam.ESAM(b, m, beta=1.0, gamma=1.0), losses=True)
    assert same(by_losses, trained(METHODS["sam"], losses=True))


def test_esam_with_all_rows_makes_no_extra_forward():
    model, forwards = mlp(), []
    model.register_forward_hook(lambda *_: forwards.append(1))
    problem = Problem(model)
    opt = aesam.ESAM(BASES["sgd"](model.parameters()), model, gamma=1.0)
    opt.step(lambda rows=None: problem.losses(0, rows))
    assert len(forwards) == 2


def test_esam_selects_exactly_the_rows_whose_loss_rose_most():
    before = torch.zeros(10)
    after = torch.tensor([5.0, 1, 9, 3, 7, 0, 8, 2, 6, 4])
    assert LargestRise(0.3).rows(before, after, Memory(), None).tolist() == [2, 4, 6]
    assert LargestRise(0.01).rows(before, after, Memory(), None).tolist() == [2]
    assert len(LargestRise(0.25).rows(before, after, Memory(), None)) == max(1, round(0.25 * 10))


def test_zero_radius_is_erm_bit_for_bit():
    assert same(trained(lambda b, m: aesam.SAM(b, m, rho=0.0)), trained(METHODS["erm"]))


@pytest.mark.parametrize(("lambdas", "expected"), [((-1.0, 1.0), 0.50), ((0.0, 2.0), 0.20)])
def test_share_of_sam_on_normal_squared_norms_is_the_paper_s(lambdas, expected):
    total = 40_000
    policy = Adaptive(*lambdas, total_steps=total)
    state, fired = policy.start(), 0
    draws = 100.0 + torch.randn(total, generator=torch.Generator().manual_seed(0)).double()
    for t, x in enumerate(draws.tolist()):
        decision, state = policy.decide(Observation(t, x), state)
        fired += decision.use_sam
    assert fired / total == pytest.approx(expected, abs=0.02)


def test_always_and_never_ignore_what_they_see():
    for x in (0.0, 1e300):
        assert Always().decide(Observation(0, x), {})[0].use_sam
        assert not Never().decide(Observation(0, x), {})[0].use_sam


@pytest.mark.parametrize(
    "optimizer", ["Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
)
def test_every_torch_optimizer_is_itself_under_never(optimizer):
    ends = []
    for wrapped in (False, True):
        model = mlp()
        problem = Problem(model)
        base = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
        opt = aesam.SharpnessAware(base, model, policy=Never())
        for t in range(5):
            if wrapped:
                problem.step(opt, t)
            else:
                base.zero_grad()
                problem.losses(t).mean().backward()
                base.step()
        ends.append(weights(model))
    assert same(*ends)


def test_the_norm_of_many_small_tensors_and_a_large_one_is_of_all():
    """Small ones are joined where they are many; one that is large or sparse is not."""
    torch.manual_seed(0)
    small = [nn.Parameter(torch.randn(3, dtype=torch.float64)) for _ in range(200)]
    large = nn.Parameter(torch.randn(5000, dtype=torch.float64))
    table = nn.Embedding(50, 4, sparse=True, dtype=torch.float64)
    params = [*small, large, table.weight]
    opt = aesam.SAM(torch.optim.SGD(params, lr=0.1), rho=0.1)
    rows = torch.tensor([3, 7, 7])

    def closure():
        opt.zero_grad()
        loss = sum(p.square().sum() for p in (*small, large)) / 2 + table(rows).square().sum() / 2
        loss.backward()
        return loss

    whole = sum(float(p.detach().square().sum()) for p in (*small, large))
    looked_up = table.weight.detach()[[3, 7]] * torch.tensor([[1.0], [2.0]])
    opt.step(closure)
    assert opt.last_step.squared_norm == pytest.approx(whole + float(looked_up.square().sum()))
