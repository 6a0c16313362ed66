"""A budget is kept after every step, whatever the gradients do, and spent on the larger ones."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aesam.parts.budget import MOST_SAVED, Budget
from aesam.parts.controls import InvertedBudget
from aesam.parts.policies import Adaptive, Observation

N = 2_000
T, DRAW = np.arange(N), np.random.default_rng(0)
NOISE = DRAW.standard_normal(N)

#: Squared norms over a training, from tame to hostile.
STREAMS = {
    "normal": np.maximum(1 + 0.2 * NOISE, 1e-6),
    "log-normal": np.exp(NOISE),
    "heavy-tailed": np.maximum(DRAW.random(N), 1e-12) ** -1.5,
    "drifting": np.exp(-6 * T / N + 0.3 * NOISE),
    "rising": np.exp(8 * T / N + 0.3 * NOISE),
    "periodic": np.exp(2 * np.sin(T / 50) + 0.2 * NOISE),
    "constant": np.ones(N),
    "zero": np.zeros(N),
    "alternating": np.where(T % 2, 1.0, 2.0),
    "jumping": np.exp(np.where(T > N // 2, 6, 0) + 0.3 * NOISE),
    "growing": np.exp(0.01 * T),
    "falling": np.exp(-0.01 * T),
    "often zero": np.where(DRAW.random(N) < 0.3, 0.0, np.exp(NOISE)),
    "from the smallest to the largest": np.where(T % 2, 5e-324, 1.79e308),
}
SHARES = (0.01, 0.05, 0.2, 0.5, 0.9)


def run(policy, squared_norms, allowance=None):
    """The steps that fired; the bounds are looked at after each."""
    state, fired, count = policy.start(), [], 0
    for t, x in enumerate(squared_norms):
        decision, state = policy.decide(Observation(t, float(x)), state)
        fired.append(decision.use_sam)
        count += decision.use_sam
        allowed = allowance(t + 1) if allowance else policy.share * (t + 1)
        assert allowed - MOST_SAVED <= count <= allowed
        policy.check_state(state)
    assert state["fired"] == count
    return np.array(fired)


@pytest.mark.parametrize("kind", [Budget, InvertedBudget])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_budget_is_kept_after_every_step_of_every_stream(stream, kind):
    for share in SHARES:
        run(kind(share), STREAMS[stream])


squared_norms = st.one_of(st.floats(0.0, 1.7e308), st.sampled_from([0.0, 1.0, 5e-324]))


@settings(max_examples=60, deadline=None)
@given(st.floats(0.0, 1.0), st.lists(squared_norms, min_size=1, max_size=60))
def test_a_budget_of_any_share_is_kept_on_anything(share, xs):
    run(Budget(share), xs * 3)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.0, 0.99), st.floats(0.0, 1.0), st.integers(1, 120), st.sampled_from(list(STREAMS))
)
def test_a_late_budget_is_kept_against_its_own_schedule(late, part, total, stream):
    share = part * (1.0 - late)
    policy = Budget(share, late, total if late else None)
    rate = min(1.0, share / (1.0 - late))

    def allowance(t):
        return share * t if t >= total or not late else rate * max(0.0, t - late * total)

    fired = run(policy, STREAMS[stream][:150], allowance)
    assert not fired[: math.floor(late * total)].any()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("above", [False, True])
def test_one_who_knows_the_state_cannot_break_the_budget(share, above):
    """Each norm is put just below, or just above, what it will be held against."""
    policy, state, fired = Budget(share), Budget(share).start(), 0
    for t in range(1_000):
        mean = state["mean"] + state["quantile"]
        x = math.exp(max(-700.0, min(700.0, mean + (1e-3 if above else -1e-3))))
        decision, state = policy.decide(Observation(t, x), state)
        fired += decision.use_sam
        assert share * (t + 1) - MOST_SAVED <= fired <= share * (t + 1)


@pytest.mark.parametrize("stream", ["log-normal", "heavy-tailed", "drifting", "rising", "periodic"])
def test_a_fifth_is_a_fifth_where_the_paper_s_thresholds_are_not(stream):
    """λ = (0, 2) is a fifth of the steps on normal norms only."""
    xs = STREAMS[stream]
    by_budget = run(Budget(0.2), xs).mean()
    assert by_budget == pytest.approx(0.2, abs=MOST_SAVED / N)
    policy, by_thresholds = Adaptive(0.0, 2.0, total_steps=N), 0
    state = policy.start()
    for t, x in enumerate(xs):
        decision, state = policy.decide(Observation(t, float(x)), state)
        by_thresholds += decision.use_sam
    assert abs(by_thresholds / N - 0.2) > 0.01


def ranks(xs):
    """How many of the hundred steps around each have a smaller norm."""
    near = [xs[max(0, t - 50) : t + 51] for t in range(len(xs))]
    return np.array([np.mean(other <= x) for x, other in zip(xs, near, strict=True)])


@pytest.mark.parametrize("stream", ["normal", "log-normal", "heavy-tailed", "drifting", "rising"])
def test_it_is_spent_where_the_norm_is_large_for_its_time(stream):
    xs = STREAMS[stream][:1_000]
    largest, smallest = run(Budget(0.2), xs), run(InvertedBudget(0.2), xs)
    assert ranks(xs)[largest].mean() > 0.8  # 0.9 with the steps to come known
    assert ranks(xs)[smallest].mean() < 0.2


def test_all_is_sam_and_nothing_is_erm():
    assert run(Budget(1.0), STREAMS["log-normal"]).all()
    assert not run(Budget(0), STREAMS["log-normal"]).any()
    assert Budget(0.0).never_fires
    assert not Budget(0.1).never_fires


def test_the_threshold_is_what_the_norm_was_held_against():
    policy, state, wanted = Budget(0.5), Budget(0.5).start(), []
    for t, x in enumerate(STREAMS["log-normal"][:300]):
        saved = 0.5 * (t + 1) - state["fired"]
        decision, state = policy.decide(Observation(t, float(x)), state)
        assert (decision.mean, decision.std) == (None, None)
        if 1 <= saved <= MOST_SAVED and abs(x / decision.threshold - 1) > 1e-9:
            wanted.append(decision.use_sam)
            assert decision.use_sam == (x >= decision.threshold)
    assert len(wanted) > 200
    assert 0 < sum(wanted) < len(wanted)


def test_the_scale_of_the_norms_has_no_influence():
    xs = STREAMS["log-normal"]
    assert (run(Budget(0.2), xs) == run(Budget(0.2), xs * 2.0**-40)).mean() > 0.99


def test_late_moves_the_same_total_to_the_end():
    plain = run(Budget(0.2), STREAMS["log-normal"])
    allowance = lambda t: 0.8 * max(0, t - 1500) if t < N else 0.2 * t  # noqa: E731
    late = run(Budget(0.2, late=0.75, total_steps=N), STREAMS["log-normal"], allowance)
    assert not late[:1500].any()
    assert abs(plain.sum() - late.sum()) <= MOST_SAVED
    everything = run(Budget(0.2, late=0.8, total_steps=100), np.ones(100), lambda t: max(0, t - 80))
    assert list(everything) == [t >= 80 for t in range(100)]


def test_only_a_late_budget_asks_how_long_the_training_is():
    assert not Budget(0.2).needs_total_steps
    assert Budget(0.2).with_total_steps(100) == Budget(0.2)
    asking = Budget(0.2, late=0.5)
    assert asking.needs_total_steps
    with pytest.raises(RuntimeError, match="total_steps must be given before the first decision"):
        asking.decide(Observation(0, 1.0), asking.start())
    assert asking.with_total_steps(100) == Budget(0.2, late=0.5, total_steps=100)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"share": 1.5}, "share must be a number between 0 and 1"),
        ({"share": math.nan}, "share must be a number between 0 and 1"),
        ({"share": 0.2, "late": 1.0}, "late must be a number from 0 to below 1, got 1.0"),
        ({"share": 0.5, "late": 0.6, "total_steps": 9}, "share=0.5 does not fit into what late"),
        ({"share": 0.2, "total_steps": 9}, "total_steps=9 has no meaning without late"),
        ({"share": 0.2, "late": 0.5, "total_steps": 0}, "total_steps must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Budget(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean", 711.0), ("mean", -711.0), ("spread", -0.1), ("spread", 11.0), ("quantile", 10.5),
     ("quantile", -10.5), ("fired", -1.0), ("fired", 0.5)],
)  # fmt: skip
def test_a_state_that_no_step_leaves_is_refused(name, value):
    policy = Budget(0.2)
    with pytest.raises(ValueError, match=name):
        policy.check_state({**policy.start(), name: value})
