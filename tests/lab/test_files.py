"""Files that are whole, that last, and whose faults are told."""

import errno
import os
import stat

import pytest

from aesam.lab import files
from aesam.lab.errors import DiskError, UsageError


def test_a_folder_is_synced_after_the_rename_and_after_it_was_made(tmp_path, monkeypatch):
    done, fsync = [], os.fsync

    def noted(handle):
        done.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    files.write_bytes(tmp_path / "a/b/file", b"content")
    places = (tmp_path, tmp_path / "a", tmp_path / "a/b/file", tmp_path / "a/b")
    assert done == [place.stat().st_ino for place in places]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_is_written_to_all_the_same(
    number, tmp_path, monkeypatch
):
    fsync = os.fsync

    def cannot(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", cannot)
    files.write_bytes(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_folder_that_is_gone_stays_gone_where_it_must_not_be_made(tmp_path):
    with pytest.raises(DiskError, match="could not write"):
        files.write_bytes(tmp_path / "gone/file", b"content", make_folder=False)
    assert not (tmp_path / "gone").exists()


def test_only_what_we_left_unfinished_is_removed(tmp_path):
    ours = [".a.json.x_1y2z3w.aesam-unfinished", ".trial.abcdefgh.aesam-unfinished"]
    theirs = ["a.json", ".a.json.swp", ".b.json.x_1y2z3w.aesam-unfinished", ".a.json.backup01"]
    for name in ours + theirs:
        (tmp_path / name).touch()
    files.remove_unfinished(tmp_path, ["a.json"])
    assert {path.name for path in tmp_path.iterdir()} == set(theirs)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"9" * 400, b"{", b"\xff"])
def test_what_is_no_json_of_ours_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"deep|large|Expecting|decode"):
        files.parse_json(text)


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(UsageError, match="is a folder, not a file that can be read"):
        files.read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "absent")


def test_a_pipe_in_a_file_s_place_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "summary.json")
    with pytest.raises(UsageError, match=r"summary\.json is a named pipe, not a file"):
        files.read_json(tmp_path / "summary.json")
