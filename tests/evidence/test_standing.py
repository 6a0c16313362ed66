"""Differences, corrections and the front, against closed forms."""

import math
from dataclasses import replace

import pytest
from scipy import stats

from aesam.evidence import frontier_page, settings
from aesam.evidence.benches import BENCHES
from aesam.evidence.contenders import CONTENDERS
from aesam.evidence.frontier_page import COUNTED, MEASURED, drawings_of, remark, sheet_of
from aesam.evidence.standing import (
    Standing,
    costs,
    difference,
    front,
    gradient_samples,
    holm,
    standing_of,
)
from aesam.evidence.timing import StepTime
from aesam.lab.config import Method, Run


def standing(name, score, cost):
    return Standing(name, {}, (), {10: score, 11: score}, 0.0, cost, 0)


def test_the_interval_of_a_difference_is_students_of_the_paired_differences():
    ours, theirs = {1: 3.0, 2: 5.0, 3: 4.5, 9: 0.0}, {1: 2.0, 2: 4.5, 3: 4.5, 8: 1.0}
    found = difference(ours, theirs)
    expected = stats.ttest_rel([3.0, 5.0, 4.5], [2.0, 4.5, 4.5])
    low, high = expected.confidence_interval(0.95)
    assert (found.n, found.mean) == (3, 0.5)
    assert [found.low, found.high, found.p_value] == pytest.approx([low, high, expected.pvalue])
    assert found.half_width == pytest.approx((high - low) / 2)


def test_a_single_seed_in_common_has_no_difference_and_equal_ones_no_width():
    assert difference({1: 1.0, 2: 2.0}, {2: 1.0}) is None
    same = difference({1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0})
    assert (same.low, same.high, same.p_value) == (0.0, 0.0, 1.0)


def test_holms_correction_multiplies_by_what_is_left_and_never_falls():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "b": 0.06, "c": 0.06}
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_the_front_has_those_that_nobody_beats_at_the_same_or_a_lower_cost():
    rows = [
        standing("erm", 50, 1.0),
        standing("sam", 90, 2.0),
        standing("esam", 89, 2.5),
        standing("sub-sam", 90, 1.1),
        standing("msam", 40, 1.0),
    ]
    assert front(rows, costs(rows)) == ["erm", "sub-sam"]


def test_costs_are_measured_times_only_where_every_row_has_one():
    rows = [replace(standing("ss-sam", 50, 1.5), time=1.6), standing("sam", 90, 2.0)]
    assert costs(rows) == {"ss-sam": 1.5, "sam": 2.0}
    timed = [rows[0], replace(rows[1], time=2.5)]
    assert costs(timed) == {"ss-sam": 1.6, "sam": 2.5}


def test_what_a_method_of_the_lab_does_beside_its_steps_has_no_time_and_waits_for_none():
    timed = [replace(standing("sam", 90, 2.0), time=2.5), standing("saf", 95, 1.0)]
    assert costs(timed) == {"sam": 2.5}
    assert front(timed, costs(timed)) == ["sam"]


def test_runs_that_end_no_better_than_guessing_are_told():
    run = settings.run_of(BENCHES["digits-40"].base, CONTENDERS["sam"], 10, rho=1.0)
    kept = {"percent_sam": 100.0, "steps": 100, "test_accuracy": 50.0}
    runs = [(run, {**kept, "train_accuracy": at}) for at in (60.0, 11.0, 19.0)]
    found = standing_of("sam", runs, "accuracy", {}, (), 1.0, None)
    assert found.unlearnt == 2
    assert remark(replace(found, scores={1: 50.0, 2: 50.0, 3: 50.0})) == "2 of 3 did not learn"


def test_a_standing_counts_what_went_astray_and_a_lost_loss_as_guessing():
    kept = {"percent_sam": 50.0, "steps": 100, "train_loss": 1.0, "test_loss": 2.0}
    lost = {**kept, "test_loss": None, "diverged": True, "skipped_steps": 40}
    runs = [
        (replace(Run(method=Method("sam", rho=0.1)), seed=s), k) for s, k in ((3, kept), (4, lost))
    ]
    time = StepTime(plain=1.0, fired=2.0, steps=60)
    found = standing_of("sam", runs, "loss", {"rho": 0.1}, (), 2.0, time, lost=4.0)
    assert found.scores == {3: -2.0, 4: -4.0}
    assert (found.diverged, found.skipped, found.steps, found.trained) == (1, 40, 200, 1.0)
    assert (found.samples, found.time) == (3.0, 3.0)  # half of the steps twice, twice as long
    assert remark(found) == "† 1 of 2 diverged, 40 of 200 steps skipped"


@pytest.mark.parametrize(
    ("method", "fired", "batches"),
    [
        (Method("erm"), 0.0, 1.0),
        (Method("sam", rho=0.1), 1.0, 2.0),
        (Method("ae-sam", rho=0.1), 0.25, 1.25),
        (Method("sub-sam", share=0.125), 1.0, 1.125),
        (Method("k-sam", share=0.5), 1.0, 1.0 + 1 / 3),
        (Method("esam", gamma=0.5), 1.0, 1.5 + 1 / 3),
        (Method("msam", rho=1.0), 0.0, 1.0),
        (Method("mesa"), 0.0, 1.0 + 1 / 3),
    ],
)
def test_gradients_are_counted_in_batches_and_a_forward_is_a_third(method, fired, batches):
    assert math.isclose(gradient_samples(replace(Run(), method=method), fired), batches)


@pytest.mark.parametrize("room", [3, 4])
def test_figures_are_against_both_costs_and_name_controls_and_front_and_all_with_room(
    room, monkeypatch
):
    monkeypatch.setattr(frontier_page, "ROOM", room)
    rows = [
        replace(standing("erm", -1.9, 1.0), time=1.0),
        replace(standing("erm-early", -1.75, 0.5), time=0.5),
        replace(standing("sam", -1.7, 2.0), time=2.0, diverged=1),
        replace(standing("gnp", -1.8, 2.0), time=2.1),
    ]
    measured, counted = drawings_of(BENCHES["text"], rows)
    assert (measured.name, counted.name) == ("text", "text-counted")
    assert MEASURED in measured.svg
    assert COUNTED in counted.svg
    for drawing in (measured, counted):
        named = [
            name for name in ("ERM", "ERM, stopped early", "SAM", "GNP") if name in drawing.svg
        ]
        assert named == ["ERM", "ERM, stopped early", "SAM", "GNP"][:room]
    (alone,) = drawings_of(BENCHES["text"], [*rows, standing("asam", -1.7, 2.0)])
    assert alone.name == "text"  # one row has no time, so all costs are counted ones
    assert COUNTED in alone.svg


def test_losses_are_shown_as_losses_and_lower_ones_first():
    rows = [standing("erm", -1.9, 1.0), standing("sam", -1.7, 2.0)]
    sheet = sheet_of(BENCHES["text"], rows, range(10, 20))
    assert [line.cells[1] for line in sheet.lines] == ["1.700 ± 0.000", "1.900 ± 0.000"]
    assert sheet.lines[1].cells[4].startswith("−0.200")
    assert "test loss" in sheet.caption
