"""Claims on benches, from standings made up for them."""

import pytest

from aesam.evidence import tested_claims
from aesam.evidence.contenders import CONTENDERS
from aesam.evidence.standing import Standing

SEEDS = range(10, 20)


def standing(name, offset, at_edge=(), seeds=SEEDS, spread=0.001):
    scores = {seed: 90.0 + seed / 10 + offset + spread * (-1) ** seed for seed in seeds}
    return Standing(name, {"rho": 1.0}, at_edge, scores, 100.0, 2.0, 0)


def word(claim, *rows, bench="digits-40"):
    (found,) = [t for t in tested_claims.tested({bench: rows}) if t.claim.told == claim]
    return found.word


SAM = standing("sam", 0.0, spread=0.0)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0.3, "holds"), (-0.4, "holds"), (-0.6, "does not hold")],
)
def test_as_good_is_an_interval_above_the_margin(offset, expected):
    assert word("AE-SAM as good as SAM", SAM, standing("ae-sam", offset)) == expected


def test_as_good_with_a_wide_interval_cannot_be_told():
    wide = standing("ae-sam", -0.3, spread=1.0)
    assert word("AE-SAM as good as SAM", SAM, wide) == "cannot tell"


@pytest.mark.parametrize(
    ("offset", "spread", "expected"),
    [(-1.0, 0.1, "holds"), (1.0, 0.1, "does not hold"), (-0.3, 2.0, "cannot tell")],
)
def test_better_is_a_difference_that_survives_the_correction(offset, spread, expected):
    assert word("SAM better than ERM", SAM, standing("erm", offset, spread=spread)) == expected


def test_an_edge_or_too_few_seeds_give_no_verdict():
    assert word("SAM better than ERM", standing("sam", 0.0, ("rho",)), standing("erm", -9.0)) == (
        "no verdict"
    )
    few = standing("erm", -9.0, seeds=range(10, 19))
    assert word("SAM better than ERM", SAM, few) == "no verdict"


def test_all_claims_on_all_benches_are_one_family():
    rows = (SAM, standing("erm", -0.2, spread=0.25))
    alone = tested_claims.tested({"digits-40": rows})[0]
    crowd = tested_claims.tested(dict.fromkeys(("digits-40", "digits-60", "cifar-40"), rows))
    assert [t.p_holm for t in crowd] == pytest.approx([3 * alone.p_holm] * 3)


def test_every_claim_is_of_known_rows():
    named = {name for c in tested_claims.CLAIMS for name in (c.ours, c.theirs)}
    assert named <= set(CONTENDERS)
