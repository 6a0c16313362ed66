"""The values of a setting widen by doubling, up to their natural bounds and no further."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.problems import FOR_ANY_MODEL, normed_mlp

import aesam
from aesam.registry import Setting
from aesam.searching import Range


def both_sides(each, values):
    return each.beyond(values, up=False), each.beyond(values, up=True)


CASES = {
    "a radius": (Range("rho", (0.5, 1.0), 0.5, least=0.0), (0.25, 2.0)),
    "a radius of 0 has nothing below": (Range("rho", (0.0, 1.0), 0.0, least=0.0), (None, 2.0)),
    "whole numbers": (Range("k", (3, 5), 5, least=1), (1, 10)),
    "whole numbers at their bound": (Range("k", (1, 2), 5, least=1), (None, 4)),
    "the bound where it is passed": (Range("p", (0.4, 0.6), 0.5, least=0.0, most=1.0), (0.2, 1.0)),
    "half-way to an open bound": (
        Range("delta", (0.5, 0.75), 0.5, least=0.0, most=1.0, is_open=True), (0.25, 0.875),
    ),
    "negative values": (Range("lambda1", (-3.0, -2.0), -2.0), (-6.0, -1.0)),
    "both signs": (Range("alpha", (-1.0, 2.0), 1.0), (-2.0, 4.0)),
    "away from 0 as far as to the others": (Range("alpha", (0.0, 0.5), 0.5), (-0.5, 1.0)),
    "0 alone": (Range("alpha", (0.0,), 0.0), (-1.0, 1.0)),
    "what floats can hold": (Range("rho", (5e-324, 1e308), 1.0, least=0.0), (0.0, None)),
    "what whole settings can hold": (Range("k", (1, 2**62), 1, least=1), (None, None)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_next_value_on_each_side_is(case):
    each, expected = CASES[case]
    found = both_sides(each, each.start)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@given(
    st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=5),
    st.sampled_from([(-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0), (-2.0, 3.0)]),
    st.booleans(),
    st.booleans(),
)
def test_what_comes_next_is_outside_and_allowed(values, bounds, is_open, up):
    least, most = bounds
    inside = [v for v in values if least < v < most] or [0.5]
    each = Range("setting", tuple(inside), inside[0], least, most, is_open)
    beyond = each.beyond(each.start, up=up)
    if beyond is not None:
        assert each.allows(beyond)
        assert beyond > each.start[-1] if up else beyond < each.start[0]


def test_between_two_values_is_their_middle_by_ratio_where_they_are_not_near():
    rho, k = Range("rho", (0.5, 1.0), 0.5), Range("k", (2, 5), 5)
    assert (rho.between(0.4, 0.8), rho.between(0.1, 0.6)) == (0.566, 0.245)
    assert rho.between(-0.8, -0.4) == -0.566
    assert (rho.between(0.566, 0.8), rho.between(0.0, 0.4), rho.between(-1.0, 2.0)) == (None,) * 3
    assert (k.between(5, 10), type(k.between(5, 10))) == (7, int)
    assert k.between(1, 2) is None  # no whole number is between


@given(st.floats(1e-300, 1e300), st.floats(1.0, 1e6), st.booleans())
def test_what_is_between_is_between_and_comes_nearer(low, ratio, is_below_0):
    ends = sorted([low, low * ratio] if not is_below_0 else [-low, -low * ratio])
    middle = Range("setting", (1.0,), 1.0).between(*ends)
    if middle is not None:
        assert ends[0] < middle < ends[1]
    assert (middle is None) == (ratio < 1.5) or abs(ratio - 1.5) < 1e-9


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Range("rho", (), 0.1), "rho must have at least one value"),
        (lambda: Range("rho", (-0.1,), 0.1, least=0.0), "rho must be at least 0, got -0.1"),
        (lambda: Range("p", (0.5, 2.0), 0.5, 0.0, 1.0), "at least 0 and at most 1, got 2.0"),
        (lambda: Range("d", (1.0,), 0.5, 0.0, 1.0, True), "above 0 and below 1, got 1.0"),
        (lambda: Range("rho", (math.nan,), 0.1), "rho must be a finite number, got nan"),
        (lambda: Range("k", (2**63,), 1), "below 2[*][*]63"),
        (lambda: Setting("rho", 0.1, "radius", least=1.0, most=1.0), "least of rho must be below"),
    ],
)
def test_what_cannot_be_tried_is_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_a_number_of_another_kind_is_the_same_value():
    rho = aesam.method_record("sam").settings[0]
    assert rho.range_from((1, 2), 1).start == (1.0, 2.0)
    assert not rho.range_from((1, 2), 1).is_whole
    (k,) = [s for s in aesam.method_record("looksam").settings if s.name == "k"]
    assert k.range_from((2, 5), 5).is_whole
    switch = Setting("normalize", True, "a switch", grid=(False, True))
    assert both_sides(switch.range_from(switch.grid, True), (0, 1)) == (None, None)


BOUNDED = [
    pytest.param(name, setting, id=f"{name}-{setting.name}")
    for name in FOR_ANY_MODEL
    for setting in aesam.method_record(name).settings
    if not isinstance(setting.default, bool | None)
]


@pytest.mark.parametrize(("name", "setting"), BOUNDED)
def test_the_bounds_of_a_record_are_those_of_its_class(name, setting):
    """At and inside a bound the class takes what the record allows, beyond it refuses."""

    def takes(value):
        more = {"total_steps": 10} if aesam.method_record(name).needs_total_steps else {}
        try:
            own = {setting.name: value}
            aesam.create(name, normed_mlp(), lr=0.1, momentum=0.9, **own, **more)
        except ValueError:
            return False
        return True

    each = setting.range_from(setting.grid or (setting.default,), setting.default)
    assert takes(setting.default)
    kind = type(setting.default)
    for bound, outside in ((setting.least, -1), (setting.most, 1)):
        if math.isfinite(bound):
            assert not takes(kind(bound + outside))
            assert takes(kind(bound)) <= each.allows(kind(bound))
    for up in (False, True) if setting.grid else ():  # else nobody searches it
        beyond = each.beyond(each.start, up=up)
        assert beyond is None or takes(beyond)
