"""Two processes are one for the methods of the lab's, and put their statistics together."""

import os
import subprocess
import sys

import pytest
import torch
from support.commands import metrics_of
from support.literal_training import Literal
from support.processes import free_port

from aesam.lab.own_methods import list_own_methods
from aesam.lab.training.restored import load_run

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, torch
from dataclasses import replace
from pathlib import Path
torch.set_num_threads(1)
from aesam.lab.config import Method
from aesam.lab.own_methods import list_own_methods
from aesam.lab.training import trainer
from aesam.lab.training.trainer import train
from support.literal_training import run_of
trainer.leave_processes = lambda: None  # they meet once, for all runs
brief = {
    "swad": {"optimum_patience": 1},
    "entropy-sgd": {"inner_steps": 3},
    "saf": {"epochs_back": 1, "wait_epochs": 1},
}
for name in list_own_methods():
    train(run_of(Method(name, **brief.get(name, {}))), Path(sys.argv[1]) / name)
train(run_of("ema", "digits", epochs=1), Path(sys.argv[1]) / "digits")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where one process trained each method, and where two did."""
    folder = tmp_path_factory.mktemp("processes")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    two = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
    for name, launch in (("one", ()), ("two", two)):
        words = (sys.executable, *launch, str(program), str(folder / name))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("method", list_own_methods())
def test_two_processes_equal_one_on_the_whole_batch(method, trained):
    """No BatchNorm, equal shards, float64: what differs is the order of sums."""
    one, two = (metrics_of(trained / name / method) for name in ("one", "two"))
    for left, right in zip(one, two, strict=True):
        for name in ("train_loss", "test_loss", "test_accuracy", "train_accuracy"):
            assert left[name] == pytest.approx(right[name], abs=1e-10)


def test_two_processes_put_their_statistics_of_batchnorm_together(trained):
    found = load_run(trained / "two/digits")
    literal, halves = Literal(found.run), []
    for rank in (0, 1):
        literal.net.load_state_dict(found.model.state_dict())
        literal.take_rank(rank, 2)
        literal.statistics()
        halves.append({k: v.clone() for k, v in literal.net.state_dict().items()})
    names = [k for k in halves[0] if "running_" in k]
    assert names
    for name in names:
        both = (halves[0][name] + halves[1][name]) / 2
        assert torch.allclose(found.model.state_dict()[name], both, rtol=1e-10)
        assert not torch.allclose(halves[0][name], both, rtol=1e-6)
