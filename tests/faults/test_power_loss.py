"""The power fails at any file operation: what is on the disk then is gone on with, to the bit.

Only what was synced is sure to be on a disk: the content of a file by an fsync of the file, its
name by one of the folder. What was not may be there or not, so both are tried, in all four
combinations.
"""

import shutil
from itertools import product
from pathlib import Path

import pytest
from support.commands import StopsAt
from support.faulty_disk import with_disk
from support.small_runs import FILES, numbers_of, tiny_run

from aesam.lab import files
from aesam.lab.training import run_checkpoint, trainer
from aesam.lab.training.interrupts import Stopped
from aesam.lab.training.reporters import Silent

pytestmark = pytest.mark.slow
#: Files of the user's that look like what a crash leaves, and stay.
USERS = {".checkpoint.pt.backup01", ".config.json.mine.aesam-unfinished~", "checkpoint.pt.old"}


class Tape(Silent):
    """Records the operations that change a disk, and where an epoch was said to be over."""

    def __init__(self):
        self.operations = []

    def __call__(self, name, path, detail):
        if name in ("create", "mkdir", "write", "fsync", "replace", "unlink"):
            self.operations.append((name, path, detail))

    def epoch(self, line):
        self.operations.append(("epoch", "", line["epoch"]))


def folder_of(path):
    return str(Path(path).parent)


class ModelDisk:
    """Names and contents, each as they are and as they would be after a power loss."""

    def __init__(self, start):
        self.names = {path: [content, content] for path, content in start.items()}  # now, synced
        self.synced_names = dict(self.names)
        self.epochs = 0

    def apply(self, name, path, detail):
        if name in ("create", "mkdir"):
            self.names[path] = [b"", b""] if name == "create" else None
        elif name == "write":
            self.names[path][0] += detail
        elif name == "replace":
            self.names[detail] = self.names.pop(path)
        elif name == "unlink":
            self.names.pop(path, None)
        elif name == "epoch":
            self.epochs = detail
        elif isinstance(self.names.get(path), list):  # fsync of a file
            self.names[path][1] = self.names[path][0]
        else:
            self._sync_folder(path)

    def _sync_folder(self, folder):
        def inside(path):
            return folder_of(path) == folder

        others = {path: kept for path, kept in self.synced_names.items() if not inside(path)}
        own = {path: kept for path, kept in self.names.items() if inside(path)}
        self.synced_names = {**others, **own}

    def after_power_loss(self, names_there, content_there):
        """The files that remain; a name whose folder is not there is not there either."""
        names = self.names if names_there else self.synced_names
        return {
            path: None if kept is None else kept[0 if content_there else 1]
            for path, kept in names.items()
            if folder_of(path) not in self.names or folder_of(path) in names
        }


def states(tape, start, root):
    """Every different disk that a power loss could leave, with the epochs that were over."""
    disk, seen = ModelDisk(start), set()
    for operation in (None, *tape.operations):
        if operation is not None:
            disk.apply(*operation)
        for there in product((False, True), repeat=2):
            left = disk.after_power_loss(*there)
            key = (disk.epochs, tuple(sorted((p, c or b"") for p, c in left.items())))
            if key not in seen:
                seen.add(key)
                yield disk.epochs, {Path(p).relative_to(root): c for p, c in left.items()}


def lay_down(left, target):
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path, content in sorted(left.items()):
        if content is None:
            (target / path).mkdir(exist_ok=True)
        else:
            (target / path).write_bytes(content)
    return target / "run"


def record(tmp_path, action):
    """The tape of an action on ``tmp_path/disk``, where nothing but the run is written."""
    tape = Tape()
    before = {str(p): p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("disk/**/*")}
    with_disk(tmp_path / "disk", tape, lambda: action(tape))
    return tape, before


def try_all(faults, tmp_path, tape, before, short, others=frozenset()):
    undisturbed = trainer.train(tiny_run(), tmp_path / "undisturbed")
    assert undisturbed["steps"] == 4
    cases = faults.of(list(states(tape, before, tmp_path / "disk")), short)
    left_behind = 0
    for epochs, left in cases:
        folder = lay_down(left, tmp_path / "after")
        if epochs:  # an epoch that was told to be over is not lost
            saved = run_checkpoint.load(folder / "checkpoint.pt")
            assert saved["progress"]["epoch"] >= epochs
        left_behind += any(path.name.endswith(files.UNFINISHED) for path in left)
        trainer.train(tiny_run(), folder, resume=True)
        assert numbers_of(folder) == numbers_of(tmp_path / "undisturbed")
        assert {path.name for path in folder.iterdir()} == FILES | others
    faults.held("a power loss at any file operation", len(cases), "resumed to the bit")
    faults.held("a temporary file left by a crash", left_behind, "removed by --resume")


def test_a_run_is_gone_on_with_after_a_power_loss_anywhere(faults, tmp_path):
    (tmp_path / "disk").mkdir()
    run, place = tiny_run(), tmp_path / "disk/run"
    tape, before = record(tmp_path, lambda tape: trainer.train(run, place, reporter=tape))
    try_all(faults, tmp_path, tape, before, 24)


def test_going_on_is_gone_on_with_after_a_power_loss_anywhere(faults, tmp_path):
    run, place = tiny_run(), tmp_path / "disk/run"
    with pytest.raises(Stopped):
        trainer.train(run, place, reporter=StopsAt(3))
    for name in USERS:
        (place / name).write_bytes(b"left alone")
    tape, before = record(
        tmp_path, lambda tape: trainer.train(run, place, resume=True, reporter=tape)
    )
    try_all(faults, tmp_path, tape, before, 16, USERS)
