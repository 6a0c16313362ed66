"""``aesam frontier`` end to end at a tiny size, and the book that it goes on from."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import aesam

from aesam.evidence import benches, frontier_page, settings
from aesam.evidence.benches import FRESH_SEEDS, SEARCH_SEEDS, Bench
from aesam.evidence.book import Book, Finished
from aesam.evidence.contenders import (
    ALL,
    BESIDE,
    CONTROLS,
    FINALISTS,
    SHARES,
    TRIGGERS,
    Contender,
    named,
)
from aesam.evidence.course import Course, Places
from aesam.evidence.frontier_page import label_of_row
from aesam.lab import validation
from aesam.lab.cli.run_flags import RunnerFlags
from aesam.lab.crew import Crew
from aesam.lab.data import data_record


def tiny():
    usual = data_record("synthetic").usual
    base = replace(usual, training=replace(usual.training, epochs=2))
    return Bench("tiny", "four blobs", base, {"holdout": 0.5}, (0.1, 0.2))


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setitem(benches.BENCHES, "tiny", tiny())
    monkeypatch.setattr(settings, "LIMIT", 1)
    monkeypatch.setattr(settings, "SEARCH_SEEDS", (0,))
    return tiny()


def frontier(folder, *words, capsys):
    places = ("--out", folder / "runs", "--publish", folder / "kept", "--seeds", 10, 11)
    rows = ("--benches", "tiny", "--rows", "erm", "erm-early", "sam")
    return aesam("frontier", *rows, *places, *words, capsys=capsys)


@pytest.mark.slow
def test_every_row_is_searched_run_on_fresh_seeds_and_shown(bench, tmp_path, capsys):
    code, told = frontier(tmp_path, "--jobs", 1, "--quiet", capsys=capsys)
    assert code == 0
    assert "fewer than 10 fresh seeds of SAM, so no verdict" in told
    kept = json.loads((tmp_path / "kept" / "tiny.json").read_text())
    assert set(kept["settings"]) == {"erm", "erm-early", "sam"}
    assert kept["settings"]["sam"]["chosen"]["rho"] > 0
    assert kept["settings"]["erm-early"]["chosen"].keys() == {"length"}  # none of a method's
    reported = [run for run in kept["runs"] if not run["search"]]
    assert {(r["method"]["name"], s) for r in reported for s in r["seeds"]} == {
        (m, s) for m in ("erm", "sam") for s in ("10", "11")
    }
    searched = {int(seed) for run in kept["runs"] if run["search"] for seed in run["seeds"]}
    assert searched <= set(SEARCH_SEEDS)
    text = (tmp_path / "kept" / "tiny.txt").read_text()
    assert "ERM, stopped early" in text
    assert kept["time"] == {}
    assert (tmp_path / "kept" / "tiny.svg").read_text().startswith("<svg")

    shutil.rmtree(tmp_path / "runs")  # on another machine only the book is there
    before = (tmp_path / "kept" / "tiny.txt").read_text()
    code, told = frontier(tmp_path, "--no-train", capsys=capsys)
    assert code == 0
    assert (tmp_path / "kept" / "tiny.txt").read_text() == before

    code, told = frontier(tmp_path, "--no-train", "--time", capsys=capsys)
    assert code == 0
    timed = json.loads((tmp_path / "kept" / "tiny.json").read_text())
    assert set(timed["time"]) == {"erm", "erm-early", "sam"}
    assert [timed["time"]["sam"][k] is None for k in ("plain", "fired")] == [True, False]
    assert timed["runs"] == kept["runs"]
    assert timed["settings"] == kept["settings"]
    assert "measured time" in (tmp_path / "kept" / "tiny.txt").read_text()
    assert (tmp_path / "kept" / "tiny-counted.svg").exists()


def test_what_was_written_before_there_were_times_is_read_and_shown(bench, tmp_path, capsys):
    run = settings.run_of(bench.base, Contender("erm", "erm"), 10)
    summary = {"test_accuracy": 50.0, "train_accuracy": 60.0, "train_loss": 1.0,
               "percent_sam": 0.0, "steps": 16, "gradients": 16, "seconds": 1.0}  # fmt: skip
    line = {"search": False, "method": {"name": "erm"}, "epochs": run.training.epochs,
            "seeds": {"10": list(summary.values())}}  # fmt: skip
    old = {"bench": "tiny", "settings": {}, "columns": " ".join(summary), "runs": [line]}
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "tiny.json").write_text(json.dumps(old))
    code, told = frontier(tmp_path, "--no-train", capsys=capsys)
    assert code == 0
    assert "50.00" in (tmp_path / "kept" / "tiny.txt").read_text()


@pytest.mark.slow
def test_a_book_put_back_into_folders_is_taken_as_finished(bench, tmp_path):
    from aesam.lab.folders import folder_of
    from aesam.lab.grid import Job, run_all

    run = settings.run_of(bench.search, Contender("sam", "sam"), 0, rho=0.1)
    job = Job(run, folder_of(run, tmp_path / "a"))
    run_all([job])
    book = Book(tmp_path / "tiny.json", bench)
    book.take([job])
    book.write(bench="tiny")
    again = Book(tmp_path / "tiny.json", bench)
    assert again.summary(run) == book.summary(run)
    again.unpack(tmp_path / "b")
    assert Job(run, folder_of(run, tmp_path / "b")).is_finished


@pytest.mark.parametrize("name", ["digits-40", "cifar-clean"])
def test_what_is_searched_of_a_training_is_in_the_run_and_in_the_book(name, tmp_path):
    bench = benches.BENCHES[name]
    rows = {c.name: c for c in CONTROLS if len(c.training) == 1}
    values = {"erm-early": 0.5, "erm-decay": 0.05, "erm-smooth": 0.3}
    for row, value in values.items():
        (searched,) = settings.ranges_of(bench, rows[row])
        run = settings.run_of(bench.base, rows[row], 10, **{searched.name: value})
        expected = value * bench.base.training.epochs if row == "erm-early" else value
        field = "epochs" if row == "erm-early" else searched.name
        assert getattr(run.training, field) == expected
        book = Book(tmp_path / f"{row}.json", bench)
        book._add(Finished(run, {"test_accuracy": 50.0}))
        book.write(bench=name)
        assert Book(tmp_path / f"{row}.json", bench).summary(run) == {"test_accuracy": 50.0}


def test_erm_with_all_tuned_has_its_length_rate_decay_and_smoothing_searched(tmp_path):
    (row,) = [c for c in CONTROLS if c.name == "erm-tuned"]
    text, digits = benches.BENCHES["text"], benches.BENCHES["digits-40"]
    names = [r.name for r in settings.ranges_of(digits, row)]
    assert names == ["length", "lr", "weight_decay", "label_smoothing"]
    smoothing = settings.ranges_of(digits, row)[3]  # none is what the others are searched with
    assert (smoothing.usual, smoothing.start[0], smoothing.is_bound(0.0)) == (0.0, 0.0, True)
    assert [r.name for r in settings.ranges_of(text, row)] == names[:3]  # its loss is what counts
    assert settings.ranges_of(text, row)[1].start == (0.0015, 0.003, 0.006)
    found = {"lr": 0.05, "weight_decay": 0.01, "label_smoothing": 0.2}
    run = settings.run_of(digits.base, row, 10, length=0.5, **found)
    assert run.training.epochs == 30
    assert {name: getattr(run.training, name) for name in found} == found
    book = Book(tmp_path / "book.json", digits)
    book._add(Finished(run, {"test_accuracy": 50.0}))
    book.write(bench="digits-40")
    assert Book(tmp_path / "book.json", digits).summary(run) == {"test_accuracy": 50.0}


def test_a_book_keeps_accuracies_whole_and_losses_as_32_bits_have_them(tmp_path):
    bench = benches.BENCHES["text"]
    run = settings.run_of(bench.search, Contender("erm", "erm"), 0)
    book = Book(tmp_path / "book.json", bench)
    kept = {"validation_accuracy": 200 / 3, "validation_loss": 5.000000123, "seconds": 12.3456}
    book._add(Finished(run, kept))
    book.write(bench="text")
    found = Book(tmp_path / "book.json", bench).summary(run)
    assert found == {"validation_accuracy": 200 / 3, "validation_loss": 5.0, "seconds": 12.3}


def test_settings_whose_search_has_values_left_to_try_are_not_gone_by(bench, tmp_path):
    found = {"chosen": {"rho": 0.1}, "at_edge": [], "notes": []}
    Book(tmp_path / "book.json", bench).write(settings={"sam": found, "asam": found})
    rows = named(["erm", "sam"])
    with Crew() as crew:
        places = Places(tmp_path / "runs", tmp_path / "book.json", RunnerFlags(), crew, train=False)
        course = Course(bench, rows, places)
    # SAM has no run in the book; ASAM was not asked for.
    assert course.book.about["settings"] == {"asam": found, "erm": settings.NOTHING_SEARCHED}


def test_what_a_row_depends_on_most_is_searched_finely():
    row = {c.name: c for c in ALL}["ae-looksam"]
    bench = benches.BENCHES["cifar-clean"]
    fine = {r.name: r.is_fine for r in settings.ranges_of(bench, row)}
    assert fine == {"rho": True, "alpha": False}


def test_a_search_of_the_weight_decay_begins_with_the_benchs_own():
    for name in ("digits-40", "text"):
        bench = benches.BENCHES[name]
        (row,) = [c for c in CONTROLS if c.name == "erm-decay"]
        (searched,) = settings.ranges_of(bench, row)
        assert searched.start[0] == bench.base.training.weight_decay
        assert len(searched.start) == 4


def test_seeds_of_the_search_are_refused_for_what_is_reported(bench, tmp_path, capsys):
    code, told = frontier(tmp_path, "--seeds", 0, 10, capsys=capsys)
    assert code == 2
    assert "seeds must be others than those of the search" in told


def test_an_unknown_row_or_bench_is_told_with_the_near_ones(tmp_path, capsys):
    for words in (("--rows", "ae-sma"), ("--benches", "digits-41")):
        code, told = aesam("frontier", *words, "--publish", tmp_path, capsys=capsys)
        assert code == 2
        assert "did you mean" in told


def test_no_seed_that_settings_were_chosen_with_is_reported():
    assert not set(SEARCH_SEEDS) & set(FRESH_SEEDS)
    assert len(FRESH_SEEDS) >= 10


@pytest.mark.parametrize("name", benches.BENCHES)
def test_every_row_of_every_bench_can_be_run(name):
    bench = benches.BENCHES[name]
    for contender in (*bench.contenders, *TRIGGERS, *SHARES):
        for base in (bench.base, bench.search):
            first = {r.name: r.start[0] for r in settings.ranges_of(bench, contender)}
            validation.check(settings.run_of(base, contender, 0, **first))


def test_no_two_rows_have_the_same_name_or_label():
    rows = [*ALL, *TRIGGERS, *SHARES]
    assert len({row.name for row in rows}) == len(rows)
    assert len({label_of_row(row) for row in ALL}) == len(ALL)
    (sparse,) = [row for row in ALL if row.name == "looksam-10"]
    assert label_of_row(sparse) == "LookSAM (k = 10)"


def test_the_finalists_are_ten_known_rows_and_run_where_a_run_takes_a_minute():
    assert len(FINALISTS) == 10
    assert set(FINALISTS) <= {row.name for row in ALL}
    assert all(FINALISTS.values())
    by_rows = {name: [c.name for c in bench.contenders] for name, bench in benches.BENCHES.items()}
    few = [*FINALISTS, *BESIDE]
    for name, rows in by_rows.items():
        expected = few if name.startswith(("cifar", "text")) else [c.name for c in ALL]
        assert rows == [*expected, *(c.name for c in SHARES if name == "digits-40")]


def test_text_is_searched_and_judged_by_its_loss():
    bench = benches.BENCHES["text"]
    assert bench.measure == "loss" == data_record("kjv-text").score
    assert bench.search.data.subset == 2 * bench.base.data.subset
    assert bench.lost == pytest.approx(math.log(63))
    (search,) = settings.searches(bench, [Contender("sam", "sam")], Path("x")).values()
    assert search.score == "loss"


@pytest.mark.parametrize("downward", [False, True])
def test_a_long_bar_does_not_press_the_picture_flat(downward):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.errorbar([1.0, 2.0], [70.0, 90.0], yerr=[500.0, 1.0])
    if downward:
        axes.invert_yaxis()
    frontier_page._fit_to_means(axes, [70.0, 90.0])
    assert sorted(axes.get_ylim()) == pytest.approx([67.6, 92.4])
    assert axes.yaxis_inverted() == downward
