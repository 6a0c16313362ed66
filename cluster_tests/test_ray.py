"""The Ray engine on a local Ray; apart from the other tests, since Ray is large: make test-ray."""

import os
import signal
import sys

import pytest
from lab.test_grid import job

from aesam.lab import clusters, grid


@pytest.fixture
def ray(monkeypatch):
    """A local Ray with two workers, which writes nothing outside of its temporary folder."""
    import ray

    # Workers of Ray Train are started by another process, which does not know the tests' path.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    before = signal.getsignal(signal.SIGTERM)
    with ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False):
        yield ray
    signal.signal(signal.SIGTERM, before)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Ray's own
def test_the_ray_engine_runs_on_two_workers(tmp_path, ray):
    told, jobs = [], [job(tmp_path, f"run{i}", seed=i) for i in range(3)]
    outcomes = grid.run_all(jobs, workers=2, engine="ray", done=told.append)
    assert [(o.error, o.tries) for o in outcomes] == [(None, 1)] * 3
    assert all((j.folder / "summary.json").exists() for j in jobs)
    assert len(told) == 3


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Ray's own
def test_a_ray_worker_that_dies_takes_nothing_else_along_and_an_error_is_told(ray):
    def work(number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1 / (number - 3)

    assert sorted(clusters.on_ray(work, [(0,), (1,), (2,)], workers=2)) == [-1, -1 / 3]
    with pytest.raises(ZeroDivisionError):
        list(clusters.on_ray(work, [(3,)], workers=2))
