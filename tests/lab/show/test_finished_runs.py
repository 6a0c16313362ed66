import json

import pytest
from support.fixtures_report import config_of, epoch_line, summary_of, write_run, write_short_run

from aesam.lab.errors import UsageError
from aesam.lab.show import read_runs


def test_finished_runs_are_found_at_any_depth_and_unfinished_ones_are_not(tmp_path):
    write_short_run(tmp_path / "a" / "b", "erm", 3)
    unfinished = write_short_run(tmp_path / "a", "sam")
    (unfinished / "summary.json").unlink()
    (run,) = read_runs([tmp_path])
    assert (run.method, run.seed) == ("erm", 3)
    assert run.config == config_of("erm", 3)
    assert run.metrics == [epoch_line(1), epoch_line(2)]
    assert run.summary == summary_of(run.config)


def test_a_run_that_two_folders_lead_to_is_read_once(tmp_path):
    write_short_run(tmp_path / "runs", "erm")
    assert len(read_runs([tmp_path, tmp_path / "runs"])) == 1


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_without_finished_runs_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=name):
        read_runs([tmp_path / name])


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "summary.json"])
@pytest.mark.parametrize("content", ['{"seed": 0', "[1]", "\xff\x00", "{}"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    folder = write_short_run(tmp_path, "erm")
    (folder / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=name):
        read_runs([tmp_path])


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_missing_file_is_named(tmp_path, name):
    (write_short_run(tmp_path, "erm") / name).unlink()
    with pytest.raises(UsageError, match=name):
        read_runs([tmp_path])


def test_the_damaged_line_of_the_metrics_is_named(tmp_path):
    folder = write_short_run(tmp_path, "erm")
    (folder / "metrics.jsonl").write_text(json.dumps(epoch_line(1)) + '\n{"epoch": 2, "tr')
    with pytest.raises(UsageError, match="line 2"):
        read_runs([tmp_path])


def test_a_trace_of_unequal_lists_is_refused(tmp_path):
    config = config_of("ae-sam")
    line = epoch_line(1, trace={"step": [0, 1], "squared_norm": [0.5]})
    write_run(tmp_path / "run", config, [line], summary_of(config))
    with pytest.raises(UsageError, match="line 1.*trace"):
        read_runs([tmp_path])


def test_a_summary_without_any_accuracy_is_refused(tmp_path):
    write_short_run(tmp_path, "erm", test_accuracy=None)
    with pytest.raises(UsageError, match="neither a test_accuracy nor a validation_accuracy"):
        read_runs([tmp_path])
