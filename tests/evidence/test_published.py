"""What is published in results/frontier follows from the books there."""

import json
from pathlib import Path

import pytest

from aesam.evidence import verdict
from aesam.evidence.benches import BENCHES, FRESH_SEEDS
from aesam.evidence.frontier_page import as_page, findings, sheet_of
from aesam.evidence.results import published

FRONTIER = Path(__file__).parents[2] / "results/frontier"
BOOKS = sorted({path.stem for path in FRONTIER.glob("*.json")} & set(BENCHES))
AGAIN = "run: aesam frontier --no-train && python benchmarks/pages.py"


@pytest.mark.parametrize("name", BOOKS or ["digits-40"])
def test_the_table_of_a_bench_is_the_one_of_its_book(name):
    bench, found = BENCHES[name], published(BENCHES[name], FRONTIER)
    table = FRONTIER / f"{name}.txt"
    assert table.exists() == bool(found), AGAIN
    if found:
        expected = as_page(sheet_of(bench, found, FRESH_SEEDS), findings(bench, found))
        assert table.read_text() == expected, AGAIN
        assert (FRONTIER / f"{name}.svg").exists(), AGAIN


def test_the_verdict_is_the_one_of_the_books():
    assert json.loads((FRONTIER / "verdict.json").read_text()) == verdict.of_books(FRONTIER), AGAIN


def test_the_regime_of_the_text_bench_is_among_those_that_were_tried():
    base = BENCHES["text"].base
    tried = json.loads((FRONTIER / "text-regimes.json").read_text())["runs"]
    own = [
        run
        for run in tried
        if run["pieces"] == base.data.subset
        and run["parameters"] < 120_000
        and (run["epochs"], run["batch_size"], run["lr"])
        == (base.training.epochs, base.training.batch_size, base.training.lr)
    ]
    erm = [run for run in own if run["method"]["name"] == "erm"]
    sam = [run for run in own if run["method"]["name"] == "sam"]
    assert len({run["seed"] for run in erm}) >= 2
    assert len({run["method"]["rho"] for run in sam}) >= 3
    # ERM overfits, and at its best radius SAM is below it and below ERM stopped anywhere.
    assert all(run["validation_loss"] > run["train_loss"] + 0.5 for run in erm)
    best = min(run["validation_loss"] for run in sam)
    assert best < min(run["least_validation_loss"] for run in erm)
