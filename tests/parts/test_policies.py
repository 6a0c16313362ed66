"""The policies, over anything that hypothesis thinks of."""

import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.problems import BASES, Problem, mlp
from support.saved import ours

import aesam
from aesam.parts.policies import (
    Adaptive,
    Always,
    Bernoulli,
    Decision,
    Never,
    Observation,
    Periodic,
    Policy,
)

squared_norms = st.floats(0.0, 1e300)
runs = st.lists(squared_norms, min_size=1, max_size=40)
deltas = st.floats(0.01, 0.99)
lambdas = st.tuples(st.floats(-5, 5), st.floats(-5, 5)).map(sorted)


def decisions(policy, xs, start=None, first=0):
    state, made = start or policy.start(), []
    for t, x in enumerate(xs, first):
        decision, state = policy.decide(Observation(t, x), state)
        made.append(decision)
    return made, state


@given(runs, lambdas, deltas)
def test_adaptive_state_stays_finite_whatever_it_sees(xs, bounds, delta):
    policy = Adaptive(*bounds, delta, total_steps=20)
    _, state = decisions(policy, xs)
    assert all(math.isfinite(v) for v in state.values())
    assert state["variance"] > 0 or policy.initial_variance * delta ** len(xs) < 1e-300


@given(runs, lambdas, deltas)
def test_adaptive_follows_its_equations(xs, bounds, delta):
    xs = [min(x, 1e100) for x in xs]
    low, high = bounds
    policy = Adaptive(low, high, delta, total_steps=20)
    made, _ = decisions(policy, xs)
    mean, variance = 0.0, math.exp(-10)
    for t, (x, decision) in enumerate(zip(xs, made, strict=True)):
        mean = delta * mean + (1 - delta) * x
        variance = delta * variance + (1 - delta) * (x - mean) ** 2
        c = low if t >= 20 else t / 20 * low + (1 - t / 20) * high
        assert decision.mean == pytest.approx(mean, rel=1e-12)
        assert decision.std == pytest.approx(math.sqrt(variance), rel=1e-12)
        assert decision.threshold == pytest.approx(
            mean + c * math.sqrt(variance), rel=1e-9, abs=1e-9 * mean
        )
        assert decision.use_sam == (x >= decision.threshold)


@given(runs, lambdas, st.integers(1, 30))
def test_adaptive_has_no_memory_but_its_state(xs, bounds, cut):
    policy = Adaptive(*bounds, total_steps=50)
    whole, end = decisions(policy, xs)
    head, middle = decisions(policy, xs[:cut])
    tail, resumed_end = decisions(policy, xs[cut:], middle, first=min(cut, len(xs)))
    assert (head + tail, resumed_end) == (whole, end)


@given(runs, lambdas)
def test_deciding_leaves_the_given_state_alone(xs, bounds):
    policy = Adaptive(*bounds, total_steps=50)
    _, state = decisions(policy, xs)
    kept = dict(state)
    policy.decide(Observation(3, 1e6), state)
    assert state == kept


@given(st.floats(-10, 10), st.floats(-10, 10), st.integers(1, 10**6), st.data())
def test_threshold_factor_falls_from_lambda2_to_lambda1(a, b, total, data):
    low, high = min(a, b), max(a, b)
    policy = Adaptive(low, high, total_steps=total)
    step = data.draw(st.integers(0, 2 * total))
    assert policy.threshold_factor(0) == high
    assert policy.threshold_factor(total) == low
    assert low - 1e-9 <= policy.threshold_factor(step) <= high + 1e-9
    assert policy.threshold_factor(step + 1) <= policy.threshold_factor(step) + 1e-9


@given(runs, st.floats(-5, 5))
def test_equal_lambdas_give_exactly_that_factor(xs, level):
    policy = Adaptive(level, level, total_steps=7)
    assert all(policy.threshold_factor(t) == level for t in range(9))


@given(runs)
def test_infinite_lambdas_decide_whatever_is_seen(xs):
    always, _ = decisions(Adaptive(-math.inf, -math.inf, total_steps=9), [*xs, 0.0, 0.0])
    never, _ = decisions(Adaptive(math.inf, math.inf, total_steps=9), [*xs, 0.0, 0.0])
    assert all(d.use_sam for d in always)
    assert not any(d.use_sam for d in never)


@given(runs, runs, st.floats(3.2, 10))
def test_no_surprise_is_larger_than_the_bound_that_the_docs_name(quiet, xs, level):
    """(x − μ)/σ ≤ δ/√((1−δ)δ²) = 1/√(1−δ): for δ = 0.9 nothing above 3.17 ever fires."""
    policy = Adaptive(level, level, 0.9, total_steps=10**6)
    made, _ = decisions(policy, [min(x, 1e150) for x in quiet + xs])
    assert not any(d.use_sam for d in made)


def test_small_squared_norms_are_drowned_by_the_initial_variance():
    """The caveat of the docs: blind for a hundred steps, unless initial_variance is lowered."""
    xs = (1e-6 * (1 + torch.rand(300, generator=torch.Generator().manual_seed(0)))).tolist()
    blind, _ = decisions(Adaptive(0.5, 0.5, total_steps=300), xs)
    seeing, _ = decisions(Adaptive(0.5, 0.5, total_steps=300, initial_variance=1e-14), xs)
    assert not any(d.use_sam for d in blind[:100])
    assert any(d.use_sam for d in seeing[20:100])
    assert any(d.use_sam for d in blind[250:])


@given(st.integers(1, 20), st.integers(0, 10**6))
def test_periodic_fires_every_kth_step_from_the_first(k, t):
    assert Periodic(k).decide(Observation(t, 1.0), {})[0].use_sam == (t % k == 0)


@settings(max_examples=20)
@given(st.floats(0, 1), st.integers(0, 2**31))
def test_bernoulli_draws_from_its_own_generator_with_its_probability(p, seed):
    own, before = torch.Generator().manual_seed(seed), torch.get_rng_state()
    policy = Bernoulli(p, seed)
    fired = sum(policy.decide(Observation(t, 1.0, own), {})[0].use_sam for t in range(400))
    assert torch.equal(torch.get_rng_state(), before)
    assert fired / 400 == pytest.approx(p, abs=0.13)


@pytest.mark.parametrize(
    "policy", [Always(), Never(), Bernoulli(0.3, 2), Periodic(4), Adaptive(total_steps=5)]
)
def test_policies_are_values(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert eval(repr(policy)) == policy
    with pytest.raises(AttributeError):
        policy.anything = 1
    assert isinstance(
        policy.decide(Observation(0, 1.0, torch.Generator()), policy.start())[0], Decision
    )


@pytest.mark.parametrize(
    "answer",
    [True, (True, {}), (Decision(True), {"n": True}), (Decision(True), {}), (Decision(True), None)],
)
def test_a_policy_s_answer_that_could_not_be_saved_is_refused_at_once(answer):
    @dataclass(frozen=True)
    class Odd(Policy):
        def start(self):
            return {"n": 0.0}

        def decide(self, now, state):
            return answer

    model = mlp()
    opt = aesam.SharpnessAware(BASES["sgd"](model.parameters()), policy=Odd())
    with pytest.raises(TypeError, match="Odd.decide must return"):
        Problem(model).step(opt, 0)


def test_a_policy_may_answer_with_numpy_s_bool():
    class Odd(Policy):
        def decide(self, now, state):
            return Decision(np.bool_(True)), state

    model = mlp()
    opt = aesam.SharpnessAware(BASES["sgd"](model.parameters()), policy=Odd())
    Problem(model).step(opt, 0)
    assert type(ours(opt.state_dict())["counts"]["sam"]) is int
    assert opt.last_step.used_sam is True
