"""The counts in the docs are of what was tried."""

from support.fixtures_faults import WHOLE


def test_a_part_of_the_cases_goes_from_the_first_to_the_last(faults):
    chosen = faults.of(range(100), short=4)
    assert chosen == (list(range(100)) if WHOLE else [0, 33, 66, 99])
    assert faults.of("ab", short=4) == ["a", "b"]
    assert faults.number(3, 30) == (30 if WHOLE else 3)
