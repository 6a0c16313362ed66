"""The settings of a comparison on digits are those that the published search chose."""

import json
import statistics
import sys
from pathlib import Path

import pytest

from aesam.evidence.benches import BENCHES, FRESH_SEEDS
from aesam.evidence.contenders import CONTENDERS
from aesam.evidence.results import published
from aesam.evidence.settings import run_of
from aesam.lab.cli import COMMANDS, parse
from aesam.lab.lab_methods import all_methods, tuned
from aesam.lab.settings_on_digits import ON_DIGITS

RESULTS = Path(__file__).parents[2] / "results"
BOOK = RESULTS / "frontier/digits-40.json"
FOUND = {name: row["chosen"] for name, row in json.loads(BOOK.read_text())["settings"].items()}
ROWS = sorted(FOUND.keys() & set(all_methods()))


@pytest.fixture(scope="module")
def default():
    """What `aesam compare` does without a flag."""
    before, sys.argv = sys.argv, ["aesam", "compare"]
    try:
        return parse(COMMANDS)
    finally:
        sys.argv = before


@pytest.mark.parametrize("name", ROWS)
def test_a_method_has_what_was_chosen_for_the_row_of_its_name(name):
    assert tuned(name) == {**CONTENDERS[name].fixed, **FOUND[name]}


def test_no_method_has_settings_that_nobody_searched():
    assert set(ON_DIGITS) <= set(ROWS)


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"erm-early"}))
def test_the_run_of_a_comparison_is_the_one_of_the_evidence(name, default):
    """To the last setting, so that the numbers of one are those of the other."""
    (noise,) = default.noise
    own = default.run(name, 10, noise, **default.usual_settings(name, "digits"))
    assert own == run_of(BENCHES["digits-40"].base, CONTENDERS[name], 10, **FOUND[name])


def test_the_published_demo_is_the_default_comparison_and_the_first_seeds_of_the_evidence(default):
    demo = json.loads((RESULTS / "demo/results.json").read_text())
    (comparison,) = demo["comparisons"]
    assert (demo["command"], demo["seeds"]) == ("aesam compare", list(default.seeds))
    assert demo["seeds"] == list(FRESH_SEEDS)[:3]
    assert {row["method"] for row in comparison["rows"]} == {*default.methods}
    kept = {s.name: s for s in published(BENCHES["digits-40"], BOOK.parent)}
    for row in comparison["rows"]:
        its = kept[row["method"]]
        assert row["settings"].items() >= {**CONTENDERS[its.name].fixed, **its.settings}.items()
        # A machine of another kind rounds otherwise, and training carries that into every digit.
        mean = statistics.fmean(run["test_accuracy"] for run in row["runs"])
        assert abs(mean - statistics.fmean(its.scores[seed] for seed in demo["seeds"])) < 2.0


def test_the_default_comparison_has_the_paper_s_seven_and_the_strongest_cheap_control(default):
    assert default.methods[:2] == ("erm", "erm-early")
    assert set(default.methods[2:]) == {
        "sam", "esam", "ss-sam", "looksam", "ae-sam", "ae-looksam",
    }  # fmt: skip


def test_no_seed_of_the_default_comparison_was_searched_with(default, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["aesam", "tune"])
    assert not {*default.seeds} & {*parse(COMMANDS).seeds}
