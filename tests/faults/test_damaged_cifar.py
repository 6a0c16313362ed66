"""CIFAR's files with anything changed: all are refused, and mended files are read again."""

import random
from functools import partial

import pytest
from support.fixtures_data import (
    binary,
    cifar10_files,
    cifar10_split,
    official,
    python2,
    same,
    write,
)

from aesam.lab.data import official_files
from aesam.lab.errors import UsageError

FORMS = {
    "binary": cifar10_files(binary, ".bin"),
    "python": cifar10_files(partial(python2, key="labels"), ""),
}
RECORD = 3073


def damages(raw, other, count):
    """Other contents than the official one, each with what was done to it."""
    source = random.Random(len(raw))
    for _ in range(count):
        place, bit = source.randrange(len(raw)), source.randrange(8)
        yield f"bit {bit} of byte {place}", flipped(raw, place, bit)
        yield f"cut at {place}", raw[:place]
    for end in range(0, len(raw), RECORD):
        yield f"cut at the record's end {end}", raw[:end]
        yield f"without the record at {end}", raw[:end] + raw[end + RECORD :]
    yield "zeros", bytes(len(raw))
    yield "200 times", raw * 200
    yield "one byte more", raw + b"\0"
    yield "one record more", raw + raw[:RECORD]
    yield "another file", other


def flipped(raw, place, bit):
    changed = bytearray(raw)
    changed[place] ^= 1 << bit
    return bytes(changed)


@pytest.mark.parametrize("form", FORMS)
def test_every_damage_is_refused_also_of_files_that_were_verified(
    tmp_path, form, faults, monkeypatch
):
    monkeypatch.setattr(official_files, "SETTLED", 0)  # as if they had been there for a while
    files = FORMS[form]
    write(tmp_path, files)
    known = official(tmp_path, form)
    known.load(tmp_path)
    assert (tmp_path / official_files.VERIFIED).exists()
    tried = 0
    for name, raw in files.items():
        other = files[next(other for other in files if other != name)]
        for what, content in damages(raw, other, faults.number(10, 500)):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(UsageError) as error:
                known.load(tmp_path)
            assert f"{tmp_path / name} is " in str(error.value), what
            assert "Move it away, then `aesam data cifar10" in str(error.value), what
            assert known.verify(tmp_path) == "no"
            tried += 1
        (tmp_path / name).write_bytes(raw)
        assert same(known.load(tmp_path).train, cifar10_split(range(5)))
    faults.held("a changed, cut or longer CIFAR file", tried, "refused; the mended file is read")


def test_a_damaged_note_never_lets_a_changed_file_pass(tmp_path, faults, monkeypatch):
    monkeypatch.setattr(official_files, "SETTLED", 0)
    files, source = FORMS["binary"], random.Random(0)
    write(tmp_path, files)
    known = official(tmp_path, "binary")
    known.load(tmp_path)
    note = tmp_path / official_files.VERIFIED
    whole = note.read_bytes()
    (tmp_path / "data_batch_1.bin").write_bytes(flipped(files["data_batch_1.bin"], 77, 0))
    tried = faults.number(100, 3000)
    for i in range(tried):
        place = source.randrange(len(whole))
        note.write_bytes(whole[:place] if i % 2 else flipped(whole, place, source.randrange(8)))
        with pytest.raises(UsageError, match="is not the official file"):
            known.load(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(files["data_batch_1.bin"])
    assert same(known.load(tmp_path).train, cifar10_split(range(5)))
    faults.held("a damaged note of verified files", tried, "ignored; the files are verified again")
