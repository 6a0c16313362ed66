"""Which runs are compared, how they are grouped and marked, and what they are tested against."""

import pytest
from support.fixtures_report import compared, write_methods, write_short_run

from aesam.lab.errors import UsageError
from aesam.lab.show import as_text, results_sheet
from aesam.lab.show.comparison_tables import explanation
from aesam.lab.show.grouping import by_percent_sam


def row_of(comparison, label):
    return next(row for row in comparison.rows if row.label == label)


def text_table(comparison):
    return as_text(results_sheet(comparison))


def test_rows_are_grouped_by_percent_sam_in_the_papers_order(tmp_path):
    (comparison,) = compared(write_methods(tmp_path))
    labels = [[row.label for row in group] for group in comparison.groups]
    assert labels == [["ERM"], ["SAM", "ESAM"], ["SS-SAM", "AE-SAM"], ["LookSAM", "AE-LookSAM"]]


def test_shares_far_from_the_papers_groups_make_groups_of_their_own():
    assert by_percent_sam([0.0, 9.0, 11.0, 33.0, 38.0, 61.0, 72.0, 91.0]) == [
        [0, 1],
        [7],
        [6],
        [5],
        [3, 4],
        [2],
    ]


def test_best_of_group_and_best_of_all_are_marked_and_a_lone_row_is_best_of_nothing(tmp_path):
    (comparison,) = compared(write_methods(tmp_path))
    assert [row.label for row in comparison.rows if row.best_overall] == ["AE-LookSAM"]
    in_group = [row.label for row in comparison.rows if row.best_in_group]
    assert in_group == ["SAM", "AE-SAM", "AE-LookSAM"]


def test_rows_that_read_the_same_share_the_mark(tmp_path):
    for method, accuracy in (("sam", 80.001), ("esam", 80.004), ("erm", 79.99)):
        write_short_run(tmp_path, method, test_accuracy=accuracy, percent_sam=100.0)
    (comparison,) = compared(tmp_path)
    assert [row.label for row in comparison.rows if row.best_overall] == ["SAM", "ESAM"]


def test_tests_are_against_sam_and_the_methods_own_baseline(tmp_path):
    (comparison,) = compared(write_methods(tmp_path))
    baselines = {
        row.label: row.against_baseline.label for row in comparison.rows if row.against_baseline
    }
    assert baselines == {
        "SAM": "ERM",
        "ESAM": "ERM",
        "SS-SAM": "ERM",
        "LookSAM": "ERM",
        "AE-SAM": "SS-SAM",
        "AE-LookSAM": "LookSAM",
    }
    assert row_of(comparison, "SAM").against_sam is None
    assert row_of(comparison, "ERM").against_sam.label == "SAM"
    difference = row_of(comparison, "SAM").against_baseline.test.difference
    assert difference == pytest.approx(63.0 - 44.0 + (2.3 - 1.5) / 3)


def test_time_is_a_multiple_of_erms_mean_and_cost_is_gradients_per_step(tmp_path):
    (comparison,) = compared(write_methods(tmp_path))
    assert row_of(comparison, "SAM").times_erm.mean == pytest.approx(2.0)
    assert row_of(comparison, "SAM").gradients_per_step == 2.0
    assert row_of(comparison, "AE-LookSAM").gradients_per_step == pytest.approx(857 / 720)


def test_without_erm_there_are_no_multiples_of_its_time(tmp_path):
    (comparison,) = compared(write_methods(tmp_path, ("sam", "ae-sam")))
    assert all(row.times_erm is None for row in comparison.rows)
    assert "×" not in text_table(comparison)


def test_one_seed_gives_means_without_deviations_or_tests(tmp_path):
    (comparison,) = compared(write_methods(tmp_path, ("erm", "sam"), seeds=1))
    sam = row_of(comparison, "SAM")
    assert (sam.n, sam.accuracy.std, sam.against_baseline.test) == (1, None, None)
    assert "accuracy in %, 1 seed (0)" in text_table(comparison)
    assert "± " not in text_table(comparison).split("(0)")[1]


def test_two_noise_levels_give_two_comparisons_in_order(tmp_path):
    write_methods(tmp_path, ("erm", "sam"), data={"noise": 0.8})
    write_methods(tmp_path, ("erm", "sam"), data={"noise": 0.0})
    titles = [comparison.title for comparison in compared(tmp_path)]
    assert titles == [
        "digits · digits-cnn · clean labels",
        "digits · digits-cnn · 80 % label noise",
    ]


def test_comparisons_that_would_have_one_title_say_how_they_differ(tmp_path):
    write_short_run(tmp_path, "erm", training={"lr": 0.1})
    write_short_run(tmp_path, "erm", training={"lr": 0.05, "weight_decay": 0.001})
    assert [comparison.title for comparison in compared(tmp_path)] == [
        "digits · digits-cnn · 60 % label noise · lr = 0.05 · weight decay = 0.001",
        "digits · digits-cnn · 60 % label noise · lr = 0.1 · weight decay = 0.0001",
    ]


def test_where_the_data_lies_does_not_matter(tmp_path):
    write_short_run(tmp_path, "erm", data={"root": "here"})
    write_short_run(tmp_path, "sam", data={"root": "there"})
    (comparison,) = compared(tmp_path)
    assert [row.label for row in comparison.rows] == ["ERM", "SAM"]


def test_two_settings_of_a_method_are_two_rows_named_by_what_differs(tmp_path):
    for seed in range(2):
        for low, high, share in ((-1.0, 1.0, 48.0), (0.0, 2.0, 19.0)):
            settings = {"lambda1": low, "lambda2": high}
            write_short_run(tmp_path, "ae-looksam", seed, settings=settings, percent_sam=share)
    (comparison,) = compared(tmp_path)
    assert [(row.label, row.n) for row in comparison.rows] == [
        ("AE-LookSAM (λ1 = −1, λ2 = 1)", 2),
        ("AE-LookSAM (λ1 = 0, λ2 = 2)", 2),
    ]


def test_a_compensated_radius_is_said_in_the_row_s_name(tmp_path):
    for settings in ({"p": 0.5}, {"p": 0.5, "compensate": 4.0}):
        write_short_run(tmp_path, "ss-sam", settings=settings)
    (comparison,) = compared(tmp_path)
    assert [row.label for row in comparison.rows] == [
        "SS-SAM (compensate unset)",
        "SS-SAM (compensated ≤ 4)",
    ]


def test_of_several_baseline_settings_the_one_with_similar_percent_sam_is_taken(tmp_path):
    for seed in range(2):
        for k, share, accuracy in ((2, 50.0, 50.0), (5, 20.0, 75.0)):
            write_short_run(
                tmp_path,
                "looksam",
                seed,
                settings={"k": k},
                percent_sam=share,
                test_accuracy=accuracy + seed,
            )
        write_short_run(tmp_path, "ae-looksam", seed, percent_sam=47.0, test_accuracy=66.0 - seed)
    (comparison,) = compared(tmp_path)
    assert row_of(comparison, "AE-LookSAM").against_baseline.label == "LookSAM (k = 2)"


def test_held_out_runs_are_compared_on_validation_accuracy_and_the_table_says_so(tmp_path):
    numbers = {"test_accuracy": None, "validation_accuracy": 71.25}
    write_short_run(tmp_path, "erm", data={"holdout": 0.1}, **numbers)
    (comparison,) = compared(tmp_path)
    assert comparison.measured_on == "validation"
    assert "validation accuracy" in text_table(comparison)
    assert "71.25" in text_table(comparison)


def test_the_same_run_twice_is_refused_with_both_folders(tmp_path):
    first, second = (write_short_run(tmp_path, "erm", 4) for _ in range(2))
    with pytest.raises(UsageError) as caught:
        compared(tmp_path)
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)


def test_gradients_are_counted_per_step_of_a_whole_training(tmp_path):
    """Not per step of one that ends early on purpose, unless there are only such."""
    write_short_run(tmp_path / "early", "erm-early", steps=90, gradients=90)
    (alone,) = compared(tmp_path / "early")
    assert row_of(alone, "ERM, stopped early").gradients_per_step == 1.0
    write_short_run(tmp_path / "whole", "sam", steps=720, gradients=1440)
    (beside,) = compared(tmp_path)
    assert row_of(beside, "ERM, stopped early").gradients_per_step == 90 / 720
    assert row_of(beside, "SAM").gradients_per_step == 2.0


def test_what_only_some_seeds_were_judged_by_is_said_with_these_seeds(tmp_path):
    write_short_run(tmp_path, "swad", seed=0, evaluated="a mean")
    write_short_run(tmp_path, "swad", seed=1, left_undone="there was no start")
    write_short_run(tmp_path, "ema", seed=0, evaluated="an average")
    (comparison,) = compared(tmp_path)
    told = explanation(comparison)
    assert "SWAD (seed 0): accuracy of a mean. SWAD (seed 1): there was no start." in told
    assert "EMA: accuracy of an average." in told
