"""The verdict over benches, from standings made up for it."""

import pytest

from aesam.evidence import verdict
from aesam.evidence.standing import Standing

SEEDS = range(10, 20)


def standing(name, offset, samples=1.1, settings=None, at_edge=(), seeds=SEEDS):
    """Scores that differ from SAM's by the offset, give or take the same small amount."""
    scores = {seed: 90.0 + seed / 10 + offset + 0.001 * (-1) ** seed for seed in seeds}
    return Standing(name, {"rho": 1.0} if settings is None else settings, at_edge, scores,
                    100.0, samples, 0)  # fmt: skip


def benches(*offsets, **changes):
    sam = Standing("sam", {"rho": 1.0}, (), {s: 90.0 + s / 10 for s in SEEDS}, 100.0, 2.0, 0)
    return {
        name: [sam, standing("sub-sam", offset, **changes)]
        for name, offset in zip(verdict.FOUR, offsets, strict=True)
    }


def test_as_good_on_three_of_four_benches_reaches_it():
    found = verdict.of_standings(benches(0.0, -0.4, -3.0, 0.1))
    assert found["reached"] is True
    assert found["by"] == ["sub-sam"]
    assert "reached, by sub-batch SAM (digits-40, cifar-clean, text)" in found["sentences"][0]


def test_the_margin_of_text_is_its_own():
    found = verdict.of_standings(benches(0.0, 0.0, -3.0, -0.4))
    assert found["reached"] is False
    assert "not reached; no rule is on more than 2" in found["sentences"][0]
    assert found["rules"]["sub-sam"]["text"]["as good"] is False


@pytest.mark.parametrize(
    ("changes", "rules", "why"),
    [
        ({"samples": 1.2}, [], None),  # too dear
        ({"settings": {}}, [], None),  # nothing of it was tuned
        ({"at_edge": ("rho",)}, ["sub-sam"], "sub-sam is at the edge of what was tried"),
        ({"seeds": range(10, 19)}, ["sub-sam"], "9 fresh seeds are fewer than 10"),
    ],
    ids=["dear", "no radius", "edge", "seeds"],
)
def test_what_takes_part_in_no_verdict_reaches_nothing(changes, rules, why):
    found = verdict.of_standings(benches(0.0, 0.0, 0.0, 0.0, **changes))
    assert found["reached"] is False
    assert list(found["rules"]) == rules
    if why:
        assert all(why in each["why no verdict"] for each in found["rules"]["sub-sam"].values())
        assert why in found["sentences"][1]


def test_two_benches_that_are_missed_end_it_before_all_are_run():
    made = benches(-3.0, -3.0, 0.0, 0.0)
    one, two, *_ = made
    told = verdict.of_standings({one: made[one], two: made[two]})["sentences"][0]
    assert "not reached by any rule that is run on all of them (sub-batch SAM)" in told
    assert "whatever cifar-40 and text will say: digits-40, cifar-clean are too many" in told
    early = benches(-3.0, -3.0, 0.0, 0.0, seeds=range(10, 19))  # too few seeds to say
    (told, *_) = verdict.of_standings({one: made[one], two: early[two]})["sentences"]
    assert "open, since no such rule is finished on cifar-40, text" in told
    (told, *_) = verdict.of_standings({one: made[one]})["sentences"]
    assert "open, since no such rule is finished on cifar-clean, cifar-40, text" in told


def test_without_runs_on_a_bench_it_is_open_and_named(tmp_path):
    found = verdict.of_books(tmp_path)
    assert found["reached"] is False
    (told,) = found["sentences"]
    assert "open, since no such rule is finished on digits-40, cifar-clean" in told
