"""The length of the training, given, left out, told by a trainer, or taken from a checkpoint."""

import copy
import pickle
from functools import partial

import lightning as L
import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.problems import BASES, Problem, mlp, same, weights
from support.saved import ours

import aesam
from aesam.parts.policies import Decision, Policy

LEFT_OUT = ["ae-sam", "ae-looksam", "matched-sam", "inverted-looksam", "late-sam"]


def new(total_steps=None, name="ae-looksam"):
    model = mlp()
    given = {} if total_steps is None else {"total_steps": total_steps}
    opt = aesam.create(name, model, optimizer=BASES["sgd"](model.parameters()), **given)
    return Problem(model), opt


@pytest.mark.parametrize("name", LEFT_OUT)
def test_told_later_is_the_same_as_given(name):
    ends = []
    for given in (True, False):
        problem, opt = new(12 if given else None, name)
        assert opt.needs_total_steps != given
        if not given:
            opt.set_total_steps(12)
        assert not opt.needs_total_steps
        problem.train(opt, 12)
        ends.append([*weights(problem.model), opt.sam_fraction])
    assert same(ends[0][:-1], ends[1][:-1])
    assert ends[0][-1] == ends[1][-1]


@pytest.mark.parametrize("name", LEFT_OUT)
def test_the_first_decision_refuses_where_nobody_said(name):
    problem, opt = new(None, name)
    before = weights(problem.model)
    with pytest.raises(RuntimeError, match=r"total_steps must be given.*opt\.set_total_steps"):
        problem.step(opt, 0)
    problem.losses(0).mean().backward()
    with pytest.raises(RuntimeError, match="Nothing was decided"):
        opt.needs_second_pass()
    assert same(before, weights(problem.model))
    assert opt.last_step is None
    opt.set_total_steps(5)
    problem.step(opt, 0)
    assert opt.last_step.index == 0


def test_it_may_be_changed_until_a_step_is_decided():
    problem, opt = new(10)
    opt.set_total_steps(20)
    assert opt.policy.total_steps == 20
    problem.step(opt, 0)
    opt.set_total_steps(20)  # nothing new
    with pytest.raises(RuntimeError, match=r"set_total_steps\(30\) after the first step.*=20"):
        opt.set_total_steps(30)
    assert opt.policy.total_steps == 20
    for wrong, error in ((0, ValueError), (None, TypeError), (2.5, TypeError)):
        with pytest.raises(error, match="total_steps must be a whole number >= 1"):
            opt.set_total_steps(wrong)
    with opt.first_pass(), pytest.raises(RuntimeError, match="inside `with opt.first_pass"):
        opt.set_total_steps(20)


@pytest.mark.parametrize("make", [aesam.SAM, partial(aesam.AESAM, budget=0.2)])
def test_methods_that_do_not_ask_do_not_mind(make):
    model = mlp()
    opt = make(BASES["sgd"](model.parameters()), model)
    policy = opt.policy
    for _ in range(2):
        assert not opt.needs_total_steps
        opt.set_total_steps(20)
        assert opt.policy is policy
        Problem(model).train(opt, 2)


def test_a_policy_that_cannot_be_told_says_what_to_define():
    class Short(Policy):
        def __init__(self):
            self.total_steps = None

        def decide(self, now, state):
            return Decision(now.step < self._known_total_steps()), state

    opt = aesam.SharpnessAware(BASES["sgd"](mlp().parameters()), policy=Short())
    assert opt.needs_total_steps
    with pytest.raises(TypeError, match="Short must define with_total_steps"):
        opt.set_total_steps(3)


def test_a_checkpoint_s_length_holds_until_somebody_says_another():
    problem, opt = new(16)
    problem.train(opt, 6)
    saved = copy.deepcopy((problem.model.state_dict(), opt.state_dict()))
    problem.train(opt, 6, start=6)
    ends = weights(problem.model)
    for told in (False, True):
        again, other = new()
        again.model.load_state_dict(saved[0])
        other.load_state_dict(copy.deepcopy(saved[1]))
        assert other.needs_total_steps
        assert other.policy.total_steps == 16
        if told:
            other.set_total_steps(16)
        again.train(other, 6, start=6)
        assert not other.needs_total_steps
        assert same(ends, weights(again.model))
    _, longer = new()
    longer.load_state_dict(copy.deepcopy(saved[1]))
    with pytest.warns(UserWarning, match="saved with total_steps=16.*goes on with total_steps=32"):
        longer.set_total_steps(32)
    assert longer.policy.total_steps == 32
    _, given = new(32)
    with pytest.warns(UserWarning, match="saved with total_steps=16"):
        given.load_state_dict(copy.deepcopy(saved[1]))
    assert given.policy.total_steps == 32


def test_nothing_is_said_of_a_checkpoint_from_before_it_was_told():
    _, opt = new()
    saved = opt.state_dict()
    assert ours(saved)["policy"]["settings"]["total_steps"] is None
    opt.load_state_dict(copy.deepcopy(saved))
    assert opt.needs_total_steps
    opt.set_total_steps(7)
    opt.load_state_dict(saved)
    assert opt.policy.total_steps == 7


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))])
def test_copies_know_whether_they_were_told(copied):
    _, opt = new()
    assert copied(opt).needs_total_steps
    opt.set_total_steps(9)
    again = copied(opt)
    assert not again.needs_total_steps
    assert again.policy.total_steps == 9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*")
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("stack", ["Fabric", "Lightning", "Accelerate"])
def test_wrappers_and_what_they_wrap_are_told_alike(stack, inside):
    problem, opt = new()
    if stack == "Fabric":
        fabric = L.Fabric(accelerator="cpu", devices=1)
        _, wrapped = fabric.setup(problem.model, opt)
    elif stack == "Lightning":
        wrapped = L.pytorch.core.optimizer.LightningOptimizer(opt)
    else:
        wrapped = Accelerator(cpu=True).prepare(opt)
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        inside = True  # Accelerate's hands on what an optimizer of torch has, nothing else
    (aesam.unwrap(wrapped) if inside else wrapped).set_total_steps(11)
    assert opt.policy.total_steps == 11
    problem.step(opt, 0)
    if stack != "Accelerate":
        assert wrapped.policy.total_steps == wrapped.parts.policy.total_steps == 11
