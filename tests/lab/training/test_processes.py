"""Two processes on gloo, started by torchrun and by accelerate, are one process."""

import json
import os
import subprocess
import sys

import pytest
from support.commands import metrics_of
from support.processes import free_port

pytestmark = pytest.mark.slow

PROGRAM = """
import gc, sys, torch
from dataclasses import replace
from pathlib import Path
torch.set_num_threads(1)
from aesam.lab.config import Method
from aesam.lab.data import data_record
from aesam.lab.lab_methods import fill
from aesam.lab.training.trainer import train
usual = data_record("synthetic").usual
double = replace(usual.training, epochs=2, precision="float64")
run = replace(usual, method=fill(Method(sys.argv[1])), training=double)
train(run, Path(sys.argv[2]), resume=True)
wrapped = torch.nn.parallel.DistributedDataParallel
if any(isinstance(o, wrapped) for o in gc.get_objects()):
    sys.exit("the wrapped model outlives the run, and with it the threads of the process group")
"""

DEATH = """
import os, sys
from aesam.lab.training.passes import Passes
second = Passes._second

def until_death(passes, parts, at):
    last = passes._engine.opt.last_step
    if os.environ["RANK"] == "1" and last is not None and last.index >= int(sys.argv[3]):
        os._exit(7)
    second(passes, parts, at)

Passes._second = until_death
"""


def run(*command, code=0):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


@pytest.mark.parametrize("method", ["ae-looksam", "ss-sam"])
def test_two_processes_equal_one_on_the_whole_batch(method, tmp_path):
    """No BatchNorm, equal shards, float64: what differs is the order of sums."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launch = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
    run(*launch, f"--master-port={free_port()}", str(program), method, str(tmp_path / "two"))
    run(sys.executable, str(program), method, str(tmp_path / "one"))
    one, two = metrics_of(tmp_path / "one"), metrics_of(tmp_path / "two")
    for left, right in zip(one, two, strict=True):
        assert left["trace"]["used_sam"] == right["trace"]["used_sam"]
        for name in ("train_loss", "test_loss", "test_accuracy", "train_accuracy"):
            assert left[name] == pytest.approx(right[name], abs=1e-10)
        norms = left["trace"]["squared_norm"], right["trace"]["squared_norm"]
        assert norms[0] == pytest.approx(norms[1], rel=1e-10)
    summaries = [json.loads((tmp_path / n / "summary.json").read_text()) for n in ("one", "two")]
    assert [s["processes"] for s in summaries] == [1, 2]


def test_a_process_that_dies_in_pass_two_ends_the_run_which_goes_on_with_fewer(tmp_path):
    program, dying = tmp_path / "program.py", tmp_path / "dying.py"
    program.write_text(PROGRAM)
    dying.write_text(DEATH + PROGRAM)
    run(sys.executable, str(program), "looksam", str(tmp_path / "one"))
    whole = metrics_of(tmp_path / "one")
    steps = len(whole[0]["trace"]["used_sam"])
    launch = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
    port, path = f"--master-port={free_port()}", str(tmp_path / "two")
    told = run(*launch, port, str(dying), "looksam", path, str(steps), code=1)
    assert "exitcode  : 7" in told
    assert len(metrics_of(tmp_path / "two")) == 1
    run(sys.executable, str(program), "looksam", path)
    for one, two in zip(whole, metrics_of(tmp_path / "two"), strict=True):
        assert one["trace"]["used_sam"] == two["trace"]["used_sam"]
        for name in ("train_loss", "test_loss"):
            assert one[name] == pytest.approx(two[name], abs=1e-10)


@pytest.mark.parametrize("method", ["esam", "ae-looksam"])
def test_torchrun_runs_the_command_as_it_is(method, tmp_path):
    launch = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
    port = f"--master-port={free_port()}"
    words = ("train", "--dataset", "synthetic", "--epochs", "2", "--method", method)
    told = run(*launch, port, "-m", "aesam", *words, "--out", str(tmp_path))
    assert json.loads((tmp_path / "summary.json").read_text())["processes"] == 2
    assert told.count("test accuracy") == 1
    assert told.count("epoch 2/2") == 1


def test_accelerate_launch_runs_the_command_as_it_is(tmp_path):
    """With one process: on a CPU, accelerate starts several only through MPI."""
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes=1")
    words = ("train", "--dataset", "synthetic", "--epochs", "2", "--out", str(tmp_path), "--resume")
    more = ("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
    port = f"--main_process_port={free_port()}"
    run(*launch, *more, port, "-m", "aesam", *words)
    assert json.loads((tmp_path / "summary.json").read_text())["processes"] == 1
