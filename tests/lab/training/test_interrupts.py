"""Runs that die again and again, that skip steps, or that were damaged."""

from dataclasses import replace

import pytest
from support.commands import SMALL, metrics_of, start

from aesam.lab import grid
from aesam.lab.config import Method
from aesam.lab.data import data_record
from aesam.lab.lab_methods import fill
from aesam.lab.training import trainer

pytestmark = pytest.mark.slow

#: Loaded by every Python that starts with it on its path: kills workers that train seed 1.
DEADLY = """
import os, signal, sys
if "loky" in " ".join(sys.orig_argv):
    import aesam.lab.training.trainer as t
    train = t.train
    def deadly(run, *args, **kwargs):
        if run.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(run, *args, **kwargs)
    t.train = deadly
"""


def test_a_run_that_dies_every_time_is_reported_and_the_others_finish(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    words = ("compare", *SMALL, "--methods", "erm", "--seeds", 0, 1, 2, "--epochs", 2, "--noise", 0)
    env = {"PYTHONPATH": str(tmp_path)}
    with start(*words, "--out", tmp_path / "out", env=env) as process:
        told = process.communicate()[0]
    assert process.returncode == 1
    assert "failed twice: its process was killed" in told
    assert len(list((tmp_path / "out").rglob("summary.json"))) == 2
    assert (tmp_path / "out/report.html").exists()


def test_skipped_steps_take_no_second_gradient_in_the_counts(tmp_path):
    usual = data_record("synthetic").usual
    huge = replace(usual.training, epochs=1, lr=1e30)
    run = replace(usual, method=fill(Method("sam")), training=huge)
    with pytest.warns(UserWarning, match="skipped"):
        summary = trainer.train(run, tmp_path)
    assert summary["skipped_steps"] > 0
    done = summary["steps"] - summary["skipped_steps"]
    assert summary["gradients"] == summary["steps"] + done
    assert len(metrics_of(tmp_path)[0]["trace"]["step"]) == done
    assert "NaN" not in (tmp_path / "summary.json").read_text()


def test_a_damaged_finished_run_does_not_stop_the_others(tmp_path):
    usual = data_record("synthetic").usual
    runs = [replace(usual, method=fill(Method("erm")), seed=i) for i in range(2)]
    jobs = [grid.Job(run, tmp_path / str(i)) for i, run in enumerate(runs)]
    jobs[0].folder.mkdir()
    for name in ("config.json", "summary.json"):
        (jobs[0].folder / name).write_text("{")
    outcomes = {o.job.folder.name: o.error for o in grid.run_all(jobs, workers=1)}
    assert "damaged" in outcomes["0"]
    assert outcomes["1"] is None
