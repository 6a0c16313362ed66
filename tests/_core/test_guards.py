"""The second pass leaves buffers and random state as the first one left them."""

import copy
import random

import numpy as np
import pytest
import torch
from support.problems import BASES, METHODS, Problem, mlp, same, stochastic_net, weights
from torch import nn

import aesam


@pytest.mark.parametrize("form", ["closure", "own passes"])
def test_batchnorm_counts_each_batch_once(form):
    model = stochastic_net()
    problem, single = Problem(model), copy.deepcopy(model)
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.0), model)
    for t in range(5):
        (problem.step if form == "closure" else problem.own_passes)(opt, t)
        single(problem.x[t])
    assert single[1].num_batches_tracked == 5
    assert same(list(model.buffers()), list(single.buffers()))


@pytest.mark.slow
def test_a_compiled_model_is_not_compiled_again_by_the_second_pass():
    net = stochastic_net()
    compiled = torch.compile(net, backend="eager")
    problem = Problem(compiled)
    opt = aesam.SAM(BASES["sgd"](compiled.parameters()), compiled)
    problem.train(opt, 2)
    with torch.compiler.set_stance("fail_on_recompile"):
        problem.train(opt, 3, start=2)
    assert net[1].num_batches_tracked == 5


@pytest.mark.slow
def test_a_compiled_model_is_the_model(matrix):
    ends = []
    for compiled in (False, True):
        net = stochastic_net()
        model = torch.compile(net, backend="aot_eager") if compiled else net
        problem = Problem(model)
        opt = aesam.LookSAM(BASES["sgd"](model.parameters()), model, k=2)
        torch.manual_seed(5)
        problem.train(opt, 6)
        ends.append([*weights(net), *net.buffers()])
    for left, right in zip(*ends, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
    matrix.right("plain PyTorch", "torch.compile of the model", within=1e-10)


def test_without_the_model_buffers_are_left_alone():
    model = stochastic_net()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()))
    problem.train(opt, 2)
    assert model[1].num_batches_tracked == 4


class Counter(nn.Module):
    """Buffers that a forward pass binds anew, creates and fills."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("later", None)

    def forward(self, x):
        self.calls = self.calls + 1
        self.later = torch.full((), 10.0) + self.calls
        if self.calls > 1 and "extra" not in self._buffers:
            self.register_buffer("extra", torch.ones(1))
        return x * self.w


def test_buffers_that_are_bound_anew_are_restored_too():
    model = Counter()
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), model)

    def closure():
        opt.zero_grad()
        loss = model(torch.ones(2)).sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert model.calls.item() == 1
    assert model.later.item() == 11
    assert "extra" not in model._buffers


def noise_of(model, opt, problem, t, form):
    """What dropout, Python and NumPy drew in each pass of a step, and the next numbers after."""
    drawn = []

    def losses(*_):
        mask = model[3](torch.ones(16).double())
        drawn.append((mask.tolist(), random.random(), float(np.random.rand())))
        return problem.losses(t)

    if form == "closure":

        def closure():
            opt.zero_grad()
            loss = losses().mean()
            loss.backward()
            return loss

        opt.step(closure)
    else:
        with opt.first_pass():
            losses().mean().backward()
        if opt.needs_second_pass():
            with opt.perturbed():
                losses().mean().backward()
        opt.step()
        opt.zero_grad()
    return drawn, (torch.rand(3).tolist(), random.random(), float(np.random.rand()))


@pytest.mark.parametrize("form", ["closure", "own passes"])
def test_pass_two_replays_dropout_and_then_goes_on_as_after_pass_one(form):
    results = {}
    for method in ("sam", "erm"):
        model = stochastic_net()
        problem = Problem(model)
        opt = METHODS[method](BASES["sgd"](model.parameters()), model)
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        results[method] = noise_of(model, opt, problem, 0, form)
    (first, second), after_sam = results["sam"]
    (only,), after_erm = results["erm"]
    assert first == second == only
    assert after_sam == after_erm


def test_without_first_pass_the_second_pass_draws_fresh_masks():
    model = stochastic_net()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    problem.losses(0).mean().backward()
    assert opt.needs_second_pass()
    before = torch.get_rng_state()
    with opt.perturbed():
        assert torch.equal(torch.get_rng_state(), before)
        problem.losses(0).mean().backward()


def test_both_forms_are_equal_to_the_bit_with_first_pass():
    ends = []
    for form in ("closure", "own passes"):
        model = stochastic_net()
        problem = Problem(model)
        opt = aesam.LookSAM(BASES["adamw"](model.parameters()), model, k=2)
        torch.manual_seed(5)
        for t in range(12):
            (problem.step if form == "closure" else problem.own_passes)(opt, t)
        ends.append([*weights(model), *model.buffers()])
    assert same(*ends)


@pytest.mark.parametrize("method", METHODS)
def test_micro_batches_are_the_whole_batch_in_both_forms(method, matrix):
    ends = []
    for form in ("whole", "closure", "own passes", "a first_pass each"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        torch.manual_seed(0)
        for p in model.parameters():
            nn.init.normal_(p)
        problem = Problem(model)
        options = {"gamma": 1.0} if method == "esam" else {}
        opt = METHODS[method](BASES["sgd"](model.parameters()), model, **options)
        for t in range(20):
            accumulated_step(problem, opt, t, form)
        ends.append(torch.cat([w.flatten() for w in weights(model)]))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-12)
    matrix.right("plain PyTorch", "accumulation, closure and own passes", within=1e-12)


def accumulated_step(problem, opt, t, form):
    halves = (slice(0, 4), slice(4, 8))

    def backward(rows):
        (problem.losses(t, rows).mean() / 2).backward()

    def closure():
        opt.zero_grad()
        for rows in halves:
            backward(rows)
        return torch.zeros(())

    if form == "whole":
        problem.step(opt, t)
        return
    if form == "closure":
        opt.step(closure)
        return
    opt.zero_grad()
    if form == "own passes":
        with opt.first_pass():
            for rows in halves:
                backward(rows)
    else:
        for rows in halves:
            with opt.first_pass():
                backward(rows)
    if opt.needs_second_pass():
        with opt.perturbed():
            for rows in halves:
                backward(rows)
    opt.step()


def test_micro_batches_with_a_first_pass_each_replay_their_masks():
    model = stochastic_net()
    problem, masks = Problem(model), []
    model[3].register_forward_hook(lambda _m, _i, out: masks.append(out == 0))
    opt = aesam.SAM(
        BASES["sgd"](
            model.parameters(),
        ),
        model,
        rho=0.0,
    )
    accumulated_step(problem, opt, 0, "a first_pass each")
    assert torch.equal(masks[0], masks[2])
    assert torch.equal(masks[1], masks[3])
    assert not torch.equal(masks[0], masks[1])


def test_an_expanded_buffer_is_no_obstacle():
    model = mlp()
    model.register_buffer("mask", torch.zeros(1, 8).expand(4, 8))
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    Problem(model).train(opt, 2)
    assert opt.last_step.index == 1


def test_an_abandoned_first_pass_does_not_lend_its_masks():
    model = mlp()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    with opt.first_pass():
        torch.rand(3)
    model.zero_grad()
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    with opt.first_pass():
        problem.losses(0).mean().backward()
    assert opt.needs_second_pass()
    with opt.perturbed():
        assert torch.equal(torch.rand(3), expected)
        problem.losses(0).mean().backward()
