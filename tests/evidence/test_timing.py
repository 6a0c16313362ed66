"""Steps beside ERM's: every kind of step is measured, and nobody else's training is touched."""

from dataclasses import replace

import pytest
import torch

from aesam.evidence.timing import StepTime, step_times
from aesam.lab.config import Method
from aesam.lab.data import data_record
from aesam.lab.lab_methods import fill


def measured(**methods):
    usual = data_record("synthetic").usual
    runs = {name: replace(usual, method=fill(method)) for name, method in methods.items()}
    told = []
    found = step_times(runs, lambda name, time: told.append((name, time)), steps=20)
    assert dict(told) == found
    return found


def test_both_kinds_of_steps_are_measured_where_a_training_has_both():
    found = measured(
        erm=Method("erm"), sam=Method("sam"), half=Method("ss-sam", p=0.5), late=Method("late-sam")
    )
    kinds = {name: (time.plain is not None, time.fired is not None) for name, time in found.items()}
    assert kinds == {
        "erm": (True, False),
        "sam": (False, True),
        "half": (True, True),
        "late": (True, True),  # its second gradients come at the end of what is a whole training
    }
    assert all(time.steps == 20 for time in found.values())


def test_measuring_leaves_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measured(erm=Method("erm"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_time_of_a_run_is_of_as_many_fired_steps_as_it_had():
    assert StepTime(1.0, 2.0, 60).mean(0.25) == 1.25
    assert StepTime(None, 2.0, 60).mean(0.9) == 2.0  # a kind that did not come is the other
    assert StepTime(1.0, None, 60).mean(0.1) == 1.0
    with pytest.raises(ValueError, match="no step was measured"):
        StepTime(None, None, 0).mean(0.5)
