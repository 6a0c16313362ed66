"""The policies that the adaptive one is set against."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from aesam.parts import controls
from aesam.parts.controls import Inverted, MatchedRate
from aesam.parts.policies import Adaptive, Late, Observation


def fired(policy, xs):
    draw, state, made = torch.Generator().manual_seed(0), policy.start(), []
    for t, x in enumerate(xs):
        decision, state = policy.decide(Observation(t, float(x), draw), state)
        made.append(decision.use_sam)
    return made


@given(st.integers(0, 200), st.floats(-3, 0), st.floats(0, 3))
def test_the_matched_rate_is_the_normal_tail_above_c(step, low, high):
    policy = MatchedRate(low, high, total_steps=100)
    progress = min(1.0, step / 100)
    factor = progress * low + (1 - progress) * high
    assert policy.rate(step) == pytest.approx(norm.sf(factor), rel=1e-12)


@pytest.mark.parametrize(("bounds", "share"), [((-1.0, 1.0), 0.5), ((0.0, 2.0), 0.2)])
def test_all_three_fire_as_often_on_normal_norms(bounds, share):
    xs = torch.randn(6000, generator=torch.Generator().manual_seed(1)).double() + 10
    for kind in (Adaptive, MatchedRate, Inverted):
        rate = sum(fired(kind(*bounds, total_steps=6000), xs)) / 6000
        assert rate == pytest.approx(share, abs=0.04), kind


def test_the_matched_rate_does_not_look_at_the_gradient():
    policy = MatchedRate(total_steps=200)
    assert fired(policy, [1.0] * 200) == fired(policy, range(200))


def test_inverted_fires_on_the_mirror_image():
    xs = torch.rand(300, generator=torch.Generator().manual_seed(1)).double()
    mirrored = fired(Adaptive(total_steps=300, initial_variance=1e-3), xs + 10)
    # μ starts at 0, so both see the same after the start is forgotten.
    found = fired(Inverted(total_steps=300, initial_variance=1e-3), 10 - xs)
    assert mirrored[200:] == found[200:]
    assert any(mirrored[200:])
    assert not all(mirrored[200:])


def test_the_limits_of_inverted_are_sam_and_erm():
    inf = float("inf")
    assert all(fired(Inverted(-inf, -inf, total_steps=9), range(9)))
    assert not any(fired(Inverted(inf, inf, total_steps=9), range(9)))


def test_late_is_found_where_it_was_before():
    assert controls.Late is Late


@pytest.mark.parametrize(("after", "first"), [(0.0, 0), (0.75, 15), (1.0, 20)])
def test_late_starts_at_its_share_of_training(after, first):
    made = fired(Late(after, total_steps=20), range(20))
    assert made == [t >= first for t in range(20)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Late(1.5, total_steps=3),
        lambda: Late(total_steps=0),
        lambda: MatchedRate(1.0, -1.0, total_steps=3),
        lambda: MatchedRate(total_steps=3, seed=-1),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match="after|total_steps|lambda1|seed"):
        make()


@pytest.mark.parametrize("kind", [Late, MatchedRate, Inverted])
def test_nothing_is_decided_without_total_steps(kind):
    policy = kind()
    assert policy.needs_total_steps
    now = Observation(0, 1.0, torch.Generator())
    with pytest.raises(RuntimeError, match="total_steps must be given"):
        policy.decide(now, policy.start())
    told = policy.with_total_steps(9)
    assert told == kind(total_steps=9)
    assert not told.needs_total_steps
