import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from aesam.lab.show import bootstrap_interval, mean, paired_t_test, sample_std, spread


def by_seed(values):
    return dict(enumerate(values))


def test_mean_and_sample_deviation_have_their_closed_forms():
    assert mean([1.0, 2.0, 3.0, 4.0]) == 2.5
    assert sample_std([1.0, 2.0, 3.0, 4.0]) == pytest.approx(math.sqrt(5 / 3), rel=1e-15)


def test_a_single_run_has_no_deviation_and_no_interval():
    one = spread([84.1])
    assert (one.mean, one.std, one.interval) == (84.1, None, None)


def test_paired_t_test_of_two_seeds_is_the_cauchy_distribution():
    found = paired_t_test(by_seed([5.0, 9.0]), by_seed([4.0, 5.0]))  # differences 1 and 4
    t = 2.5 / (3 / math.sqrt(2) / math.sqrt(2))
    assert found.p_value == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-12)
    assert (found.n, found.difference) == (2, 2.5)


def test_paired_t_test_is_the_one_sample_test_of_the_differences():
    random = np.random.default_rng(3)
    ours, theirs = random.normal(1, 1, 5), random.normal(0, 1, 5)
    expected = scipy_stats.ttest_1samp(ours - theirs, 0.0).pvalue
    assert paired_t_test(by_seed(ours), by_seed(theirs)).p_value == pytest.approx(expected)


def test_only_seeds_that_both_have_are_paired():
    ours, theirs = {0: 3.0, 1: 5.0, 7: 99.0}, {1: 4.0, 0: 1.0, 8: -99.0}
    found = paired_t_test(ours, theirs)
    assert (found.n, found.difference) == (2, 1.5)


def test_fewer_than_two_common_seeds_give_no_test():
    assert paired_t_test({0: 1.0, 1: 2.0}, {1: 2.0, 2: 3.0}) is None
    assert paired_t_test({}, {}) is None


def test_equal_differences_give_the_limits_of_the_test_without_a_warning():
    assert paired_t_test(by_seed([1.0, 2.0]), by_seed([1.0, 2.0])).p_value == 1.0
    assert paired_t_test(by_seed([3.0, 4.0]), by_seed([1.0, 2.0])).p_value == 0.0
    # 50.1 - 40 and 60.1 - 50 differ in their last bits only.
    assert paired_t_test(by_seed([50.1, 60.1, 0.1]), by_seed([40, 50, -10])).p_value == 0.0


def test_bootstrap_interval_agrees_with_scipys_percentile_method():
    values = np.random.default_rng(0).normal(80, 2, 12)
    expected = scipy_stats.bootstrap((values,), np.mean, method="percentile").confidence_interval
    assert bootstrap_interval(values.tolist()) == pytest.approx(expected, abs=0.1)


def test_bootstrap_interval_of_two_values_is_the_values_themselves():
    # The mean of a resample is either value with probability 1/4, more than 2.5 %.
    assert bootstrap_interval([3.0, 5.0]) == (3.0, 5.0)


def test_bootstrap_interval_is_the_same_every_time_and_a_point_for_equal_values():
    assert bootstrap_interval([1.0, 2.0, 4.0]) == bootstrap_interval([1.0, 2.0, 4.0])
    assert bootstrap_interval([7.0, 7.0, 7.0]) == (7.0, 7.0)


def test_scaling_a_spread_scales_all_its_numbers():
    values = [2.0, 3.0, 7.0]
    halved, expected = spread(values).scaled(0.5), spread([v / 2 for v in values])
    assert (halved.mean, halved.std) == pytest.approx((expected.mean, expected.std))
    assert halved.interval == pytest.approx(expected.interval)
