"""Whatever goes wrong inside a step, the weights are where they belong and the next step works."""

import copy
import os
import signal
import warnings
from contextlib import contextmanager

import pytest
import torch
from support.problems import BASES, METHODS, Problem, mlp, same, stochastic_net, weights
from support.saved import ours

import aesam


def make(method="sam", net=mlp, base="sgd", **options):
    model = net()
    return model, Problem(model), METHODS[method](BASES[base](model.parameters()), model, **options)


def without_skips(opt):
    """The library's own part of the state, without the count of skipped steps."""
    saved = ours(opt.state_dict())
    del saved["counts"]["skipped"]
    return repr(saved)


# Exceptions -----------------------------------------------------------------------------------


def fails_in_pass_two(problem, opt, t, error):
    passes = []

    def closure():
        opt.zero_grad()
        passes.append(1)
        if len(passes) == 2:
            problem.losses(t, slice(0, 4)).mean().backward()  # half of a gradient is there
            raise error
        loss = problem.losses(t).mean()
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_exception_in_pass_two_restores_the_weights_to_the_bit(error, dtype):
    model, problem, opt = make("looksam", net=lambda: stochastic_net().to(dtype))
    problem = Problem(model)
    problem.train(opt, 3)
    before, buffers, kept = weights(model), copy.deepcopy(list(model.buffers())), without_skips(opt)
    with pytest.raises(type(error)):
        opt.step(fails_in_pass_two(problem, opt, 3, error))
    assert same(before, weights(model))
    assert model[1].num_batches_tracked == buffers[2] + 1  # pass 1 counts, pass 2 does not
    assert without_skips(opt) == kept
    assert opt.skipped_steps == 1
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match="closure"):
        opt.step()
    problem.step(opt, 3)
    assert opt.last_step.index == 3
    assert not same(before, weights(model))


def test_a_real_ctrl_c_in_pass_two_restores_the_weights():
    model, problem, opt = make()
    before, passes = weights(model), []

    def closure():
        opt.zero_grad()
        passes.append(1)
        if len(passes) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        loss = problem.losses(0).mean()
        loss.backward()
        return loss

    # A shell starts background jobs with Ctrl-C ignored; what is tested is what it does when not.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            opt.step(closure)
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert same(before, weights(model))
    problem.step(opt, 0)
    assert opt.last_step.index == 0


def test_a_ctrl_c_during_the_return_does_not_keep_the_weights_away(monkeypatch):
    model, problem, opt = make()
    before = weights(model)
    problem.losses(0).mean().backward()
    assert opt.needs_second_pass()
    restore, calls = aesam._core.guards.Displacement.restore, []

    def interrupted_once(self):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        restore(self)

    monkeypatch.setattr(aesam._core.guards.Displacement, "restore", interrupted_once)
    with pytest.raises(KeyboardInterrupt), opt.perturbed():
        assert not same(before, weights(model))
    assert same(before, weights(model))
    assert opt.skipped_steps == 1
    problem.step(opt, 0)


def test_an_exception_in_pass_one_leaves_nothing_behind():
    model, problem, opt = make()
    before = weights(model)

    def broken():
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        opt.step(broken)
    assert same(before, weights(model))
    problem.step(opt, 0)
    assert opt.last_step.index == 0
    assert opt.skipped_steps == 0


def test_weights_come_back_to_the_bit_in_every_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        w = torch.nn.Parameter(torch.randn(1000).to(dtype))
        w.data[:3] = torch.tensor([-0.0, 1e-4, 300.0])
        opt = aesam.SAM(torch.optim.SGD([w], lr=0.0), rho=100.0)
        before = w.detach().clone()
        for _ in range(5):
            w.grad = torch.randn(1000).to(dtype)
            assert opt.needs_second_pass()
            with opt.perturbed():
                assert not torch.equal(w, before)
                w.grad = torch.zeros_like(w)
            assert torch.equal(w.detach().view(torch.uint8), before.view(torch.uint8))
            opt.step()


# Numbers that are none ------------------------------------------------------------------------


@contextmanager
def spoilt(parameter, value, really=True):
    """One number of this parameter's gradient is another in a backward inside."""

    def spoil(gradient):
        gradient = gradient.clone()
        gradient.flatten()[1] = value
        return gradient

    handle = parameter.register_hook(spoil if really else lambda gradient: None)
    yield
    handle.remove()


def poisoned(problem, opt, t, broken_pass, value=float("nan")):
    """A closure whose gradient has one bad number, in one of its passes only."""
    passes = []

    def closure():
        opt.zero_grad()
        loss = problem.losses(t).mean()
        passes.append(1)
        with spoilt(next(problem.model.parameters()), value, len(passes) == broken_pass):
            loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("broken_pass", [1, 2])
@pytest.mark.parametrize("method", ["sam", "looksam", "ae-sam"])
def test_a_bad_number_in_one_gradient_skips_the_update_and_nothing_else(method, broken_pass, value):
    model, problem, opt = make(method)
    steps = 3 if method == "looksam" else 2
    problem.train(opt, steps)
    if method == "ae-sam" and broken_pass == 2:
        opt = aesam.AESAM(opt.base, model, total_steps=100, lambda1=-9, lambda2=-9)
    before, kept = weights(model), without_skips(opt)
    momentum = copy.deepcopy([s["momentum_buffer"] for s in opt.state.values()])
    with pytest.warns(UserWarning, match="infinite or NaN.*skipped"):
        loss = opt.step(poisoned(problem, opt, steps, broken_pass, value))
    assert torch.isfinite(loss)
    assert same(before, weights(model))
    assert same(momentum, [s["momentum_buffer"] for s in opt.state.values()])
    assert without_skips(opt) == kept
    assert opt.skipped_steps == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # warned once, counted every time
        opt.step(poisoned(problem, opt, steps, broken_pass, value))
        assert opt.skipped_steps == 2
        problem.train(opt, 5, start=steps)
    assert all(torch.isfinite(w).all() for w in weights(model))


def test_after_a_skipped_update_training_goes_on_as_if_it_had_not_been():
    ends = []
    for broken in (False, True):
        model, problem, opt = make("ae-looksam")
        problem.train(opt, 10)
        if broken:
            with pytest.warns(UserWarning, match="skipped"):
                opt.step(poisoned(problem, opt, 10, 1))
        problem.train(opt, 30, start=10)
        ends.append(weights(model))
    assert same(*ends)


@pytest.mark.parametrize("broken_pass", [1, 2])
def test_nonfinite_raise_raises_and_leaves_the_weights(broken_pass):
    model, problem, opt = make(nonfinite="raise")
    before = weights(model)
    with pytest.raises(aesam.NonFiniteGradient, match="weights are as before"):
        opt.step(poisoned(problem, opt, 0, broken_pass))
    assert same(before, weights(model))
    problem.step(opt, 0)
    assert opt.last_step.index == 0


def test_nonfinite_accepts_two_words():
    with pytest.raises(ValueError, match="'ignore'"):
        make(nonfinite="ignore")


@pytest.mark.parametrize("size", [1e25, 1e-30])
def test_finite_gradients_whose_squares_leave_float32_are_not_mistaken(size):
    w = torch.nn.Parameter(torch.zeros(2))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.0), rho=0.5)
    w.grad = torch.tensor([3.0, 4.0]) * size
    assert opt.needs_second_pass()
    with opt.perturbed():
        torch.testing.assert_close(w.detach(), torch.tensor([0.3, 0.4]))
        w.grad = torch.tensor([3.0, 4.0]) * size
    opt.step()
    assert opt.last_step.squared_norm == pytest.approx((5 * size) ** 2, rel=1e-5)


# Zero -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_a_zero_gradient_makes_no_nan(method, normalize):
    model, problem, opt = make(method, normalize=normalize)
    problem.train(opt, 4)
    before = weights(model)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = METHODS[method](plain, model, normalize=normalize)
    for _ in range(4):
        opt.step(lambda rows=None: 0.0 * problem.losses(0, rows))
    assert same(before, weights(model))
    assert opt.last_step.squared_norm == 0.0


def test_a_zero_gradient_keeps_the_old_direction_of_looksam():
    model, problem, opt = make("looksam", k=1)
    problem.step(opt, 0)
    kept = copy.deepcopy(ours(opt.state_dict())["between"])
    opt.step(lambda rows=None: 0.0 * problem.losses(0, rows))
    assert repr(ours(opt.state_dict())["between"]) == repr(kept)


def test_a_second_gradient_parallel_to_the_first_leaves_nothing_to_reuse():
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    opt = aesam.LookSAM(torch.optim.SGD([w], lr=0.1), k=2)

    def closure():
        opt.zero_grad()
        loss = w.square().sum() / 2  # the gradient is w, at w + ε it is parallel to w
        loss.backward()
        return loss

    opt.step(closure)
    assert ours(opt.state_dict())["between"]["tensors"] == {}
    before = w.detach().clone()
    opt.step(closure)
    assert torch.equal(w.detach(), before - 0.1 * before)


def test_a_loss_of_exactly_zero_is_a_loss():
    w = torch.nn.Parameter(torch.tensor([0.0]))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.1))

    def closure():
        opt.zero_grad()
        loss = (w * torch.tensor([2.0])).sum()
        loss.backward()
        return loss.item()

    assert opt.step(closure) == 0.0
    assert w.item() == pytest.approx(-0.2)


def test_an_error_in_a_hook_or_in_the_base_counts_as_a_skipped_step():
    model = mlp()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)

    def refuse(*_):
        raise ZeroDivisionError

    handle = opt.register_step_pre_hook(refuse)
    with pytest.raises(ZeroDivisionError):
        problem.step(opt, 0)
    handle.remove()
    assert opt.skipped_steps == 1
    problem.step(opt, 0)
    assert opt.last_step.index == 0


def test_an_empty_closure_after_a_decision_takes_it_where_a_parameter_has_no_gradient():
    model = mlp()
    unused = torch.nn.Parameter(torch.ones(2))
    base = torch.optim.SGD([*model.parameters(), unused], lr=0.1)
    opt, problem = METHODS["erm"](base, model), Problem(model)
    problem.losses(0).mean().backward()
    assert not opt.needs_second_pass()
    opt.step(lambda: None)
    assert opt.last_step.index == 0
