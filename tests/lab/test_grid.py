"""Many runs: cached, retried, reported, on processes of this machine or on a cluster."""

import json
import os
import warnings
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest
from distributed import Client, LocalCluster
from lab.data.test_real_formats import write_cifar10
from support.commands import SMALL, aesam

from aesam.lab import grid
from aesam.lab.config import Method, Model, Run
from aesam.lab.crew import Crew
from aesam.lab.data import data_record
from aesam.lab.lab_methods import fill
from aesam.lab.training import run_checkpoint

pytestmark = pytest.mark.slow
FEW = ("--methods", "erm", "sam", "ae-sam", "--seeds", 0, 1, "--epochs", 2, "--noise", 0.2)


def job(tmp_path, name, seed=0, epochs=2):
    usual = data_record("synthetic").usual
    longer = replace(usual.training, epochs=epochs)
    run = replace(usual, method=fill(Method("sam")), training=longer, seed=seed)
    return grid.Job(run, tmp_path / name)


def test_a_comparison_prints_its_table_and_writes_its_report(tmp_path, capsys):
    words = ("compare", *SMALL, *FEW, "--out", tmp_path)
    code, told = aesam(*words, capsys=capsys)
    assert code == 0
    assert "[6/6]" in told
    for label in ("ERM", "SAM", "AE-SAM", "% SAM"):
        assert label in told
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(list(tmp_path.rglob("summary.json"))) == 6
    assert "aesam compare" in json.dumps(results)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")

    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("checkpoint.pt")}
    code, told = aesam(*words, "--seeds", 0, 1, 2, capsys=capsys)
    assert code == 0
    assert told.count("finished before") == 6
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert len(list(tmp_path.rglob("summary.json"))) == 9


def test_a_run_that_fails_is_tried_again_reported_and_does_not_stop_the_others(tmp_path):
    broken = job(tmp_path, "broken")
    broken.folder.mkdir()
    (broken.folder / "config.json").write_text("{ damaged")
    jobs = [job(tmp_path, "a"), broken, job(tmp_path, "b", seed=1)]
    told = []
    outcomes = {o.job.folder.name: o for o in grid.run_all(jobs, workers=2, done=told.append)}
    assert outcomes["a"].error is outcomes["b"].error is None
    assert "damaged" in outcomes["broken"].error
    assert outcomes["broken"].tries == 2
    assert len(told) == 3


def workers_here():
    children = psutil.Process().children(recursive=True)
    return [c for c in children if any("popen_loky" in word for word in c.cmdline())]


def kill_workers_in_a_run(jobs):
    """As the system does when memory runs out; False where no run is under way at this moment.

    The workers are halted while the folders are looked at, so that what is seen stays true.
    """
    workers = workers_here()
    for worker in workers:
        worker.suspend()
    begun = [j for j in jobs if (j.folder / "config.json").exists() and not j.is_finished]
    for worker in workers:
        if begun:
            worker.kill()
        else:
            worker.resume()
    return bool(begun)


def test_a_killed_worker_s_runs_are_queued_again(tmp_path):
    jobs = [job(tmp_path, f"run{i}", seed=i, epochs=30) for i in range(5)]
    ended, killed = [], []

    def done(outcome):
        ended.append(outcome)
        while not killed and not all(j.is_finished for j in jobs):
            killed.extend([True] * kill_workers_in_a_run(jobs))

    outcomes = grid.run_all(jobs, workers=2, done=done)
    assert killed
    assert {o.job.folder.name for o in outcomes if o.error is None} == {f"run{i}" for i in range(5)}
    assert max(o.tries for o in outcomes) == 2
    assert len(ended) == 5
    assert sum(o.tries == 2 for o in outcomes) <= 2  # those that had begun, not those that waited


def test_there_are_no_more_workers_than_runs(tmp_path):
    seen = []
    jobs = [job(tmp_path, "run", epochs=1)]
    grid.run_all(jobs, workers=8, done=lambda outcome: seen.append(len(workers_here())))
    assert seen == [1]


def pids_here():
    return {worker.pid for worker in workers_here()}


def test_a_crew_stays_from_call_to_call_and_whoever_died_meanwhile_is_replaced(tmp_path):
    jobs = [job(tmp_path, f"run{i}", seed=i, epochs=1) for i in range(4)]
    jobs[3].folder.mkdir()
    (jobs[3].folder / "config.json").write_text("{ damaged")
    seen, tries = [], []
    with Crew() as crew:
        for one in jobs:
            if one is jobs[2]:
                (idle,) = workers_here()
                idle.kill()
                with suppress(ChildProcessError):  # seen already; its end is for loky to take
                    os.waitid(os.P_PID, idle.pid, os.WEXITED | os.WNOWAIT)
            (outcome,) = grid.run_all([one], workers=2, crew=crew)
            seen.append(pids_here())
            tries.append(outcome.tries)
    assert pids_here() == set()
    assert [len(pids) for pids in seen] == [1, 1, 1, 1]
    assert seen[0] == seen[1]
    assert tries == [1, 1, 1, 2]  # what fails is tried again in a process that did nothing before
    assert not seen[2] & seen[3]
    assert "damaged" in outcome.error


def test_a_crew_grows_and_an_error_ends_it_at_once(tmp_path):
    def stop(outcome):
        grown.append(len(pids_here()))
        raise KeyError(outcome.job.folder.name)

    jobs = [job(tmp_path, "short", epochs=1), job(tmp_path, "long", seed=1, epochs=100_000)]
    grown = []
    crew = Crew()
    grid.run_all([job(tmp_path, "first", epochs=1)], workers=2, crew=crew)
    assert len(pids_here()) == 1
    with pytest.raises(KeyError, match="short"), crew:
        grid.run_all(jobs, workers=2, done=stop, crew=crew)
    assert grown == [2]
    assert pids_here() == set()
    assert not jobs[1].is_finished


def test_a_local_cluster_has_no_more_workers_than_runs(tmp_path):
    seen = []

    def done(outcome):
        seen.append(len(Client.current().scheduler_info()["workers"]))

    jobs = [job(tmp_path, "run", epochs=1)]
    (outcome,) = grid.run_all(jobs, workers=8, engine="dask", done=done)
    assert outcome.error is None
    assert seen == [1]


def test_a_worker_that_is_replaced_between_runs_is_no_news(tmp_path):
    """Joblib warns when it replaces a worker whose memory grew, as it does with large data."""

    def restarts(outcome):
        warnings.warn("A worker stopped while some jobs were given to the executor.", stacklevel=1)
        warnings.warn("another", stacklevel=1)

    with pytest.warns(UserWarning) as told:
        grid.run_all([job(tmp_path, "run", epochs=1)], done=restarts)
    assert [str(warning.message) for warning in told] == ["another"]


def test_the_dask_engine_runs_on_two_workers(tmp_path):
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster),
    ):
        jobs = [job(tmp_path, f"run{i}", seed=i) for i in range(3)]
        outcomes = grid.run_all(jobs, workers=2, engine="dask", address=cluster.scheduler_address)
    assert [o.error for o in outcomes] == [None] * 3
    assert all((j.folder / "summary.json").exists() for j in jobs)


def test_workers_find_the_data_from_wherever_they_are(tmp_path, monkeypatch, small_cifar):
    """And what is written says what the user said: another machine has another folder."""
    write_cifar10(tmp_path / "data/cifar-10-batches-bin")
    (tmp_path / "elsewhere").mkdir()
    usual = data_record(small_cifar).usual
    short = replace(usual.training, epochs=1, batch_size=50)
    run = replace(usual, model=Model("mlp"), method=fill(Method("erm")), training=short)
    monkeypatch.chdir(tmp_path)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(os.chdir, tmp_path / "elsewhere")
        (outcome,) = grid.run_all(
            [grid.Job(run, tmp_path / "run")],
            engine="dask",
            address=cluster.scheduler_address,
        )
    assert outcome.error is None
    for saved in (
        json.loads((tmp_path / "run/config.json").read_text()),
        run_checkpoint.load(tmp_path / "run/checkpoint.pt")["config"],
    ):
        assert saved["data"]["root"] == "data"


def test_a_report_is_made_from_finished_runs(tmp_path, capsys):
    for seed in (0, 1):
        words = ("train", *SMALL, "--seed", seed, "--out", tmp_path / "runs" / str(seed), "--quiet")
        aesam(*words)
    code, told = aesam("report", tmp_path / "runs", "--out", tmp_path / "page", capsys=capsys)
    assert code == 0
    assert "AE-SAM" in told
    assert (tmp_path / "page/report.html").exists()


def test_data_are_described(capsys):
    code, told = aesam("data", "digits", capsys=capsys)
    assert code == 0
    assert "1437" in told.replace(",", "")
    assert Run().data.name == "digits"
