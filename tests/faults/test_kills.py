"""``kill -9`` at any moment: the run is gone on with to the bit."""

import random
import signal

import pytest
from support.forked import forked
from support.small_runs import FILES, numbers_of

pytestmark = pytest.mark.slow
WORDS = ("train", "--dataset", "synthetic", "--model", "mlp", "--batch-size", 64, "--epochs", 30)
#: Each keeps something else beside the steps: a direction; means of epochs; a place; outputs.
METHODS = {"ae-looksam": (6, 100), "swad": (2, 20), "entropy-sgd": (2, 20), "saf": (2, 20)}


def trained(method, folder, *more):
    process = forked(*WORDS, "--method", method, *more, "--out", folder)
    process.join()
    assert process.exitcode == 0


def killed(method, folder, after):
    """Whether a process that went on was killed so many seconds after it began."""
    process = forked(*WORDS, "--method", method, "--resume", "--out", folder)
    process.join(after)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_again_and_again_ends_in_the_same_numbers(method, faults, tmp_path):
    trained(method, tmp_path / "whole")
    expected, source = numbers_of(tmp_path / "whole"), random.Random(10)
    kills, number, wanted = 0, 0, faults.number(*METHODS[method])
    while kills < wanted:
        number += 1
        folder = tmp_path / f"run-{number}"
        while kills < wanted and killed(method, folder, source.uniform(0.0, 1.5)):
            kills += 1
        trained(method, folder, "--resume")
        assert numbers_of(folder) == expected
        assert {path.name for path in folder.iterdir()} == FILES
    faults.held("kill -9 of train", kills, "resumed to the bit")
