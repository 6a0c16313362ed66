"""The search on curves that are known: it ends with the best inside, or says that it is not."""

import math
import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aesam.searching import Range, WideningSearch
from aesam.searching.widening import rungs

START = (0.05, 0.1, 0.2)
RHO = Range("rho", START, usual=0.05, least=0.0)


def searched(score, *ranges, seeds=(0,), limit=6, **more):
    """The search at its end, and everything that it asked for in order."""
    search, asked = WideningSearch(ranges or [RHO], seeds=seeds, limit=limit, **more), []
    while search.round:
        asked += search.round.tries
        search.tell({one: score(**one.settings, seed=one.seed) for one in search.round.tries})
    assert len(set(asked)) == len(asked), "nothing is asked for twice"
    starts = [len(each.start) for each in search.ranges]
    again = [3] * (len(starts) - 1)
    most = sum(values + 1 + limit for values in starts) + sum(values + limit for values in again)
    assert len(asked) <= len(search.seeds) * most
    return search, asked


def peak(at, width=1.0):
    return lambda rho, seed=0: -((math.log(rho / at) / width) ** 2)


def values_of(search, name="rho"):
    return sorted(trial.settings[name] for trial in search.trials)


# One setting -----------------------------------------------------------------------------------


def test_a_peak_inside_is_found_without_widening():
    search, asked = searched(peak(0.1))
    assert search.best == {"rho": 0.1}
    assert (search.notes, search.at_edge, len(asked)) == ([], [], 3)


def test_a_peak_far_above_is_found_by_doubling_up():
    search, _ = searched(peak(2.0))
    assert search.best == {"rho": 1.6}
    assert values_of(search) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert search.notes == []


def test_a_peak_far_below_is_found_by_halving():
    search, _ = searched(peak(0.006))
    assert search.best == {"rho": 0.00625}
    assert values_of(search) == [0.003125, 0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2]


def test_one_value_to_start_from_widens_to_both_sides():
    search, _ = searched(peak(1.0), Range("rho", (1.0,), usual=1.0))
    assert values_of(search) == [0.5, 1.0, 2.0]
    assert search.best == {"rho": 1.0}


def test_a_peak_beyond_the_limit_is_noted():
    search, asked = searched(peak(1000.0), limit=3)
    assert search.best == {"rho": 1.6}
    assert search.at_edge == ["rho"]
    assert "the best rho is still at the edge, 1.6: a larger one may be better" in search.notes[0]
    assert "3 of at most 3 values were added" in search.notes[0]
    assert len(asked) == 6
    search, _ = searched(peak(1e-9), limit=0)
    assert "still at the edge, 0.05: a smaller one may be better" in search.notes[0]


def test_a_natural_bound_is_no_edge():
    p = Range("p", (0.3, 0.6), usual=0.5, least=0.0, most=1.0)
    search, _ = searched(lambda p, seed: p, p)
    assert search.best == {"p": 1.0}
    assert search.at_edge == []
    assert search.notes == ["the best p is 1, beyond which there is nothing"]
    search, _ = searched(lambda k, seed: -k, Range("k", (4, 8), usual=5, least=1))
    assert (search.best, values_of(search, "k")) == ({"k": 1}, [1, 2, 4, 8])


def test_a_flat_curve_is_inside_at_once_and_the_smallest_is_taken():
    search, asked = searched(lambda rho, seed: 50.0, seeds=(0, 1, 2))
    assert search.best == {"rho": 0.05}
    assert search.at_edge == []
    assert "within one standard error of 0.1" in search.notes[0]
    assert len(asked) < 9


def test_a_score_that_is_lower_is_better_where_that_is_said():
    search, _ = searched(lambda rho, seed: -peak(2.0)(rho), higher_is_better=False)
    assert search.best == {"rho": 1.6}
    assert all(trial.mean >= 0 for trial in search.trials)


# Noise -----------------------------------------------------------------------------------------


def test_an_edge_within_one_standard_error_of_its_neighbour_counts_as_inside():
    # On every seed 0.2 is ahead of 0.1 by 1, −1 or 0.6: on average by 0.2, with an error of 0.6.
    ahead = {0: 1.0, 1: -1.0, 2: 0.6}
    score = {0.05: lambda s: -9.0, 0.1: lambda s: 0.0, 0.2: ahead.__getitem__}
    gaps = list(ahead.values())
    assert statistics.mean(gaps) < statistics.stdev(gaps) / math.sqrt(3)

    def level(rho, seed):
        return score[rho](seed) if rho in score else -5.0

    search, _ = searched(level, seeds=(0, 1, 2))
    # The first seed alone asked for 0.4; with it 0.2 is inside. Without it, the error decides:
    assert search.best == {"rho": 0.2}
    search, _ = searched(level, seeds=(1, 0, 2), limit=0)
    assert search.at_edge == []
    assert "0.2, is the largest that was tried, but within one standard error of 0.1" in str(
        search.notes
    )


def test_an_edge_beyond_one_standard_error_of_its_neighbour_widens():
    ahead = {0: 1.0, 1: 0.8, 2: 1.2}

    def score(rho, seed):
        return {0.05: -9.0, 0.1: 0.0, 0.2: ahead[seed]}.get(rho, -5.0)

    search, _ = searched(score, seeds=(0, 1, 2), limit=0)
    assert search.at_edge == ["rho"]
    search, _ = searched(score, seeds=(0, 1, 2))
    assert (search.at_edge, search.notes, search.best) == ([], [], {"rho": 0.2})
    assert 0.4 in values_of(search)


def test_poor_values_get_one_seed_and_the_best_and_its_neighbours_all():
    grid = Range("rho", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5), usual=0.05, least=0.0)
    search, asked = searched(peak(1.0), grid, seeds=range(8))
    seeds = {trial.settings["rho"]: (trial.n, trial.rung) for trial in search.trials}
    assert search.best == {"rho": 1.0}
    assert [seeds[rho] for rho in (0.5, 1.0, 2.0)] == [(8, 4)] * 3
    assert [seeds[rho] for rho in (0.01, 0.02, 0.05)] == [(1, 1)] * 3
    assert len(asked) < len(seeds) * 8 / 2


def test_a_lucky_first_seed_is_found_out():
    """The curve goes down, but the first seed says that it goes up."""

    def score(rho, seed):
        return rho if seed == 0 and rho <= 0.4 else peak(0.1)(rho)

    search, _ = searched(score, seeds=(0, 1, 2, 3, 4))
    assert search.best == {"rho": 0.1}
    assert search.at_edge == []


def test_a_neighbour_that_was_left_behind_is_still_compared():
    """0.1 has the worst first seed, and is the best of all."""

    def score(rho, seed):
        return -50.0 if (rho, seed) == (0.1, 0) else {0.1: 100.0, 0.2: 10.0}.get(rho, 0.0)

    search, _ = searched(score, seeds=(0, 1, 2))
    assert search.best == {"rho": 0.1}


def test_noise_does_not_lead_far_from_a_clear_peak():
    for number in range(50):
        source = random.Random(number)
        found = {}

        def noisy(rho, seed, found=found, source=source):
            return found.setdefault((rho, seed), peak(2.0)(rho) + source.gauss(0, 0.3))

        search, _ = searched(noisy, seeds=(0, 1, 2, 3))
        assert 0.4 <= search.best["rho"] <= 6.4


# Divergence ------------------------------------------------------------------------------------

LOST = [None, math.nan, -math.inf, math.inf, 1e200]


@pytest.mark.parametrize("lost", LOST)
def test_values_that_diverge_are_worst_and_never_at_an_edge(lost):
    search, asked = searched(lambda rho, seed: lost if rho > 0.15 else rho, seeds=(0, 1))
    assert search.best == {"rho": 0.1}
    assert search.at_edge == []
    (gone,) = [trial for trial in search.trials if trial.diverged]
    assert (gone.settings, gone.n, gone.mean, gone.std) == ({"rho": 0.2}, 1, None, None)
    assert len(asked) <= 5


def test_a_value_that_diverges_with_one_seed_is_worse_than_any_that_does_not():
    def score(rho, seed):
        return None if rho == 0.1 and seed == 1 else peak(0.1)(rho)

    search, _ = searched(score, seeds=(0, 1, 2))
    assert search.best["rho"] != 0.1
    (gone,) = [trial for trial in search.trials if trial.diverged]
    assert (gone.settings, gone.n) == ({"rho": 0.1}, 2)


def test_where_all_that_went_on_diverge_the_others_are_gone_back_to():
    def score(rho, seed):
        return None if rho >= 0.1 and seed else rho

    search, _ = searched(score, seeds=(0, 1))
    assert search.best == {"rho": 0.05}


def test_where_all_diverge_smaller_ones_are_tried():
    search, _ = searched(lambda rho, seed: None if rho > 0.02 else rho)
    assert search.best == {"rho": 0.0125}
    search, asked = searched(lambda **_: None, RHO, Range("alpha", (1.0,), usual=0.5))
    assert search.best is None
    assert search.at_edge == []
    (note,) = search.notes
    assert note.startswith("every rho that was tried diverged: 0.00078125, 0.0015625, 0.003125")
    assert {one.settings["alpha"] for one in asked} == {0.5}


# Two settings ----------------------------------------------------------------------------------

ALPHA = Range("alpha", (0.1, 0.3), usual=0.5)


def hill(rho, alpha, seed=0):
    return peak(2.0)(rho) - (alpha - 1.0) ** 2


def test_rho_is_searched_first_then_alpha_at_the_best_rho_then_rho_around_it():
    search, asked = searched(hill, RHO, ALPHA)
    assert search.best == {"rho": 1.6, "alpha": 1.0}
    of_rho = [one for one in asked if one.settings["alpha"] == 0.5]
    assert asked[: len(of_rho)] == of_rho
    first, second, third = search.curves
    assert [curve.setting for curve in search.curves] == ["rho", "alpha", "rho"]
    tried = [trial.settings for trial in second.trials]
    assert tried == [{"rho": 1.6, "alpha": a} for a in (0.1, 0.3, 0.5, 1.0, 2.0)]
    assert [t.settings for t in third.trials] == [{"rho": r, "alpha": 1.0} for r in (0.8, 1.6, 3.2)]


def test_a_rho_that_was_found_beside_a_poor_alpha_is_found_anew():
    def score(rho, alpha, seed):
        return peak(0.1 if alpha > 0.2 else 0.8)(rho) - 99 * abs(alpha - 0.1)

    search, _ = searched(score, RHO, Range("alpha", (0.1, 0.3), usual=0.5, least=0.0))
    assert search.best == {"rho": 0.8, "alpha": 0.1}
    assert (search.at_edge, search.notes) == ([], [])


def test_a_rho_that_is_at_an_edge_beside_the_best_alpha_is_noted_once():
    def score(rho, alpha, seed):
        return (peak(0.1)(rho) if alpha > 0.2 else rho) - 99 * abs(alpha - 0.1)

    search, _ = searched(score, RHO, Range("alpha", (0.1, 0.3), usual=0.5, least=0.0), limit=2)
    assert search.at_edge == ["rho"]
    assert [note.count("the best rho is still at the edge, 0.8") for note in search.notes] == [1]


def test_nothing_is_searched_again_where_alpha_stays_at_its_usual_value():
    search, _ = searched(lambda rho, alpha, seed: peak(0.1)(rho) - abs(alpha - 0.5), RHO, ALPHA)
    assert [curve.setting for curve in search.curves] == ["rho", "alpha"]


def test_what_the_first_setting_found_is_never_lost_by_the_second():
    """The usual alpha is the best one, and costs nothing: it was tried already."""
    search, asked = searched(
        lambda rho, alpha, seed: -abs(alpha - 0.5) - abs(rho - 0.1), RHO, ALPHA
    )
    assert search.best == {"rho": 0.1, "alpha": 0.5}
    assert len(asked) == 3 + 2 + 1  # 0.5 is the largest of three: 1.0 is tried beyond it


# Fine settings -------------------------------------------------------------------------------


def test_a_peak_between_two_values_is_found_where_the_setting_is_fine():
    """SAM's radius on small images: 0.4 is not enough, and 0.8 does not learn."""
    score = lambda rho, seed: -abs(rho - 0.6) - 9.0 * (rho > 0.7)  # noqa: E731
    assert searched(score)[0].best == {"rho": 0.4}
    fine = replace(RHO, is_fine=True)
    search, _ = searched(score, fine, seeds=(0, 1, 2))
    assert search.best == {"rho": 0.566}
    assert values_of(search) == [0.05, 0.1, 0.2, 0.283, 0.4, 0.566, 0.8]
    assert (search.at_edge, search.notes) == ([], [])
    best = next(trial for trial in search.trials if trial.settings == search.best)
    assert best.n == 3, "what is between has all seeds before it is the best"


def test_what_is_within_one_standard_error_of_the_best_has_values_beside_it_too():
    """0.2 is ahead of 0.4 by luck, so that the peak beside 0.4 would be passed by."""
    ahead = {0: 1.0, 1: -0.9, 2: 0.2}

    def score(rho, seed):
        return {0.2: ahead[seed], 0.4: 0.0, 0.566: 2.0}.get(rho, -2.0)

    fine = Range("rho", (0.1, 0.2, 0.4, 0.8), usual=0.1, is_fine=True)
    search, _ = searched(score, fine, seeds=(0, 1, 2))
    assert search.best == {"rho": 0.566}
    assert values_of(search) == [0.1, 0.141, 0.2, 0.283, 0.4, 0.566, 0.8]


def test_a_fine_setting_has_no_more_values_added_than_any():
    flat = lambda rho, seed: 0.0  # noqa: E731
    for limit in (0, 1, 2):
        search, _ = searched(flat, replace(RHO, is_fine=True), limit=limit)
        assert len(values_of(search)) == 3 + limit


def test_nothing_is_between_where_the_best_stays_at_an_edge_or_nothing_learnt():
    fine = replace(RHO, is_fine=True)
    search, _ = searched(peak(1000.0), fine, limit=1)
    assert (search.best, search.at_edge) == ({"rho": 0.4}, ["rho"])
    assert values_of(search) == [0.05, 0.1, 0.2, 0.4]
    assert searched(lambda rho, seed: None, fine, limit=1)[0].best is None


def test_a_fine_setting_that_is_searched_once_more_is_near_already():
    fine = replace(RHO, is_fine=True)
    score = lambda rho, alpha, seed: -abs(rho - 0.14 * alpha) - abs(alpha - 1.0)  # noqa: E731
    search, _ = searched(score, fine, ALPHA)
    assert search.best == {"rho": 0.141, "alpha": 1.0}


# Any curve -------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(0, 5),
    st.sets(st.floats(1e-6, 1e6), min_size=1, max_size=6),
    st.sets(st.integers(1, 50), min_size=1, max_size=4),
    st.integers(0, 2**32),
    st.floats(0, 1),
)
def test_the_best_is_inside_or_at_a_bound_or_level_or_noted(
    seeds, limit, rhos, ks, source, share_lost
):
    drawn = {}

    def score(rho, k, seed):
        draw = random.Random(f"{source} {rho} {k} {seed}")
        lost = draw.random() < share_lost * 0.5
        return drawn.setdefault((rho, k, seed), None if lost else draw.choice([0.0, 1.0, 2.5]))

    ranges = [
        Range("rho", tuple(rhos), usual=min(rhos), least=0.0),
        Range("k", tuple(ks), usual=5, least=1, most=64),
    ]
    search, _ = searched(score, *ranges, seeds=range(seeds), limit=limit)
    again, _ = searched(score, *ranges, seeds=range(seeds), limit=limit)
    assert (again.best, again.trials, again.notes) == (search.best, search.trials, search.notes)
    if search.best is None:
        assert "that was tried diverged" in search.notes[-1]
        return
    chosen = next(trial for trial in search.trials if trial.settings == search.best)
    assert (chosen.n, chosen.diverged) == (seeds, 0)
    whole = [t for t in search.curves[-1].trials if t.n == seeds and not t.diverged]
    assert chosen.mean == max(trial.mean for trial in whole)
    last = {curve.setting: curve for curve in search.curves}
    for name, curve in last.items():
        tried = [trial.settings[name] for trial in curve.trials]
        if search.best[name] in (tried[0], tried[-1]):
            assert any(f"the best {name}" in note for note in search.notes)


def test_rungs_double_up_to_all_seeds():
    assert [rungs(n) for n in (1, 2, 3, 5, 8)] == [
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 4, 5),
        (1, 2, 4, 8),
    ]


def test_bad_searches_are_refused():
    with pytest.raises(ValueError, match="at least one setting and at least one seed"):
        WideningSearch([], seeds=[0], limit=1)
    with pytest.raises(ValueError, match="limit must be a whole number >= 0, got -1"):
        WideningSearch([RHO], seeds=[0], limit=-1)
    search, _ = searched(peak(0.1))
    with pytest.raises(ValueError, match="the search is over"):
        search.tell({})
