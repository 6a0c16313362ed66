"""CIFAR's python form as a weapon: nothing is called, nothing imported, no memory asked for."""

import pytest
from support import hostile_pickles
from support.processes import under_watch

pytestmark = pytest.mark.slow


def test_hostile_pickles_are_refused_and_nothing_of_them_happens(tmp_path, faults):
    canary = tmp_path / "canary"
    cases = [
        *faults.of(list(hostile_pickles.calls(canary)), 60),
        *faults.of(list(hostile_pickles.misuses()), 40),
        *faults.of(list(hostile_pickles.instructions()), 150),
        *faults.of(list(hostile_pickles.sizes()), 50),
        *hostile_pickles.bombs(),
    ]
    ends, most = under_watch("pickles", tmp_path / "pickles", cases)
    for label, end in ends.items():
        assert end is not None, f"{label} was taken"
        assert "data_batch_1 " in end, (label, end)
        assert "`aesam data cifar10" in end, (label, end)
    assert not canary.exists()
    assert most < 700, f"{most} MB"
    faults.held("a hostile pickle", len(cases), "refused; nothing called, imported or allocated")


def test_damaged_pickles_are_read_or_refused(tmp_path, faults):
    cases = list(hostile_pickles.damaged(faults.number(6, 400)))
    ends, most = under_watch("pickles", tmp_path / "pickles", cases)
    for end in ends.values():
        assert end is None or "data_batch_1 " in end
    assert sum(end is not None for end in ends.values()) > len(ends) / 4
    assert most < 700, f"{most} MB"
    faults.held("a cut or flipped pickle without a known sum", len(cases), "read or refused")
