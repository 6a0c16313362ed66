"""``results.json`` holds every number, and both files appear whole or not at all."""

import json

import pytest
from support.fixtures_report import VERSIONS, write_comparison, write_short_run

from aesam.lab.errors import DiskError, UsageError
from aesam.lab.show import as_json, compare, read_runs, write_report

pytestmark = pytest.mark.slow
COMMAND = "aesam compare --dataset digits --noise 0.6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return write_comparison(root, methods=("erm", "sam", "ae-sam"), epochs=4, noises=(0.2, 0.6))


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "new" / "folder"
    return out, write_report([folder], out, command=COMMAND)


def test_results_hold_every_number_and_survive_a_round_trip(folder):
    comparisons = compare(read_runs([folder]))
    results = as_json(comparisons, COMMAND)
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert (results["command"], results["n"], results["seeds"]) == (COMMAND, 18, [0, 1, 2])
    assert results["versions"] == VERSIONS
    noisy = results["comparisons"][1]
    assert (noisy["measured_on"], noisy["settings"]["data"]["noise"]) == ("test", 0.6)
    sam = next(row for row in noisy["rows"] if row["method"] == "sam")
    accuracies = [run["test_accuracy"] for run in sam["runs"]]
    assert sam["accuracy"]["mean"] == pytest.approx(sum(accuracies) / 3)
    assert (sam["n"], sam["seeds"], sam["percent_sam"]["mean"]) == (3, [0, 1, 2], 100.0)
    assert 0 < sam["against_baseline"]["p_value"] < 1
    assert sam["against_baseline"]["label"] == "ERM"


def test_results_say_nothing_about_the_machine(folder):
    text = json.dumps(as_json(compare(read_runs([folder])), COMMAND))
    assert str(folder.parent) not in text
    assert '"root"' not in text


def test_numbers_that_json_lacks_do_not_get_into_the_results(tmp_path):
    settings = {"lambda1": float("-inf")}
    write_short_run(tmp_path, "ae-sam", settings=settings, train_loss=float("nan"))
    (row,) = as_json(compare(read_runs([tmp_path])), COMMAND)["comparisons"][0]["rows"]
    assert row["settings"]["lambda1"] == "-inf"
    assert row["runs"][0]["train_loss"] is None


def test_write_report_leaves_both_files_and_nothing_else(written):
    out, comparisons = written
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "results.json"]
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results == as_json(comparisons, COMMAND)


def test_a_report_that_cannot_be_made_leaves_the_old_one(tmp_path):
    run = write_short_run(tmp_path / "runs", "erm")
    out = tmp_path / "out"
    write_report([tmp_path / "runs"], out, command=COMMAND)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (run / "summary.json").write_text("{")
    with pytest.raises(UsageError, match="summary.json"):
        write_report([tmp_path / "runs"], out, command="another")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    write_short_run(tmp_path / "runs", "erm")
    (tmp_path / "out").write_text("a file")
    with pytest.raises(DiskError, match="could not write .*results.json"):
        write_report([tmp_path / "runs"], tmp_path / "out", command=COMMAND)
