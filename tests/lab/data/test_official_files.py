"""Official files: their size always, their sum once, and never a changed one taken for verified."""

import errno
import hashlib
import io
import json
import os
from functools import partial

import pytest
from support.fixtures_data import (
    SMALL_CIFAR10,
    binary,
    cifar10_files,
    cifar10_split,
    official,
    python2,
    same,
    write,
)

from aesam.lab import data
from aesam.lab.data import cifar, official_files
from aesam.lab.data.official_files import VERIFIED
from aesam.lab.errors import UsageError

ENCODED = {
    "binary": cifar10_files(binary, ".bin"),
    "python": cifar10_files(partial(python2, key="labels"), ""),
}


@pytest.fixture(params=list(ENCODED))
def form(request):
    return request.param


@pytest.fixture
def place(tmp_path, form):
    """Files in their folder, whose sizes and sums are known."""
    folder = tmp_path / cifar.CIFAR10.forms[form].folder
    write(folder, ENCODED[form])
    return folder


@pytest.fixture
def known(place, form):
    return official(place, form)


@pytest.fixture
def settled(monkeypatch):
    """As if the files had been there for a while."""
    monkeypatch.setattr(official_files, "SETTLED", 0)


@pytest.fixture
def summed(monkeypatch):
    """The number of bytes of each sum that is made."""
    made, md5 = [], hashlib.md5
    monkeypatch.setattr(hashlib, "md5", lambda raw=b"", **how: made.append(len(raw)) or md5(raw))
    return made


def first(place):
    return next(path for path in sorted(place.iterdir()) if path.name.startswith("data_batch_1"))


def test_sums_are_made_when_files_are_first_read_and_not_again(known, place, settled, summed):
    for _ in range(3):
        assert same(known.load(place.parent).train, cifar10_split(range(5)))
    assert len(summed) == 6
    os.utime(first(place))  # touched, not changed: looked at once more
    known.load(place.parent)
    known.load(place.parent)
    assert len(summed) == 7


def test_what_was_written_just_now_is_verified_again_next_time(known, place, summed):
    known.load(place.parent)
    known.load(place.parent)
    assert len(summed) == 12
    assert not (place / VERIFIED).exists()


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_a_verified_file_that_was_changed_is_refused_also_if_its_time_was_set_back(
    known, place, settled, how
):
    known.load(place.parent)
    assert (place / VERIFIED).exists()
    path = first(place)
    was, raw = path.stat(), bytearray(path.read_bytes())
    raw[2000] ^= 1
    if how == "replaced":
        path.unlink()
    path.write_bytes(raw)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (was.st_size, was.st_mtime_ns)
    with pytest.raises(UsageError) as error:
        known.load(place.parent)
    assert f"{path} is not the official file: its MD5 sum is" in str(error.value)
    assert f"Move {place} away, then `aesam data cifar10 --root {place.parent}`" in str(error.value)


def test_a_place_that_cannot_be_written_to_is_read_without_a_note(known, place, settled, summed):
    (place / VERIFIED).mkdir()
    for _ in range(2):
        assert same(known.load(place.parent).train, cifar10_split(range(5)))
    assert len(summed) == 12
    assert not [path for path in place.iterdir() if path.name.startswith(f".{VERIFIED}")]


@pytest.mark.parametrize("note", [b"", b"{", b"[1]", b"null", b"\xff" * 50, b"[" * 100_000, "cut"])
def test_a_damaged_note_counts_as_none(known, place, settled, summed, note):
    known.load(place.parent)
    whole = (place / VERIFIED).read_bytes()
    (place / VERIFIED).write_bytes(whole[: len(whole) // 2] if note == "cut" else note)
    known.load(place.parent)
    assert len(summed) == 12
    assert (place / VERIFIED).read_bytes() == whole


def test_a_note_about_another_sum_does_not_count(known, place, settled, summed):
    known.load(place.parent)
    noted = json.loads((place / VERIFIED).read_text())
    noted[first(place).name][0] = "0" * 32
    (place / VERIFIED).write_text(json.dumps(noted))
    known.load(place.parent)
    assert len(summed) == 7


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda raw: raw[:-3073], "cut short"),
        (lambda raw: raw + raw[:3073], "too long"),
        (lambda raw: raw * 200, "too long"),
        (lambda raw: b"", "cut short"),
    ],
)
def test_sizes_are_looked_at_also_where_no_sum_is_known(tmp_path, change, word):
    """As of CIFAR-100 in its binary form, whose archive alone has a published sum."""
    write(tmp_path, ENCODED["binary"])
    known = official(tmp_path, "binary")
    archive = known.forms["binary"]
    known.forms["binary"] = official_files.Archive(**{**vars(archive), "sums": {}})
    known.load(tmp_path)
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UsageError) as error:
        known.load(tmp_path)
    assert (
        f"{path} is {word}: it has {path.stat().st_size} bytes, the official file 12292. "
        in str(error.value)
    )
    assert "Move it away, then `aesam data cifar10" in str(error.value)
    assert known.verify(tmp_path) == "no"


def test_the_real_sets_have_ten_thousand_images_in_a_file_or_fifty():
    sizes = {
        **cifar.CIFAR10.forms["binary"].sizes,
        **cifar.CIFAR100.forms["binary"].sizes,
    }
    assert sizes.pop("train.bin") == 50_000 * 3074
    assert sizes.pop("test.bin") == 10_000 * 3074
    assert len(sizes) == 6
    assert set(sizes.values()) == {10_000 * 3073}
    for known in (cifar.CIFAR10, cifar.CIFAR100):  # so nothing is read without any check
        for archive in known.forms.values():
            assert set(archive.sums or archive.sizes) == set(archive.files)


def test_the_command_refuses_files_of_another_size(tmp_path, capsys):
    from support.commands import aesam

    write(tmp_path, ENCODED["binary"])
    code, told = aesam(
        "train", "--dataset", "cifar10", "--root", tmp_path, "--out", tmp_path / "run",
        capsys=capsys,
    )  # fmt: skip
    assert code == 2
    assert "data_batch_1.bin is cut short: it has 12292 bytes, the official file 30730000" in told
    assert "Traceback" not in told


class Failing(io.FileIO):
    def read(self, size=-1, /):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def refuse(*args, **how):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(("call", "fault"), [("open", refuse), ("fdopen", Failing)])
def test_a_read_that_the_disk_refuses_is_told_as_that(tmp_path, monkeypatch, call, fault):
    write(tmp_path, ENCODED["binary"])
    monkeypatch.setattr(os, call, fault)
    with pytest.raises(UsageError, match=r"cannot read .*data_batch_1\.bin \(Input/output error\)"):
        SMALL_CIFAR10.load(tmp_path)


def test_a_root_that_the_system_refuses_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*xxx.* \(File name too long\)"):
        data.load("cifar10", tmp_path / ("x" * 300))


def test_a_file_that_is_written_to_while_it_is_read_is_refused(tmp_path, monkeypatch):
    write(tmp_path, ENCODED["binary"])
    seen, fstat = [], os.fstat

    def grows(handle):
        seen.append(handle)
        if len(seen) == 3:
            with (tmp_path / "data_batch_1.bin").open("ab") as file:
                file.write(b"more")
        return fstat(handle)

    monkeypatch.setattr(os, "fstat", grows)
    with pytest.raises(UsageError, match=r"data_batch_1\.bin changed while it was read"):
        SMALL_CIFAR10.load(tmp_path)
