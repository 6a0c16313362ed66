"""Which row to take at a cost, from standings made up for it."""

import pytest

from aesam.evidence import choosing
from aesam.evidence.standing import Standing

SEEDS = range(10, 20)


def standing(name, offset, samples, at_edge=(), seeds=SEEDS):
    scores = {seed: 90.0 + seed / 10 + offset + 0.001 * (-1) ** seed for seed in seeds}
    return Standing(name, {"rho": 1.0}, at_edge, scores, 100.0, samples, 0)


def bench(*rows):
    return [standing("sam", 0.0, 2.0), *rows]


def names(found):
    return [each.name for each in choosing.candidates(found)]


def test_what_counts_of_a_row_is_the_bench_on_which_it_does_worst():
    found = {
        "digits-40": bench(standing("sub-sam", 1.0, 1.125), standing("looksam-10", -0.6, 1.1)),
        "cifar-clean": bench(standing("sub-sam", -3.0, 1.125), standing("looksam-10", -0.5, 1.1)),
    }
    among = choosing.candidates(found)
    assert choosing.best_at(1.15, among).name == "looksam-10"
    (sub,) = [each for each in among if each.name == "sub-sam"]
    assert sub.worst_bench == "cifar-clean"
    assert sub.worst == pytest.approx(-3.0 / 0.5, abs=0.01)
    assert choosing.best_at(2.0, among).name == "sam"
    assert choosing.best_at(1.0, among) is None


def test_a_hundredth_of_a_nat_weighs_as_much_as_half_a_point():
    found = {
        "digits-40": bench(standing("sub-sam", -1.0, 1.1), standing("looksam-10", 0.0, 1.1)),
        "text": bench(standing("sub-sam", 0.0, 1.1), standing("looksam-10", -0.05, 1.1)),
    }
    among = {each.name: each for each in choosing.candidates(found)}
    assert among["sub-sam"].worst == pytest.approx(-2.0, abs=0.01)
    assert among["looksam-10"].worst == pytest.approx(-5.0, abs=0.2)


def test_rows_that_are_not_finished_everywhere_are_not_asked():
    found = {
        "digits-40": bench(standing("msam", 0.0, 1.0), standing("looksam-10", 0.0, 1.1)),
        "cifar-clean": bench(standing("msam", 0.0, 1.0, seeds=range(10, 19))),
    }
    assert names(found) == ["sam"]


def test_a_bench_without_sam_does_not_count_and_an_edge_is_not_chosen():
    found = {
        "digits-40": bench(standing("msam", 0.0, 1.0, at_edge=("rho",))),
        "cifar-clean": [standing("msam", 0.0, 1.0)],
        "cifar-40": [standing("sam", 0.0, 2.0, at_edge=("rho",))],
    }
    assert choosing.compared_on(found) == ["digits-40"]
    assert names(found) == ["sam", "msam"]
    assert choosing.best_at(1.0, choosing.candidates(found)) is None


def test_without_any_bench_there_is_nobody():
    assert choosing.candidates({"digits-40": []}) == []
