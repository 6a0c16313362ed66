"""Full, read-only and vanished disks: told in words, and gone on with when they are back."""

import errno
import shutil

import pytest
from support.commands import StopsAt, aesam
from support.faulty_disk import Counter, FailsAt, with_disk
from support.forked import forked
from support.small_runs import FILES, WORDS, content_of, copied, numbers_of, tiny_run

from aesam.lab.errors import DiskError
from aesam.lab.training import run_checkpoint, trainer
from aesam.lab.training.interrupts import Stopped
from aesam.lab.training.reporters import Silent

pytestmark = pytest.mark.slow

#: What every call says from some moment on.
DISKS = {
    "full": errno.ENOSPC,
    "read-only": errno.EROFS,
    "broken": errno.EIO,
    "vanished": errno.ENODEV,
}


@pytest.fixture
def stopped(tmp_path):
    with pytest.raises(Stopped):
        trainer.train(tiny_run(), tmp_path / "stopped", reporter=StopsAt(1))
    trainer.train(tiny_run(), tmp_path / "undisturbed")
    return tmp_path / "stopped"


@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_that_fails_for_good_is_told_and_gone_on_with_when_it_is_back(
    disk, faults, stopped, tmp_path, capsys
):
    folder, counter = copied(stopped, tmp_path / "run"), Counter()
    words = (*WORDS, "--quiet", "--resume", "--out", folder)
    assert with_disk(folder, counter, lambda: aesam(*words)) == 0
    cases = faults.of(range(len(counter.names)), 5)
    for at in cases:
        copied(stopped, folder)
        fails = FailsAt(at, DISKS[disk], for_good=True)
        code = with_disk(folder, fails, lambda: aesam(*words))
        told = capsys.readouterr().err
        assert code in (0, 1), told  # 0: all was saved before
        assert code == 0 or told.startswith("aesam: "), told
        run_checkpoint.load(folder / "checkpoint.pt")
        assert aesam(*words) == 0
        assert numbers_of(folder) == numbers_of(tmp_path / "undisturbed")
        assert {path.name for path in folder.iterdir()} == FILES
    faults.held(f"a disk that is {disk} from any call on", len(cases), "told; resumed to the bit")


def test_a_file_that_may_not_grow_is_told_by_the_real_system(stopped, tmp_path):
    """The limit is the system's own on the size of a file: the write fails as on a full disk."""
    before = content_of(stopped)
    words = (*WORDS, "--quiet", "--resume", "--out", stopped)
    process = forked(*words, told=tmp_path / "told", largest_file=10_000)
    process.join()
    told = (tmp_path / "told").read_text()
    assert process.exitcode == 1
    assert "could not write" in told
    assert "Make room and run it again (train: with --resume)" in told
    assert content_of(stopped) == before
    assert aesam(*words) == 0
    assert numbers_of(stopped) == numbers_of(tmp_path / "undisturbed")


class AfterEpoch(Silent):
    """Does something when the first epoch is over."""

    def __init__(self, act):
        self._act = act

    def epoch(self, line):
        if line["epoch"] == 1:
            self._act()


def removed(folder):
    shutil.rmtree(folder)


def moved(folder):
    folder.rename(folder.with_name("moved"))


def replaced_by_an_empty_one(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def taken_by_another_run(folder):
    shutil.rmtree(folder)
    trainer.train(tiny_run("erm"), folder)


def made_a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("")


GONE = (removed, moved, replaced_by_an_empty_one, taken_by_another_run, made_a_file)


@pytest.mark.parametrize("act", GONE, ids=lambda act: act.__name__)
def test_a_folder_that_is_gone_is_told_and_not_made_again_in_part(act, faults, tmp_path):
    folder, after = tmp_path / "run", []

    def act_and_note():
        act(folder)
        after.append(content_of(folder) if folder.is_dir() else folder.exists())

    with pytest.raises(DiskError, match="config.json"):
        trainer.train(tiny_run(), folder, reporter=AfterEpoch(act_and_note))
    assert [content_of(folder) if folder.is_dir() else folder.exists()] == after
    faults.held("a folder removed or replaced during a run", 1, "told; nothing is made in part")


def test_a_folder_that_was_moved_is_gone_on_with_where_it_is(tmp_path):
    trainer.train(tiny_run(), tmp_path / "undisturbed")
    reporter = AfterEpoch(lambda: moved(tmp_path / "run"))
    with pytest.raises(DiskError, match="Put it back"):
        trainer.train(tiny_run(), tmp_path / "run", reporter=reporter)
    trainer.train(tiny_run(), tmp_path / "moved", resume=True)
    assert numbers_of(tmp_path / "moved") == numbers_of(tmp_path / "undisturbed")
