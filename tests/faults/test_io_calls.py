"""The k-th call to the system fails, for every k: told in words, nothing lost, and gone on with."""

import errno

import pytest
from support.commands import StopsAt, aesam
from support.faulty_disk import Counter, FailsAt, with_disk
from support.small_runs import FILES, WORDS, copied, numbers_of, tiny_run

from aesam.lab.training import run_checkpoint, trainer
from aesam.lab.training.interrupts import Stopped

pytestmark = pytest.mark.slow
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS)


@pytest.fixture
def undisturbed(tmp_path):
    trainer.train(tiny_run(), tmp_path / "undisturbed")
    return numbers_of(tmp_path / "undisturbed")


def calls(folder, action):
    """How many calls an action makes below a folder."""
    counter = Counter()
    assert with_disk(folder, counter, action) == 0
    return range(len(counter.names))


def tried(faults, numbers, short):
    """Each call with each error, or a part of them with the errors in turn."""
    pairs = [(at, error) for at in numbers for error in ERRORS]
    return faults.of(pairs, short)


def is_told(code, told):
    assert code in (0, 1, 2), told  # 0: what failed was not needed
    assert "Traceback" not in told
    assert (code == 0) or told.count("aesam: ") == 1, told


def goes_on(folder, undisturbed):
    assert aesam(*WORDS, "--out", folder, "--resume", "--quiet") == 0
    assert numbers_of(folder) == undisturbed
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_run_survives_any_failing_call(faults, tmp_path, undisturbed, capsys):
    train = (*WORDS, "--quiet", "--out")
    numbers = calls(tmp_path, lambda: aesam(*train, tmp_path / "counted"))
    cases = tried(faults, numbers, 24)
    for at, error in cases:
        disk, folder = FailsAt(at, error), tmp_path / f"run-{at}-{error}"
        code = with_disk(tmp_path, disk, lambda folder=folder: aesam(*train, folder))
        is_told(code, capsys.readouterr().err)
        assert disk.failed
        if (folder / "checkpoint.pt").exists():
            run_checkpoint.load(folder / "checkpoint.pt")
        goes_on(folder, undisturbed)
    faults.held("a failing system call of train", len(cases), "told; resumed to the bit")


def test_going_on_survives_any_failing_call(faults, tmp_path, undisturbed, capsys):
    with pytest.raises(Stopped):
        trainer.train(tiny_run(), tmp_path / "stopped", reporter=StopsAt(3))
    words = (*WORDS, "--quiet", "--resume", "--out")
    counted = copied(tmp_path / "stopped", tmp_path / "counted")
    cases = tried(faults, calls(tmp_path, lambda: aesam(*words, counted)), 24)
    for at, error in cases:
        folder = copied(tmp_path / "stopped", tmp_path / "again")
        disk = FailsAt(at, error)
        code = with_disk(tmp_path, disk, lambda folder=folder: aesam(*words, folder))
        is_told(code, capsys.readouterr().err)
        assert disk.failed
        run_checkpoint.load(folder / "checkpoint.pt")
        goes_on(folder, undisturbed)
    faults.held("a failing system call of train --resume", len(cases), "told; resumed to the bit")


def test_a_report_survives_any_failing_call(faults, tmp_path, capsys):
    runs, out = tmp_path / "runs", tmp_path / "out"
    trainer.train(tiny_run("erm", epochs=1), runs / "erm")
    words = ("report", runs, "--out", out)
    cases = tried(faults, calls(tmp_path, lambda: aesam(*words)), 5)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for at, error in cases:
        code = with_disk(tmp_path, FailsAt(at, error), lambda: aesam(*words))
        is_told(code, capsys.readouterr().err)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    faults.held("a failing system call of report", len(cases), "told; the old report stays")
