"""``aesam triggers``: pairs at equal cost, seeds until the interval is narrow, and sentences."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats
from support.commands import aesam

from aesam import Observation
from aesam.evidence import benches, results, settings, triggers
from aesam.evidence.benches import Bench
from aesam.evidence.book import Book
from aesam.evidence.contenders import TRIGGER_GROUPS
from aesam.evidence.standing import Difference, Standing
from aesam.evidence.triggers_page import TriggerPair, sentences
from aesam.lab import lab_methods
from aesam.lab.data import data_record

BENCH = benches.BENCHES["digits-40"]
FIRST = TRIGGER_GROUPS[0]


def standing(name, scores):
    return Standing(name, {"rho": 1.0}, (), scores, 50.0, 1.5, 0)


def test_the_adaptive_trigger_is_compared_with_others_of_its_group_and_p_is_corrected():
    rows = {
        "adaptive": {1: 3.0, 2: 4.0, 3: 5.5},
        "coin": {1: 2.0, 2: 3.5, 3: 4.0},
        "periodic": {1: 3.0, 2: 4.5, 3: 5.0},
        "adaptive-reuse-20": {1: 1.0, 2: 2.0, 3: 2.5},
        "coin-reuse-20": {1: 3.0, 2: 3.0, 3: 3.0},
        "coin-reuse": {1: 9.0, 2: 9.0, 3: 9.0},
    }
    pairs = triggers.compared([standing(name, scores) for name, scores in rows.items()])
    assert [(p.group.ours.name, p.theirs, p.label) for p in pairs] == [
        ("adaptive", "coin", "coin"),
        ("adaptive", "periodic", "periodic"),
        ("adaptive-reuse-20", "coin-reuse-20", "coin"),
    ]
    plain = {
        p.theirs: stats.ttest_rel(
            list(rows[p.group.ours.name].values()), list(rows[p.theirs].values())
        ).pvalue
        for p in pairs
    }
    ordered = sorted(plain.values())
    assert min(p.p_holm for p in pairs) == pytest.approx(3 * ordered[0])
    assert pairs[0].found.mean == pytest.approx(1.0)


def test_triggers_of_a_group_expect_the_same_rate_and_the_same_use_of_other_steps():
    """At equal cost, that is: from the parts that the rows make, over a whole training."""
    for group in TRIGGER_GROUPS:
        made = [
            lab_methods.make(
                settings.run_of(BENCH.base, row, 0, **dict.fromkeys(searched(row), 0.5)).method,
                torch.optim.SGD(net.parameters(), lr=0.1),
                net,
                total_steps=1000,
                seed=0,
            ).parts
            for row in group.rows.values()
            for net in [torch.nn.Linear(1, 1)]
        ]
        rates = dict(zip(group.rows, (rate_of(parts.policy) for parts in made), strict=True))
        if "coin at half" in rates:  # the other is for norms that are not normal; see below
            assert rates.pop("coin") < rates["coin at half"] + 0.01
        assert max(rates.values()) - min(rates.values()) <= 0.05, (group.title, rates)
        assert len({reuses(parts.between) for parts in made}) == 1, group.title


def test_the_coin_against_the_papers_rule_takes_as_many_steps_as_the_rule_did():
    published = Path(__file__).parents[2] / "results/frontier/triggers-digits-40.json"
    book = Book(published, BENCH)
    for group in TRIGGER_GROUPS:
        if "coin at half" in group.rows:
            ours, coin = results.standings(
                BENCH, [group.ours, group.rows["coin"]], book, range(10, 60)
            )
            assert len(ours.scores) >= 40
            assert coin.percent_sam == pytest.approx(ours.percent_sam, abs=0.5), group.title


def searched(row):
    return [each.name for each in settings.ranges_of(BENCH, row)]


def reuses(between):
    return getattr(between, "alpha", 0.0) != 0.0


def rate_of(policy):
    """Steps with a second gradient on squared norms that are normal and independent."""
    generator, state, fired = torch.Generator().manual_seed(1), policy.start(), 0
    for step in range(1000):
        norm = 10.0 + float(torch.randn(1, generator=generator))
        decision, state = policy.decide(
            Observation(step=step, squared_norm=norm, generator=generator), state
        )
        fired += decision.use_sam
    return fired / 1000


@pytest.mark.parametrize(
    ("found", "p", "told"),
    [
        (Difference(30, 1.0, 0.6, 1.4, 0.001), 0.006, "the adaptive trigger is better"),
        (Difference(30, -1.0, -1.4, -0.6, 0.001), 0.006, "the adaptive trigger is worse"),
        (Difference(30, 0.1, -0.2, 0.4, 0.4), 1.0, "as good as each other, within 0.5"),
        (Difference(50, 0.3, -0.3, 0.9, 0.3), 1.0, "(± 0.60, 0.5 was asked for)"),
        (Difference(30, 0.3, -0.1, 0.7, 0.1), 0.6, "a small one is not ruled out"),
        (Difference(9, 1.0, 0.9, 1.1, 0.001), 0.006, "no verdict with fewer than 10 seeds"),
    ],
)
def test_every_outcome_has_its_sentence(found, p, told):
    (sentence,) = sentences(BENCH, [], [TriggerPair(FIRST, "coin", found, p)], 0.5)
    assert told in sentence
    assert sentence.startswith(
        "digits, 40 % wrong labels, half of the steps, no reuse: adaptive against coin"
    )


def test_settings_at_an_edge_give_no_verdict():
    found = Difference(30, 1.0, 0.6, 1.4, 0.001)
    edge = replace(standing("coin", {1: 1.0}), at_edge=("rho",))
    (sentence,) = sentences(BENCH, [edge], [TriggerPair(FIRST, "coin", found, 0.006)], 0.5)
    assert "no verdict, since the settings of coin are at an edge" in sentence


@pytest.mark.slow
def test_seeds_are_added_until_it_can_be_told_and_what_is_finished_stays(
    tmp_path, capsys, monkeypatch
):
    usual = data_record("synthetic").usual
    base = replace(usual, training=replace(usual.training, epochs=1))
    tiny = Bench("tiny", "four blobs", base, {"holdout": 0.5}, (0.1, 0.2))
    monkeypatch.setitem(benches.BENCHES, "tiny", tiny)
    monkeypatch.setattr(settings, "LIMIT", 0)
    monkeypatch.setattr(settings, "SEARCH_SEEDS", (0,))
    monkeypatch.setattr(triggers, "AT_ONCE", 2)
    pair = {label: FIRST.rows[label] for label in ("adaptive", "coin")}
    monkeypatch.setattr(triggers, "TRIGGERS", list(pair.values()))
    monkeypatch.setattr(triggers, "TRIGGER_GROUPS", [replace(FIRST, rows=pair)])
    places = ("--out", tmp_path / "runs", "--publish", tmp_path / "kept", "--jobs", 1, "--quiet")
    words = ("triggers", "--bench", "tiny", "--half-width", 1e-9, *places)
    assert aesam(*words, "--most", 4) == 0
    book = tmp_path / "kept" / "triggers-tiny.json"
    first = json.loads(book.read_text())["runs"]
    seeds = {seed for run in first if not run["search"] for seed in run["seeds"]}
    assert seeds == {"10", "11", "12", "13"}  # the interval never was so narrow
    assert "adaptive against coin" in book.with_suffix(".txt").read_text()
    assert book.with_suffix(".svg").read_text().startswith("<svg")
    code, told = aesam(*words[:-1], "--most", 2, "--no-train", capsys=capsys)
    assert code == 0
    assert json.loads(book.read_text())["runs"] == first
    code, told = aesam(*words, "--most", 50, "--half-width", 1e6, capsys=capsys)
    assert code == 0
    assert json.loads(book.read_text())["runs"] == first  # two seeds were enough


def test_what_cannot_be_asked_for_is_refused(tmp_path, capsys):
    for words, told in (
        (("--most", 1), "most must be at least 2"),
        (("--half-width", 0), "half-width must be above 0"),
        (("--bench", "digits-41"), "did you mean digits-4"),
    ):
        code, said = aesam("triggers", *words, "--publish", tmp_path, capsys=capsys)
        assert code == 2
        assert told in said
