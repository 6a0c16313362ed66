"""Processes that decode images: killed, stuck, or left behind by a trainer that was killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import active_children

import psutil
import pytest
from joblib.externals.loky import ProcessPoolExecutor
from support import hostile_images
from support.commands import start
from support.processes import environment

from aesam.lab import data
from aesam.lab.data import decoding
from aesam.lab.errors import ProcessDied

pytestmark = [
    pytest.mark.slow,
    #: Newer Pythons warn of forking beside threads, which only a test runner has here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]
PATIENCE = 60.0


@pytest.fixture
def root(tmp_path):
    for part, count in (("train", 8), ("val", 1)):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                hostile_images.picture(seed=i).save(tmp_path / part / name / f"{i}.png")
    return tmp_path


def batches(root, workers=2):
    found = data.load("folder", root, size=8)
    return data.Batches(found.train, found, 4, 0, augment=True, device="cpu", workers=workers)


def until(holds):
    """Wait until it holds, for a bounded time."""
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)


def stuck(*args):
    threading.Event().wait()


@pytest.mark.parametrize("fault", [die, stuck])
def test_a_decoder_that_dies_or_hangs_is_told_by_its_file(root, fault, monkeypatch, faults):
    bad = str(root / "train" / "dog" / "7.png")
    decode = decoding.decode

    def hostile(path, *args):
        return fault() if path == bad else decode(path, *args)

    monkeypatch.setattr(decoding, "decode", hostile)
    monkeypatch.setattr(decoding, "PATIENCE", 0.5)
    before = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(ProcessDied) as error:
        list(batches(root).epoch(0))
    assert f"a process that decodes images was killed while it read {bad}: " in str(error.value)
    assert "training goes on with --resume" in str(error.value)
    assert signal.getsignal(signal.SIGCHLD) is before
    until(lambda: not active_children())
    faults.held("a decoder that dies or hangs", 1, "a sentence with the file; no process left")


def test_a_worker_killed_meanwhile_is_told_only_to_who_asks_for_a_batch(root, faults):
    epoch = batches(root).epoch(0)
    next(epoch)
    for child in active_children():
        child.kill()
        # What torch's handler of SIGCHLD would raise, it would raise here.
        until(lambda pid=child.pid: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(ProcessDied, match="a process that decodes images was killed"):
        list(epoch)
    faults.held("a decoding process killed", 1, "a sentence; nothing is interrupted")


def test_an_epoch_left_early_leaves_no_process(root):
    epoch = batches(root).epoch(0)
    next(epoch)
    assert len(active_children()) == 2
    epoch.close()
    assert not active_children()


LEFT_OPEN = """
import gc, sys
from aesam.lab import data
found = data.load("folder", sys.argv[1], size=8)
epoch = data.Batches(found.train, found, 4, 0, augment=True, device="cpu", workers=2).epoch(0)
next(epoch)
sys.modules["__main__"].kept = [epoch]
kept.append(kept)  # nobody closes it before the very end
gc.disable()
print("the end")
"""


def test_a_program_ends_that_has_left_an_epoch_open(root):
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, root], capture_output=True, text=True, timeout=PATIENCE,
        check=False, env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")


def train(root, *more, **options):
    """A run that takes long, in a process group of its own, when it has saved an epoch."""
    trainer = start(
        "train", "--dataset", "folder", "--root", root, "--model", "resnet8", "--method", "erm",
        "--epochs", 10_000, "--batch-size", 4, "--workers", 2, "--out", root / "run", *more,
        start_new_session=True, **options,
    )  # fmt: skip
    until((root / "run/checkpoint.pt").exists)
    return trainer


def group(trainer):
    """All processes of the trainer's group but itself."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != trainer.pid and os.getpgid(process.pid) == trainer.pid:
                found.append(process)
        except ProcessLookupError:
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def test_workers_end_when_their_trainer_is_killed(root, faults):
    trainer = train(root)
    try:
        until(lambda: len(group(trainer)) == 2)
        trainer.kill()
        trainer.wait()
        until(lambda: not group(trainer))
    finally:
        end(trainer)
    faults.held("kill -9 of a trainer with decoding processes", 1, "they end by themselves")


KILLED_AT_ONCE = """
import os, signal, sys
from torch.utils.data._utils import worker
from aesam.lab import data

class Late(worker.ManagerWatchdog):
    def __init__(self):
        while os.getppid() == trainer:  # it is gone by the worker's first look
            os.kill(trainer, signal.SIGKILL)
        super().__init__()

trainer, worker.ManagerWatchdog = os.getpid(), Late
found = data.load("folder", sys.argv[1], size=8)
epoch = data.Batches(found.train, found, 4, 0, augment=True, device="cpu", workers=2).epoch(0)
next(epoch)
"""


def test_workers_end_whose_trainer_was_killed_while_they_began(root, faults):
    words = [sys.executable, "-c", KILLED_AT_ONCE, root]
    trainer = subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert trainer.wait(PATIENCE) == -signal.SIGKILL
        until(lambda: not group(trainer))
    finally:
        end(trainer)
    faults.held("kill -9 of a trainer with decoding processes", 1, "they end by themselves")


def test_a_signal_to_all_processes_stops_after_a_step_with_everything_saved(root, faults):
    numbers = faults.of([signal.SIGTERM, signal.SIGINT], 1)
    for number in numbers:
        trainer = train(root, "--resume")
        try:
            until(lambda trainer=trainer: len(group(trainer)) == 2)
            os.killpg(trainer.pid, number)
            said, _ = trainer.communicate(timeout=PATIENCE)
            assert trainer.returncode == 128 + number, said
            assert "go on with --resume" in said
            assert "Traceback" not in said
            until(lambda trainer=trainer: not group(trainer))
        finally:
            end(trainer)
    faults.held("a signal to trainer and workers", len(numbers), "stopped after a step, saved")


def end(trainer):
    """Nothing outlives the test, whatever it found."""
    if trainer.poll() is None or group(trainer):
        os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()


def count_decoded(root):
    return sum(len(labels) for _, labels in batches(root).epoch(0))


def test_a_grid_s_worker_has_decoders_of_its_own(root):
    """Loky starts its workers in a way of its own, in which a DataLoader cannot start any."""
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(count_decoded, root).result(PATIENCE) == 16
