"""Any order of calls works as documented or raises a clear error; weights are never left moved."""

import copy

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.problems import BASES, METHODS, Problem, mlp, same, weights
from support.saved import ours

import aesam

ANY_METHOD = st.sampled_from([m for m in METHODS if m != "esam"])


class Passes(RuleBasedStateMachine):
    """A user who calls everything in every order, beside a model of what is allowed."""

    @initialize(method=ANY_METHOD)
    def start(self, method):
        self.model = mlp()
        self.problem = Problem(self.model)
        self.opt = METHODS[method](BASES["sgd"](self.model.parameters()), self.model)
        self.expected = weights(self.model)
        self.state = "idle"  # idle, ready, second (pass needed), bad (gradient not finite)
        self.steps = self.skipped = self.t = 0

    def discard(self):
        self.skipped += self.state != "idle"
        self.state = "idle"

    def backward(self, bad=False):
        self.t += 1
        first = next(self.model.parameters())
        handle = first.register_hook(lambda g: torch.full_like(g, float("nan")) if bad else None)
        self.problem.losses(self.t).mean().backward()
        handle.remove()

    @rule(enter_first_pass=st.booleans(), bad=st.booleans())
    def decide(self, enter_first_pass, bad):
        self.zero_grad()
        if enter_first_pass:
            with self.opt.first_pass():
                self.discard()
                self.backward(bad)
        else:
            self.backward(bad)
        self.discard()
        needed = self.opt.needs_second_pass()
        self.state = "bad" if bad else "second" if needed else "ready"
        assert not (bad and needed)

    @rule(outcome=st.sampled_from(["good", "bad", "raise"]))
    def second_pass(self, outcome):
        if self.state != "second":
            with pytest.raises(RuntimeError, match="perturbed"), self.opt.perturbed():
                pytest.fail("entered")
            return
        try:
            with self.opt.perturbed():
                assert not same(self.expected, weights(self.model))
                self.refuses_everything_inside("perturbed")
                self.problem.losses(self.t).mean().backward()
                if outcome == "bad":
                    next(self.model.parameters()).grad.fill_(float("inf"))
                if outcome == "raise":
                    raise KeyError("from the user's code")
        except KeyError:
            self.discard()
        else:
            self.state = "bad" if outcome == "bad" else "ready"

    def refuses_everything_inside(self, block):
        for call in (self.opt.step, self.opt.needs_second_pass, self.opt.state_dict):
            with pytest.raises(RuntimeError, match=block):
                call()
        for context in (self.opt.perturbed, self.opt.first_pass):
            with pytest.raises(RuntimeError, match=block), context():
                pytest.fail("entered")
        with pytest.raises(RuntimeError, match=block):
            copy.deepcopy(self.opt)
        with pytest.raises(RuntimeError, match=block):
            self.opt.load_state_dict({})

    @rule()
    def step(self):
        if self.state == "idle":
            with pytest.raises(RuntimeError, match="closure"):
                self.opt.step()
        elif self.state == "second":
            with pytest.raises(RuntimeError, match="perturbed"):
                self.opt.step()
        elif self.state == "bad":
            if self.opt._ledger.warned:
                self.opt.step()
            else:
                with pytest.warns(UserWarning, match="skipped"):
                    self.opt.step()
            self.discard()
        else:
            self.opt.step()
            assert not same(self.expected, weights(self.model))
            self.expected, self.state = weights(self.model), "idle"
            self.steps += 1

    @rule(fails=st.booleans())
    def whole_step(self, fails):
        decided = self.state == "ready"
        self.discard()
        closure = self.problem.closure(self.opt, self.t)
        if fails:
            with pytest.raises(ZeroDivisionError):
                self.opt.step(lambda: 1 / 0)
            return
        if decided:
            with pytest.raises(RuntimeError, match="the closure changed the gradients"):
                self.opt.step(closure)
            return
        self.opt.step(closure)
        self.expected = weights(self.model)
        self.steps += 1

    @rule()
    def first_pass_alone(self):
        with self.opt.first_pass():
            self.discard()
            with pytest.raises(RuntimeError, match="first_pass"):
                self.opt.step()
            with pytest.raises(RuntimeError, match="first_pass"):
                self.opt.needs_second_pass()

    @rule()
    def zero_grad(self):
        """A decision whose direction is cleared is none."""
        self.opt.zero_grad()
        if self.state != "second":
            self.discard()

    @precondition(lambda self: self.state == "idle")
    @rule()
    def save_and_load(self):
        self.opt.load_state_dict(copy.deepcopy(self.opt.state_dict()))

    @precondition(lambda self: self.state == "idle")
    @rule()
    def go_on_with_a_copy(self):
        self.model, self.opt = copy.deepcopy((self.model, self.opt))
        self.problem = Problem(self.model)

    @invariant()
    def weights_are_where_the_last_step_left_them(self):
        if hasattr(self, "opt"):
            assert same(self.expected, weights(self.model))
            assert self.opt.skipped_steps == self.skipped
            assert ours(self.opt.state_dict())["step"] == self.steps
            record = self.opt.last_step
            assert record is None or record.index == self.steps - 1


Passes.TestCase.settings = settings(max_examples=200, stateful_step_count=25)
TestPasses = pytest.mark.slow(Passes.TestCase)


def test_a_decision_that_is_not_taken_is_a_skipped_step():
    model = mlp()
    opt = METHODS["sam"](BASES["sgd"](model.parameters()), model)
    Problem(model).losses(0).mean().backward()
    for count in range(3):
        assert opt.needs_second_pass()
        assert opt.skipped_steps == count
    assert ours(opt.state_dict())["step"] == 0


def test_gradients_are_cleared_inside_perturbed():
    model = mlp()
    problem = Problem(model)
    opt = METHODS["sam"](BASES["sgd"](model.parameters()), model)
    problem.losses(0).mean().backward()
    opt.needs_second_pass()
    with opt.perturbed():
        assert all(p.grad is None for p in model.parameters())
        problem.losses(0).mean().backward()


def test_a_second_pass_without_a_backward_is_an_error_and_leaves_the_weights():
    model = mlp()
    problem = Problem(model)
    opt = METHODS["sam"](BASES["sgd"](model.parameters()), model)
    problem.losses(0).mean().backward()
    before = weights(model)
    assert opt.needs_second_pass()
    with pytest.raises(RuntimeError, match=r"no parameter has a gradient after perturbed\(\)"):
        with opt.perturbed():
            problem.losses(0).mean()
    assert same(before, weights(model))
    assert opt.skipped_steps == 1
    with pytest.raises(RuntimeError, match="nothing to apply"):
        opt.step()
    problem.train(opt, 1)
    assert opt.last_step.index == 0


def test_the_direction_is_in_grad_after_each_decision():
    model = mlp()
    problem = Problem(model)
    opt = METHODS["looksam"](torch.optim.SGD(model.parameters(), lr=0.1), model, k=2)
    problem.step(opt, 0)
    opt.zero_grad()
    problem.losses(1).mean().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    assert not opt.needs_second_pass()
    before = weights(model)
    direction = [p.grad.clone() for p in model.parameters()]
    assert not same(plain, direction)
    opt.step()
    for w, b, d in zip(weights(model), before, direction, strict=True):
        torch.testing.assert_close(w, b - 0.1 * d)


def test_gradients_put_in_place_of_those_decided_on_are_noticed():
    model = mlp()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    Problem(model).losses(0).mean().backward()
    assert opt.needs_second_pass()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match="gradients were changed"), opt.perturbed():
        pass
