"""What the figures' captions say of the paper's claims, on curves whose answer is known."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.fixtures_report import config_of

from aesam.lab.show import FinishedRun, label_of
from aesam.lab.show.comparison import comparison_of
from aesam.paper import (
    by_seed,
    claims,
    convergence,
    cost,
    lambdas,
    noise_curves,
    normality,
    verdicts,
)
from aesam.paper.claims import Claim
from aesam.paper.setups import Options, noisy

EPOCHS = 20
PEAKS = {"erm": 31.0, "sam": 45.0}


def run_of(method, seed, lines, settings=None, **summary):
    config = config_of(method, seed)
    config["method"] |= settings or {}
    numbers = {
        "test_accuracy": 50.0, "train_accuracy": 50.0, "percent_sam": 50.0, "steps": 100,
        "gradients": 150, "seconds": 1.0,
    }  # fmt: skip
    metrics = [{"epoch": i, **line} for i, line in enumerate(lines, 1)]
    return FinishedRun(Path(f"{method}{seed}"), config, metrics, numbers | summary)


def comparison(quantity, by_method):
    """Methods with a curve for each seed."""
    named = [
        (label_of(m), [run_of(m, s, [{quantity: v} for v in c]) for s, c in enumerate(seeds)])
        for m, seeds in by_method.items()
    ]
    return comparison_of("here", config_of("erm"), named)


# Overfitting --------------------------------------------------------------------------------------


def falling(best, last):
    return [10.0, best, *np.linspace(best, last, EPOCHS)]


def test_overfitting_is_what_is_lost_since_the_best_epoch_tested_by_seed():
    lost = {
        "erm": (30.0, 32.0, 28.0), "sam": (3.0, 4.0, 5.0), "ae-sam": (29.0, 33.0, 27.5),
        "looksam": (40.0, 43.0, 38.0), "ae-looksam": (3.5, 3.0, 5.5),
    }  # fmt: skip
    found = comparison(
        "test_accuracy", {m: [falling(80.0, 80.0 - v) for v in vs] for m, vs in lost.items()}
    )
    verdicts = {(v.claim.better, v.claim.worse): v for v in noise_curves.judge(found)}
    sam = verdicts["SAM", "ERM"]
    assert sam.means == pytest.approx((4.0, 30.0))
    assert sam.test.p_value == pytest.approx(stats.ttest_rel(lost["sam"], lost["erm"]).pvalue)
    assert sam.word == "holds here"
    assert "SAM loses fewer points to overfitting than ERM" in sam.sentence()
    assert verdicts["AE-SAM", "ERM"].word == "same direction, not significant"
    assert verdicts["LookSAM", "ERM"].word == "disagrees"
    assert verdicts["AE-LookSAM", "SAM"].word == "no difference found"
    assert ("SAM", "SS-SAM") not in verdicts


def test_a_curve_of_few_points_says_nothing_of_overfitting():
    found = comparison(
        "test_accuracy", {m: [[30.0, v, 20.0 + s] for s in range(3)] for m, v in PEAKS.items()}
    )
    (verdict,) = noise_curves.judge(found)
    assert verdict.word == "not tested: measured at 3 epochs only"
    assert verdict.sentence().endswith("than ERM → not tested: measured at 3 epochs only.")


# Gradients over epochs ----------------------------------------------------------------------------


def down(start, end):
    return np.geomspace(start, end, EPOCHS).tolist()


def test_the_end_is_the_mean_of_the_last_tenth():
    assert by_seed.end_of(np.arange(20.0)) == 18.5
    assert by_seed.end_of(np.array([4.0, 2.0])) == 2.0


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ((1e-3, 1.1e-3, 0.9e-3), "holds here"),
        ((4e-2, 5.1e-2, 4.5e-2), "disagrees"),
        ((1e-2, 2e-3, 3e-2), "not seen here"),
    ],
)
def test_sam_against_erm_is_tested_by_seed(ends, word):
    curves_of = {
        "erm": [down(1.0, e) for e in (1e-2, 1.05e-2, 0.98e-2)],
        "sam": [down(1.0, e) for e in ends],
    }
    found = comparison("gradient_variance", curves_of)
    (said,) = convergence.smaller_with_sam(found, "gradient_variance")
    assert f"SAM with a smaller variance of the stochastic gradient than ERM → {word}" in said
    last = {m: [np.mean(c[-2:]) for c in seeds] for m, seeds in curves_of.items()}
    p_value = stats.ttest_rel(last["sam"], last["erm"]).pvalue
    assert ("p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}") in said


def test_convergence_needs_every_run_to_vanish():
    same = [down(1.0, 1e-5), down(1.1, 2e-5), down(0.9, 1e-5)]
    other = [down(1.05, 1.2e-5), down(1.0, 1.8e-5), down(1.0, 1e-5)]
    vanished, speed = convergence.converged(
        comparison("train_loss", {"ss-sam": same, "ae-sam": other}), "train_loss"
    )
    assert "training loss converges to 0 (falls to a hundredth in every run) → holds here" in (
        vanished
    )
    assert "AE-SAM down as fast in training loss as SS-SAM → no difference found" in speed
    stuck = [*other[:2], down(1.0, 0.5)]
    vanished, _ = convergence.converged(
        comparison("train_loss", {"ss-sam": same, "ae-sam": stuck}), "train_loss"
    )
    assert "→ disagrees: not all fell so far" in vanished


def test_a_slower_method_is_said_to_be_slower():
    fast = [down(1.0, 1e-5), down(1.1, 1.1e-5), down(0.9, 0.9e-5)]
    slow = [down(1.0, 1e-3), down(1.1, 1.2e-3), down(0.9, 0.9e-3)]
    found = comparison("train_loss", {"ss-sam": fast, "ae-sam": slow})
    _, speed = convergence.converged(found, "train_loss")
    assert "disagrees: worse here" in speed


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_run_that_went_astray_is_named_and_proves_nothing(seed):
    good = [down(1.0, 1e-5), down(1.1, 2e-5), down(0.9, 1e-5)]
    astray = [*good]
    astray[seed] = [*down(1.0, 0.1)[:-1], np.nan]
    found = comparison("train_loss", {"ss-sam": good, "ae-sam": astray})
    vanished, speed = convergence.converged(found, "train_loss")
    assert "→ disagrees: not all fell so far" in vanished
    assert speed.endswith(f"→ not tested: not finite at seed {seed}.")
    (shown,) = verdicts.sheets_of(
        claims.judge(found, [Claim("ae-sam", "ss-sam")], by_seed.speed("train_loss", "loss"))
    )
    assert shown.lines[0].cells[2:5] == ("–", "–", "–")


def test_one_seed_tests_nothing():
    found = comparison("gradient_variance", {"erm": [down(1, 0.1)], "sam": [down(1, 0.01)]})
    (said,) = convergence.smaller_with_sam(found, "gradient_variance")
    assert "nothing can be tested" in said


# Thresholds ---------------------------------------------------------------------------------------


JITTER = (0.0, 0.3, -0.2)


def threshold_pairs():
    return [(low, high) for low in lambdas.VALUES for high in lambdas.VALUES if low <= high]


def threshold_comparison(share, accuracy, jitters=lambda low, high: JITTER):
    named = [
        (
            f"{pair}",
            [
                run_of(
                    "ae-sam", seed, [], dict(zip(("lambda1", "lambda2"), pair, strict=True)),
                    percent_sam=share(*pair) + jitter, test_accuracy=accuracy(*pair) + jitter,
                )
                for seed, jitter in enumerate(jitters(*pair))
            ],
        )
        for pair in threshold_pairs()
    ]  # fmt: skip
    return comparison_of("here", config_of("ae-sam"), named)


def test_thresholds_that_lower_the_share_of_sam_and_the_accuracy():
    found = threshold_comparison(lambda a, b: 50 - 9 * (a + b), lambda a, b: 80 - a - b)
    for said, which in zip(lambdas.shares(found), "12", strict=True):
        assert f"increasing λ{which} reduces the share of SAM → holds here" in said
        assert "10 of 10 steps" in said
    said = lambdas.trend(found)
    assert "accuracy falls with the share of SAM → holds here" in said
    assert "rank correlation +1.00, +1.00, +1.00 by seed" in said
    assert "the most accurate is (-2.0, -2.0) with 86 % SAM" in said


def test_a_share_that_rises_is_named_and_chance_is_not_a_rise():
    def rising(low, high):
        return 50 - 9 * high + (5 * low if high == 2 else -low)

    found = threshold_comparison(rising, lambda a, b: 80 + a + b)
    first, _ = lambdas.shares(found)
    # The jitter is the same for all, so every rise is the same at each seed: none can be tested.
    assert "→ not seen everywhere (it falls at 6 of 10 steps)" in first
    assert "→ disagrees" in lambdas.trend(found)
    assert [row.settings["lambda1"] for row in lambdas.by_lambda2(found)[0.0]] == [-2.0, -1.0, 0.0]
    assert {row.settings["lambda2"] for row in lambdas.by_lambda2(found)[0.0]} == {0.0}

    def jitters(low, high):
        return (0.1 * low, 0.3, -0.1 * high)

    first, second = lambdas.shares(threshold_comparison(rising, lambda a, b: 80.0, jitters))
    assert "→ disagrees (it falls at 6 of 10 steps, rises beyond chance at" in first
    assert "(1.0, 2.0) → (2.0, 2.0)" in first
    assert "increasing λ2 reduces the share of SAM → holds here" in second


def test_ties_and_missing_neighbours_are_called_so():
    flat = threshold_comparison(lambda a, b: min(100.0, 90 - 9 * (a + b)), lambda a, b: 80.0)
    for said, ties in zip(lambdas.shares(flat), (1, 2), strict=True):
        told = f"it falls at {10 - ties} of 10 steps, stays the same at {ties}"
        assert f"→ holds here but for ties ({told})" in said
    lone = comparison_of("here", config_of("ae-sam"), [(r.label, r.runs) for r in flat.rows[:1]])
    assert "→ cannot tell: no neighbouring thresholds" in lambdas.shares(lone)[0]


def test_no_trend_is_tested_where_nothing_varies():
    found = threshold_comparison(lambda a, b: 50 - a, lambda a, b: 80.0)
    assert "→ not tested: with some seed" in lambdas.trend(found)
    lone = threshold_comparison(lambda a, b: 50 - a, lambda a, b: 80 + a + b, lambda *_: (0.0, 0.1))
    assert "→ cannot tell: fewer than three seeds" in lambdas.trend(lone)


def test_the_trend_is_a_t_test_of_the_rank_correlations_of_the_seeds():
    draws = np.random.default_rng(3)
    noise = {pair: draws.normal(0.0, 6.0, 3) for pair in threshold_pairs()}
    found = threshold_comparison(
        lambda a, b: 50 - 9 * (a + b), lambda a, b: 80 - a - b, lambda *pair: noise[pair]
    )
    rows = {tuple(row.settings[f"lambda{i}"] for i in "12"): row for row in found.rows}
    by_seed_ = [
        stats.spearmanr(
            [50 - 9 * sum(pair) + noise[pair][seed] for pair in rows],
            [80 - sum(pair) + noise[pair][seed] for pair in rows],
        ).statistic
        for seed in range(3)
    ]
    p_value = stats.ttest_1samp(by_seed_, 0.0).pvalue
    shown = ", ".join(f"{value:+.2f}" for value in by_seed_)
    assert f"{shown} by seed; p = {p_value:.3f}, n = 3" in lambdas.trend(found)


# Normality ----------------------------------------------------------------------------------------


def test_normality_is_scipy_s_and_the_verdict_follows_it():
    draws = np.random.default_rng(0)
    bell, skewed = draws.normal(5.0, 1.0, 400), draws.exponential(1.0, 400)
    samples = [normality.sample_of("here", 1, values.tolist()) for values in (bell, skewed)]
    for values, sample in zip((bell, skewed), samples, strict=True):
        assert sample.p_value == stats.normaltest(values).pvalue
        assert sample.skewness == stats.skew(values)
        assert sample.std == pytest.approx(np.std(values, ddof=1))
        assert sample.straightness == stats.probplot(values)[1][2]
    assert samples[0].straightness > 0.99 > samples[1].straightness
    assert "→ not rejected (p < 0.05 / 1 in 0 of 1" in normality.finding(samples[:1])
    assert "→ disagrees (p < 0.05 / 2 in 1 of 2" in normality.finding(samples)


def test_of_many_normal_samples_one_may_look_otherwise():
    draws = np.random.default_rng(1)
    samples = [
        normality.sample_of("here", i, draws.normal(5.0, 1.0, 400).tolist()) for i in range(40)
    ]
    assert min(sample.p_value for sample in samples) < normality.LEVEL
    assert "→ not rejected (p < 0.05 / 40 in 0 of 40" in normality.finding(samples)


@pytest.mark.parametrize("norms", [[1.0] * 399 + [np.inf], [2.0] * 400, [np.nan] * 400])
def test_norms_that_cannot_be_tested_prove_nothing(norms):
    bell = np.random.default_rng(0).normal(5.0, 1.0, 400).tolist()
    samples = [normality.sample_of("here", i, values) for i, values in enumerate((bell, norms))]
    assert [sample.is_testable for sample in samples] == [True, False]
    assert "in 0 of 1 samples, 1 more could not be tested" in normality.finding(samples)
    assert "no sample could be tested" in normality.finding(samples[1:])
    assert len(normality._drawings(samples, 1)) == 2
    assert normality._drawings(samples[1:], 1) == []


# Cost ---------------------------------------------------------------------------------------------


def timed(seconds, share):
    return {"seconds": seconds, "share_of_sam": share}


def test_cost_is_all_time_over_all_of_erm_s():
    alone = {
        "erm": timed([1.0, 1.0], [0.0, 0.0]),
        "sam": timed([2.0, 2.2], [1.0, 1.0]),
        "esam": timed([1.9, 2.3], [1.0, 1.0]),
        "ae-sam": timed([1.1, 1.9], [0.1, 0.9]),
    }
    two = {name: timed([s / 2 for s in t["seconds"]], [0.0]) for name, t in alone.items()}
    two["esam"] = timed([1.4, 1.54], [1.0])
    result = cost.result_of(noisy(Options())[0], alone, two, 2)
    rows = result.data["rows"]
    assert rows["sam"]["alone"] == pytest.approx(2.1)
    assert rows["ae-sam"] == pytest.approx(
        {"alone": 1.5, "two": 1.5, "speedup": 2.0, "percent_sam": 50.0, "gradients_per_step": 1.5}
    )
    assert rows["esam"]["two"] == pytest.approx(2.94)
    assert "0 % less time than SAM alone and 40 % more in parallel" in result.findings[0]
    assert "2.10× alone" in result.findings[1]
    assert "ERM's differ by 0 % alone" in result.sheets[0].caption
    assert cost.variation([1.0, 3.0]) == pytest.approx(2**0.5 / 2)
