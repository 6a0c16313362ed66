"""What is published in results/frontier follows from the books there."""

import json
import shutil
from pathlib import Path

import pytest
from support.commands import aesam

from aesam.evidence import verdict
from aesam.evidence.benches import BENCHES, FRESH_SEEDS
from aesam.evidence.contenders import named
from aesam.evidence.course import Course, Places
from aesam.evidence.frontier_page import as_page, findings, sheet_of
from aesam.evidence.results import published
from aesam.lab import files
from aesam.lab.cli.run_flags import RunnerFlags
from aesam.lab.crew import Crew

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


@pytest.mark.slow
@pytest.mark.parametrize("name", BOOKS)
def test_the_settings_of_a_book_are_those_that_its_runs_lead_the_search_to(name, tmp_path):
    book = tmp_path / f"{name}.json"
    shutil.copy(FRONTIER / book.name, book)
    published = json.loads(book.read_text())["settings"]
    with Crew() as crew:
        places = Places(tmp_path / "runs", book, RunnerFlags(), crew, train=False)
        found = Course(BENCHES[name], named(published), places).found()
    assert files.without_nan(found) == published, "run: aesam frontier"


@pytest.mark.slow
@pytest.mark.parametrize("book", sorted(FRONTIER.glob("triggers-*.json")), ids=lambda p: p.stem)
def test_the_table_of_triggers_is_the_one_of_its_book(book, tmp_path):
    shutil.copy(book, tmp_path)
    where = ("--out", tmp_path / "runs", "--publish", tmp_path)
    bench = book.stem.removeprefix("triggers-")
    assert aesam("triggers", "--bench", bench, "--no-train", "--quiet", *where) == 0
    made, kept = (path.with_suffix(".txt").read_text() for path in (tmp_path / book.name, book))
    assert made == kept, "run: aesam triggers --no-train && python benchmarks/pages.py"


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
