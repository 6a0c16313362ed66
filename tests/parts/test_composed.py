"""Policies made of others: each member decides on every step as it would alone."""

import copy
import math
import pickle
from dataclasses import dataclass

import pytest
import torch
from support.problems import BASES, AboveAverageLoss, Problem, mlp, same, weights
from support.saved import damaged, ours

import aesam
from aesam.parts.budget import Budget
from aesam.parts.composed import AllOf, AnyOf, Not, Warmup
from aesam.parts.policies import (
    Adaptive,
    Always,
    Bernoulli,
    Decision,
    Late,
    Never,
    Observation,
    Periodic,
    Policy,
    Scheduled,
)

STEPS = 40


def rising(step):
    return min(1.0, step / STEPS)


def assembled(policy, **options):
    model = mlp()
    opt = aesam.SharpnessAware(
        BASES["sgd"](model.parameters()), model, policy=policy, rho=0.1, **options
    )
    return model, Problem(model), opt


def trained(policy):
    """What each step saw (norm and loss), and whether it took a second gradient."""
    _, problem, opt = assembled(policy)
    seen = []
    for t in range(STEPS):
        loss = problem.step(opt, t).item()
        seen.append((opt.last_step.squared_norm, loss, opt.last_step.used_sam))
    return seen


def alone(policy, seen):
    """What a policy decides by itself on these norms and losses, with a generator of its own."""
    draws = torch.Generator().manual_seed(getattr(policy, "seed", 0))
    state, made = policy.start(), []
    for t, (x, loss, _) in enumerate(seen):
        decision, state = policy.decide(Observation(t, x, draws, loss), state)
        made.append(bool(decision.use_sam))
    return made


COIN, OTHER = Bernoulli(0.6, seed=3), Bernoulli(0.5, seed=8)
ADAPTIVE, BUDGET = Adaptive(total_steps=STEPS), Budget(0.4)
RISING = Scheduled(rising, seed=5)

COMPOSED = {
    "both": (COIN & ADAPTIVE, [COIN, ADAPTIVE], lambda t, c, a: c and a),
    "either": (BUDGET | Periodic(7), [BUDGET, Periodic(7)], lambda t, b, p: b or p),
    "not": (~BUDGET, [BUDGET], lambda t, b: not b),
    "two coins": (COIN & ~OTHER, [COIN, OTHER], lambda t, c, o: c and not o),
    "the same coin twice": (COIN & COIN, [COIN], lambda t, c: c),
    "nested": (
        (COIN | (OTHER & RISING)) & ~(ADAPTIVE & ~BUDGET),
        [COIN, OTHER, RISING, ADAPTIVE, BUDGET],
        lambda t, c, o, r, a, b: (c or (o and r)) and not (a and not b),
    ),
    "of the loss": (
        AboveAverageLoss() | COIN, [AboveAverageLoss(), COIN], lambda t, a, c: a or c,
    ),
    "after a warm-up": (Warmup(COIN | BUDGET, 9), [COIN, BUDGET],
                        lambda t, c, b: t >= 9 and (c or b)),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
def test_every_member_decides_on_every_step_as_it_would_alone(name):
    policy, members, rule = COMPOSED[name]
    seen = trained(policy)
    each = zip(*(alone(member, seen) for member in members), strict=True)
    expected = [rule(t, *wanted) for t, wanted in enumerate(each)]
    assert [fired for _, _, fired in seen] == expected
    assert 0 < sum(expected) < STEPS


@pytest.mark.parametrize("name", COMPOSED)
def test_going_on_from_a_checkpoint_is_not_stopping(name):
    policy, *_ = COMPOSED[name]
    model, problem, opt = assembled(policy)
    problem.train(opt, 17)
    kept = copy.deepcopy({"model": model.state_dict(), "opt": opt.state_dict()})
    problem.train(opt, 15, start=17)
    other_model, other_problem, other = assembled(policy)
    other_model.load_state_dict(kept["model"])
    other.load_state_dict(kept["opt"])
    other_problem.train(other, 15, start=17)
    assert same(weights(model), weights(other_model))
    assert ours(opt.state_dict()) == ours(other.state_dict())


def test_each_seed_has_a_generator_under_its_path():
    policy = (COIN | (Always() & OTHER)) & RISING
    assert policy.seeds() == {"0.0": 3, "0.1.1": 8, "1": 5}
    _, _, opt = assembled(policy)
    names = {"policy.0.0", "policy.0.1.1", "policy.1"}
    assert set(ours(opt.state_dict())["generators"]) == names
    _, _, opt = assembled(COIN)
    assert set(ours(opt.state_dict())["generators"]) == {"policy"}


def test_a_discarded_step_leaves_all_members_as_they_were():
    _, problem, opt = assembled(COIN & BUDGET | RISING)
    problem.train(opt, 5)
    kept = copy.deepcopy(ours(opt.state_dict()))
    problem.losses(5).mean().backward()
    opt.needs_second_pass()
    opt.zero_grad()
    problem.losses(5).mean().backward()
    opt.needs_second_pass()
    now = ours(opt.state_dict())
    assert (now["policy"], now["generators"]) == (kept["policy"], kept["generators"])


def test_a_member_s_other_setting_is_noticed_and_its_other_seed_is_not():
    _, problem, opt = assembled(Bernoulli(0.6, 1) & Periodic(2))
    problem.train(opt, 3)
    _, _, same_but_seed = assembled(Bernoulli(0.6, 2) & Periodic(2))
    same_but_seed.load_state_dict(opt.state_dict())  # a warning would be an error
    _, _, other = assembled(Bernoulli(0.6, 1) & Periodic(3))
    with pytest.warns(UserWarning, match=r"policy was saved with 1\.k=2; .* goes on with 1\.k=3"):
        other.load_state_dict(opt.state_dict())


def test_a_checkpoint_of_other_members_is_refused():
    _, problem, opt = assembled(Bernoulli(0.6) & Periodic(2))
    assert opt.parts.method.startswith("AllOf(Bernoulli, Periodic)/")
    for other in (Bernoulli(0.6) | Periodic(2), Bernoulli(0.6) & Always(), Bernoulli(0.6)):
        with pytest.raises(ValueError, match="the state dict is of another method"):
            assembled(other)[2].load_state_dict(opt.state_dict())


def test_a_member_s_state_that_no_step_leaves_is_refused():
    _, problem, opt = assembled(~(ADAPTIVE | BUDGET))
    problem.train(opt, 3)
    saved = opt.state_dict()
    keys = ours(saved)["policy"]["state"]
    assert set(keys) == {"0.0.mean", "0.0.variance", "0.1.mean", "0.1.spread", "0.1.quantile",
                         "0.1.fired"}  # fmt: skip
    bad = damaged(saved, ("text", "policy", "state", "0.1.fired"), 0.5)
    with pytest.raises(ValueError, match=r"policy\['state'\]: of member 0.*Budget: fired must be"):
        opt.load_state_dict(bad)


def test_members_share_the_length_of_the_training():
    policy = Adaptive(total_steps=30) & (Late() | Budget(0.2, late=0.5))
    assert policy.total_steps == 30
    assert not policy.needs_total_steps
    assert policy == Adaptive(total_steps=30) & (
        Late(total_steps=30) | Budget(0.2, late=0.5, total_steps=30)
    )
    with pytest.raises(ValueError, match=r"total_steps must be one number.*got \[20, 30\]"):
        Adaptive(total_steps=30) | Late(total_steps=20)
    assert not (Periodic(2) & Budget(0.2)).needs_total_steps
    assert (Periodic(2) & Budget(0.2)).with_total_steps(9) == Periodic(2) & Budget(0.2)


def test_a_length_that_was_left_out_is_told_later_or_by_the_checkpoint():
    _, problem, opt = assembled(Warmup(Adaptive() & ~Late(), 1))
    assert opt.needs_total_steps
    with pytest.raises(RuntimeError, match="total_steps must be given before the first decision"):
        problem.step(opt, 0)
    opt.set_total_steps(30)
    assert opt.policy == Warmup(Adaptive(total_steps=30) & ~Late(total_steps=30), 1)
    problem.train(opt, 3)
    _, problem, other = assembled(Warmup(Adaptive() & ~Late(), 1))
    other.load_state_dict(opt.state_dict())
    assert other.policy == opt.policy
    problem.train(other, 1)


def test_what_members_say_is_said_once():
    _, problem, opt = assembled(Adaptive(total_steps=1) & Adaptive(total_steps=1) | Periodic(2))
    with pytest.warns(UserWarning, match="past total_steps=1") as told:
        problem.train(opt, 4)
    assert len(told) == 1


def test_the_numbers_of_a_step_are_those_of_the_one_member_that_has_any():
    now = Observation(3, 4.0)
    alone, _ = ADAPTIVE.decide(now, ADAPTIVE.start())
    for policy in (ADAPTIVE & Always(), ~ADAPTIVE, Warmup(ADAPTIVE, 2)):
        made, _ = policy.decide(now, policy.start())
        assert (made.mean, made.std, made.threshold) == (alone.mean, alone.std, alone.threshold)
    both = ADAPTIVE | BUDGET
    made, _ = both.decide(now, both.start())
    assert (made.mean, made.std, made.threshold) == (None, None, None)


def test_what_never_fires_is_known_from_the_start():
    never = [Never() & Always(), Never() | Budget(0), Warmup(Never(), 3), Never() & ~Never()]
    assert all(policy.never_fires for policy in never)
    may = [Never() | Always(), ~Never(), Always() & Always(), Warmup(Always(), 3)]
    assert not any(policy.never_fires for policy in may)


def test_only_who_asks_for_the_loss_is_shown_it():
    @dataclass(frozen=True)
    class Blind(Policy):
        def decide(self, now, state):
            assert now.loss is None
            return Decision(True), state

    assert (Blind() & AboveAverageLoss()).looks_at_loss
    assert not (Blind() & Always()).looks_at_loss
    _, problem, opt = assembled(Blind() & AboveAverageLoss())
    problem.train(opt, 10)
    assert 0.0 < opt.sam_fraction < 1.0
    with pytest.raises(ValueError, match=r"replay=True cannot be combined with AllOf.* the loss"):
        assembled(Always() & AboveAverageLoss(), replay=True)


@pytest.mark.parametrize("steps", [0, 1, 5, 50])
def test_a_warm_up_ends_after_its_steps(steps):
    fired = [sam for _, _, sam in trained(Warmup(Always(), steps))]
    assert fired == [t >= steps for t in range(STEPS)]


def test_a_schedule_is_a_coin_whose_probability_is_its_function():
    draws = torch.Generator().manual_seed(5)
    drawn = torch.rand(STEPS, generator=draws, dtype=torch.float64).tolist()
    one_by_one = torch.Generator().manual_seed(5)
    assert drawn == [
        torch.rand(1, generator=one_by_one, dtype=torch.float64).item() for _ in range(STEPS)
    ]
    fired = [sam for _, _, sam in trained(RISING)]
    assert fired == [draw < rising(t) for t, draw in enumerate(drawn)]
    constant = [sam for _, _, sam in trained(Scheduled(lambda t: 0.6, seed=3))]
    assert constant == [sam for _, _, sam in trained(COIN)]


@pytest.mark.parametrize("value", [1.5, -0.1, math.nan, "half", None])
def test_a_schedule_that_returns_no_probability_is_refused_and_nothing_is_decided(value):
    _, problem, opt = assembled(Scheduled(lambda t: value if t == 2 else 0.5))
    problem.train(opt, 2)
    before = repr(opt.state_dict())
    with pytest.raises((TypeError, ValueError), match=r"schedule\(2\) must be a number between 0"):
        problem.step(opt, 2)
    assert repr(opt.state_dict()) == before


@pytest.mark.parametrize("policy", [COIN & ~OTHER, Warmup(BUDGET | ADAPTIVE, 3)])
def test_composed_policies_are_values(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert eval(repr(policy)) == policy
    with pytest.raises(AttributeError):
        policy.anything = 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Always() & True, "unsupported operand"),
        (lambda: Always() | Never, "unsupported operand"),
        (lambda: Always() and Never(), "use & for and"),
        (lambda: not Always(), "~ for not"),
        (lambda: AllOf((Always(), "x")), "policies must be of policies.*got 'x'"),
        (lambda: Not(Always), "policy must be of policies"),
        (lambda: Warmup(9, Always()), "policy must be of policies, such as .*got 9"),
        (lambda: Warmup(Always(), 0.5), "steps must be a whole number"),
        (lambda: Scheduled(0.5), r"schedule must be a function.*Bernoulli\(p\)"),
    ],
)
def test_what_is_no_policy_is_refused(make, words):
    with pytest.raises(TypeError, match=words):
        make()
    with pytest.raises(ValueError, match="policies must have at least one policy"):
        AnyOf(())


def test_a_member_s_answer_that_could_not_be_saved_is_refused_by_its_name():
    class Odd(Policy):
        def decide(self, now, state):
            return True

    _, problem, opt = assembled(Always() & Odd())
    with pytest.raises(TypeError, match=r"Odd\.decide must return"):
        problem.step(opt, 0)


def test_a_member_that_moves_weights_itself_is_refused():
    class Moving(Policy):
        def before_pass(self, base):
            return None

    with pytest.raises(TypeError, match="moves weights in before_pass"):
        Always() & Moving()
