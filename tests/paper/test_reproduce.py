"""``aesam reproduce`` end to end at a tiny size."""

import json
import re
import shutil
import signal
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.commands import aesam, start

from aesam.lab import files
from aesam.lab.config import config_hash, from_dict
from aesam.lab.folders import RunFolder
from aesam.lab.grid import run_all
from aesam.paper import setups, tuning
from aesam.paper.entries import ENTRIES
from aesam.paper.finished import Shelf, publish
from aesam.paper.plan import runs_of
from aesam.paper.setups import Options

pytestmark = pytest.mark.slow
TINY = ("--epochs", 1, "--seeds", 0, 1)
NOISE = ("--noise", 0.6)
FIGURES = {
    "table-cifar": {"cost-1", "cost-2"},
    "table-imagenet": {"cost-1"},
    "table-noise": {"cost-1"},
    "table-looksam-k": {"cost-1"},
    "fig-variance": {"gradient-variance-1", "gradient-variance-2", "gradient-variance-3"},
    "fig-squared-norm": {"mean-squared-norm-1", "mean-squared-norm-2", "mean-squared-norm-3"},
    "fig-noise-curves": {"train-1", "test-1"},
    "fig-lambda": {"percent-sam-1", "accuracy-1", "percent-sam-2", "accuracy-2"},
    "fig-convergence": {f"{q}-{i}" for q in ("full-squared-norm", "train-loss") for i in (1, 2, 3)},
}


QUANTITIES = {"fig-variance": "gradient_variance", "fig-squared-norm": "mean_squared_norm"}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """One folder for all, with the runs of all but one made beforehand by the same two workers."""
    folder = tmp_path_factory.mktemp("reproduce")
    options = Options(epochs=1, seeds=(0, 1), noise=(0.6,))
    entries = [ENTRIES[name] for name in FIGURES if name != "table-looksam-k"]
    planned = (entry.panels(options, entry.setups(options)) for entry in entries)
    runs = dict.fromkeys(run for panels in planned for run in runs_of(panels))
    outcomes = run_all(Shelf(folder / "runs").jobs(runs), workers=2)
    assert [o.error for o in outcomes if o.error] == []
    return folder


def made(out, name, suffix=""):
    folder = out / f"{name}{suffix}"
    numbers = json.loads((folder / "results.json").read_text())
    assert numbers["entry"] == name
    assert numbers["command"].startswith(f"aesam reproduce {name}")
    assert "torch" in numbers["versions"]
    assert ENTRIES[name].shows in unescape((folder / "report.html").read_text())
    return folder, numbers


@pytest.mark.parametrize("name", list(FIGURES))
def test_an_entry_of_training_runs_is_made_from_them(name, out, capsys):
    noise = NOISE if "noise" in ENTRIES[name].knows else ()
    code, told = aesam("reproduce", name, *TINY, *noise, "--out", out, capsys=capsys)
    assert code == 0, told
    folder, numbers = made(out, name, "-epochs1")
    assert {p.stem for p in folder.glob("*.svg")} == FIGURES[name]
    assert numbers["findings"]
    assert numbers["seeds"] == [0, 1]
    assert "Here: a small run, not the paper's set-up." in told
    for sentence in numbers["findings"]:
        assert sentence in told


def test_entries_share_their_runs_and_never_run_one_again(out, capsys):
    assert aesam("reproduce", "fig-squared-norm", *TINY, "--out", out) == 0
    code, told = aesam("reproduce", "fig-variance", *TINY, "--out", out, capsys=capsys)
    assert code == 0
    for name, quantity in QUANTITIES.items():
        _, numbers = made(out, name, "-epochs1")
        first = numbers["curves"][0]
        assert set(first["ERM"]) == set(first["SAM"]) == {quantity}
    assert "12 of 12 runs were finished before" in told
    assert "[1/" not in told


def test_published_runs_are_a_cache_without_machine_paths(out, tmp_path, capsys):
    words = ("reproduce", "table-looksam-k", *TINY, *NOISE)
    results, kept = tmp_path / "results", tmp_path / "results/runs"
    code = aesam(*words, "--out", out, "--publish", results, "--publish-runs", kept, "--quiet")
    assert code == 0
    names = {p.name for p in kept.rglob("*") if p.is_file()}
    assert names == {"config.json", "metrics.jsonl", "summary.json"}
    assert len(list(kept.rglob("summary.json"))) == 8
    for path in kept.rglob("*.json*"):
        assert str(out) not in path.read_text()
        assert path.stat().st_size < 300_000
    assert {p.suffix for p in (tmp_path / "results/table-looksam-k-epochs1").iterdir()} == {
        ".json", ".svg", ".txt",
    }  # fmt: skip
    code, told = aesam(*words, "--out", tmp_path / "new", "--cache", kept, capsys=capsys)
    assert code == 0
    assert "8 of 8 runs were finished before" in told
    assert not (tmp_path / "new" / "runs").exists()
    first, again = (
        json.loads((folder / "table-looksam-k-epochs1/results.json").read_text())
        for folder in (out, tmp_path / "new")
    )
    assert first["tables"] == again["tables"]


def test_a_published_run_keeps_the_settings_it_was_run_with(out, tmp_path):
    """Not those of the plan, which may differ in what does not change a run's numbers."""
    options = Options(epochs=1, seeds=(0, 1), noise=(0.6,))
    entry = ENTRIES["table-noise"]
    run = runs_of(entry.panels(options, entry.setups(options)))[0]
    folder = Shelf(out / "runs").find(run)
    other = replace(run, training=replace(run.training, evaluate_every=7))
    own = json.loads((folder / "config.json").read_text())
    kept = json.loads((publish(other, folder, tmp_path) / "config.json").read_text())
    assert kept == own | {"data": own["data"] | {"root": "data"}}
    assert kept["training"]["evaluate_every"] == run.training.evaluate_every


def test_a_published_run_has_all_numbers_but_the_decision_trace_and_can_be_reported(out, tmp_path):
    """The trace is most of a run's size; only the figure that draws it is missing then."""
    options = Options(epochs=1, seeds=(0,), noise=(0.6,))
    entry = ENTRIES["table-noise"]
    runs = runs_of(entry.panels(options, entry.setups(options)))
    run = next(run for run in runs if run.method.name == "ae-sam")
    folder = Shelf(out / "runs").find(run)
    kept = publish(run, folder, tmp_path / "kept")
    own, published = (files.read_lines(place / "metrics.jsonl") for place in (folder, kept))
    assert all(line.pop("trace") for line in own)
    assert published == own
    assert files.read_json(kept / "summary.json") == files.read_json(folder / "summary.json")
    for name, place in (("own", folder), ("kept", kept)):
        assert aesam("report", place, "--out", tmp_path / name) == 0
        page = (tmp_path / name / "report.html").read_text()
        assert ("Decisions of AE-SAM" in page) is (name == "own")


def test_an_interrupted_command_has_published_what_it_finished(tmp_path):
    kept = tmp_path / "kept"
    words = ("reproduce", "table-looksam-k", *TINY, *NOISE, "--out", tmp_path, "--jobs", 1)
    with start(*words, "--publish-runs", kept) as process:
        for line in process.stdout:
            if line.startswith("[1/8]"):
                process.send_signal(signal.SIGINT)
                break
        process.communicate()
    assert process.returncode == 130
    assert 1 <= len(list(kept.rglob("summary.json"))) < 8


def test_the_committed_table_is_that_of_the_committed_runs(tmp_path):
    """Without CIFAR-10: nothing is trained, and nothing but results/runs is read."""
    results = Path(__file__).parents[2] / "results"
    command = json.loads((results / "table-noise-cifar10/results.json").read_text())["command"]
    levels = command.split("--noise ")[1].split(" --")[0].split()
    words = ("reproduce", "table-noise", "--data", "cifar10", "--noise", *levels, "--no-train")
    assert aesam(*words, "--out", tmp_path, "--cache", results / "runs", "--quiet") == 0
    again, committed = (
        (folder / "table-noise-cifar10/table.txt").read_text() for folder in (tmp_path, results)
    )
    assert again == committed


TABLES = ("table-cifar", "table-imagenet", "table-noise", "table-noise-cifar10", "table-looksam-k")


@pytest.mark.parametrize("name", TABLES)
def test_committed_verdicts_follow_from_the_committed_accuracies(name):
    folder = Path(__file__).parents[2] / "results" / name
    numbers, text = json.loads((folder / "results.json").read_text()), folder / "table.txt"
    accuracies = {
        (table["title"], row["label"]): {run["seed"]: run["test_accuracy"] for run in row["runs"]}
        for table in numbers["comparisons"]
        for row in table["rows"]
    }
    for verdict in numbers["verdicts"]:
        claim = re.sub(r" \([^()]*\?\)$", "", verdict["claim"])
        ours, theirs = re.split(" more accurate than | as accurate as ", claim)
        pairs = [accuracies[verdict["where"], label] for label in (ours, theirs)]
        left, right = ([own[seed] for seed in sorted(own)] for own in pairs)
        assert verdict["difference"] == pytest.approx(np.mean(left) - np.mean(right))
        if np.ptp(np.subtract(left, right)) > 1e-9:
            assert verdict["p_value"] == pytest.approx(stats.ttest_rel(left, right).pvalue)
    for sentence in numbers["findings"]:
        assert f"- {sentence}\n" in text.read_text()


def test_what_is_finished_can_be_shown_without_training(out, tmp_path, capsys):
    """A table of some runs only: no row for what is missing, and no test on one seed."""
    words = ("reproduce", "table-noise", "--epochs", 1, "--seeds", 0, "--noise", 0.6, "--no-train")
    gone = [p for p in (out / "runs").rglob("esam-*") if "noise0.6" in str(p)]
    kept = tmp_path / "runs"
    shutil.copytree(out / "runs", kept, ignore=lambda _, names: {p.name for p in gone} & set(names))
    code, told = aesam(*words, "--out", tmp_path, capsys=capsys)
    assert code == 0
    assert "n = 1 run of each" in told.replace("\n", " ")
    assert "SS-SAM" in told
    assert "\nESAM" not in told
    assert "best of all" not in told
    assert not list(kept.glob("*/noise0.6/esam-*"))
    assert "Not finished, Small CNN on digits, 60 % label noise: ESAM (seed 0)." in told
    numbers = json.loads((tmp_path / "table-noise-epochs1/results.json").read_text())
    assert numbers["findings"] == []


def test_nothing_to_show_is_an_error_and_a_missing_panel_is_named(out, tmp_path, capsys):
    words = ("reproduce", "table-looksam-k", "--epochs", 1, "--seeds", 0, "--no-train")
    code, told = aesam(*words, "--noise", 0.6, "--out", tmp_path, capsys=capsys)
    assert code == 2
    assert "no run of table-looksam-k is finished" in told
    assert not list(tmp_path.iterdir())
    words = ("reproduce", "table-noise", *words[2:])
    code, told = aesam(*words, "--noise", 0.6, 0.4, "--out", out, capsys=capsys)
    assert code == 0
    assert "Not finished, Small CNN on digits, 40 % label noise: all of it." in told


def test_normality_is_tested_on_400_batches(tmp_path, capsys):
    words = ("reproduce", "fig-normality", "--epochs", 1, "--out", tmp_path)
    code, _ = aesam(*words, capsys=capsys)
    assert code == 0
    folder, numbers = made(tmp_path, "fig-normality", "-epochs1")
    assert [len(sample["norms"]) for sample in numbers["samples"]] == [400] * 3
    assert len(list(folder.glob("*.svg"))) == 6


def test_cost_is_timed_alone_and_with_two_processes(tmp_path, capsys):
    code, told = aesam("reproduce", "cost", "--epochs", 2, "--out", tmp_path, capsys=capsys)
    assert code == 0, told
    _, numbers = made(tmp_path, "cost", "-epochs2")
    assert set(numbers["rows"]) == set(numbers["seconds"]["two"])
    assert numbers["rows"]["erm"]["alone"] == numbers["rows"]["erm"]["two"] == 1.0
    assert numbers["rows"]["sam"]["percent_sam"] == 100.0
    assert 20 < numbers["rows"]["ae-sam"]["percent_sam"] < 80  # as in a whole training
    assert "ESAM" in numbers["findings"][0]


def test_theorem_is_computed(tmp_path, capsys):
    code, told = aesam("reproduce", "theorem", "--out", tmp_path, capsys=capsys)
    assert code == 0
    folder, _ = made(tmp_path, "theorem")
    assert list(folder.glob("*.svg"))
    assert "0.92 on the left" in told
    assert "<li>Full-batch theorem: claimed in 96 cases" in (folder / "report.html").read_text()


def test_the_best_of_the_search_is_taken_and_controls_follow_their_model(out, tmp_path):
    """From finished runs of a search, here copies of one run with other settings and accuracies."""
    setup = setups.imagenet(Options(epochs=1))[0]
    some = next((out / "runs").rglob("summary.json")).parent
    shelf = Shelf(tmp_path)
    for name, best in (("looksam", 0.9), ("ae-looksam", 0.3)):
        for job in shelf.jobs(tuning.grid(setup, name)):
            shutil.copytree(some, job.folder)
            RunFolder(job.folder).begin(job.run)
            summary = json.loads((some / "summary.json").read_text())
            here = job.run.method.get("alpha") == best and job.run.method.get("rho") == 0.05
            diverged = job.run.method.get("alpha") == 0.6
            accuracy = 60.0 if diverged else 50.0 if here else 40.0
            summary |= {"validation_accuracy": accuracy, "test_accuracy": None}
            summary["diverged"] = diverged
            summary["config_hash"] = config_hash(job.run)
            (job.folder / "summary.json").write_text(json.dumps(summary))
            assert from_dict(json.loads((job.folder / "config.json").read_text())) == job.run
    chosen = tuning.chosen(setup, ["erm", "looksam", "ae-looksam"], shelf.find)
    assert chosen.run("looksam", 0).method.get("alpha") == 0.9
    assert chosen.run("ae-looksam", 0).method.get("alpha") == 0.3
    assert chosen.run("inverted-looksam", 0).method.get("alpha") == 0.3
    assert chosen.run("matched-looksam", 0).method.get("rho") == 0.05


def test_the_list_names_every_entry_and_what_it_needs(capsys):
    code, told = aesam("reproduce", "--list", capsys=capsys)
    assert code == 0
    for entry in ENTRIES.values():
        assert entry.name in told
        assert entry.needs["small"].split(",")[0] in told.replace("\n", " ")


def test_the_help_names_every_entry_and_no_default_that_is_none(capsys):
    code, told = aesam("reproduce", "--help", capsys=capsys)
    assert code == 0
    assert all(name in told for name in ENTRIES)
    assert "None" not in told
    assert "the entry's own" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "table-cifar"),
        (("table-cifr",), "table-cifar"),
        (("table-cifar", "--preset", "big"), "paper"),
        (("table-noise", "--data", "cifar10", "--root", "nowhere"), "aesam data cifar10"),
        (("table-noise", "--noise", "1.5"), "noise"),
        (("table-noise", "--noise", "0.6", "0.6"), "--noise names the same twice"),
        (("table-noise", "--seeds", "1", "1"), "--seeds names the same twice"),
        (("table-cifar", "--noise", "0.6"), "--noise means nothing to table-cifar; it is for "),
        (("fig-variance", "--controls"), "it is for table-cifar, table-imagenet, table-noise"),
        (("theorem", "--epochs", "3"), "--epochs means nothing to theorem"),
        (("theorem", "--data", "cifar10"), "--data means nothing to theorem"),
        (("fig-normality", "--seeds", "0", "1"), "--seeds takes one seed here"),
        (("cost", "--seeds", "0", "1"), "--seeds takes one seed here"),
        (("theorem", "--no-train"), "theorem is computed at once"),
        (("table-noise", "--preset", "paper", "--data", "cifar10"), "small preset"),
        (("table-imagenet", "--preset", "paper", "--no-tune", "--root", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_refused_in_words(words, said, tmp_path, capsys):
    code, told = aesam("reproduce", *words, "--out", tmp_path, capsys=capsys)
    assert code == 2
    assert said in told
    assert "Traceback" not in told
