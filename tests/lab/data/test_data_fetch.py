"""Downloads: verified, atomic, and with a clear message for everything that goes wrong."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest
from support.fixtures_data import (
    SMALL_CIFAR10,
    Server,
    binary,
    cifar10_files,
    cifar10_split,
    python2,
    same,
    tar,
    tiny_archive,
    write,
)

from aesam.lab import data
from aesam.lab.data import cifar
from aesam.lab.data.download import fetch_archive
from aesam.lab.errors import UsageError

pytestmark = pytest.mark.slow
FILES = cifar10_files(binary, ".bin", count=40)
CONTENT = tar("cifar-10-batches-bin", FILES)
ARCHIVE = tiny_archive(FILES, CONTENT)
OTHER_SUM = replace(ARCHIVE, md5="0" * 32)


def quietly(what, done, total):
    """Nobody looks at the progress."""


def fetch(root, address="", archive=ARCHIVE, tell=quietly):
    return fetch_archive({"binary": replace(archive, address=address)}, root, tell)


def left_in(root):
    return sorted(path.name for path in root.iterdir())


@pytest.fixture
def root(tmp_path):
    return tmp_path / "new" / "data"


@pytest.fixture
def serve(monkeypatch):
    """Start a server on this machine, past any proxy; all are stopped after the test."""
    monkeypatch.setenv("no_proxy", "*")
    with ExitStack() as started:
        yield lambda *content, **limit: started.enter_context(Server(*content, **limit))


def test_an_archive_is_downloaded_verified_unpacked_and_readable(root, serve):
    server, said = serve(CONTENT), []
    place = fetch(root, server.address, tell=lambda *step: said.append(step))
    assert place == root / "cifar-10-batches-bin"
    assert server.requests == ["/tiny.tar.gz"]
    assert left_in(root) == ["cifar-10-batches-bin"]
    assert same(SMALL_CIFAR10.load(root).train, cifar10_split(range(5), 40))
    assert ("downloading tiny.tar.gz", len(CONTENT), len(CONTENT)) in said


def test_what_is_there_is_verified_and_not_downloaded_again(root, serve):
    server, said = serve(CONTENT), []

    def again():
        return fetch(root, server.address, tell=lambda what, *_: said.append(what))

    place = again()
    assert again() == place
    assert len(server.requests) == 1
    assert said[-1] == f"{place} is already there, verified"

    (place / "data_batch_3.bin").write_bytes(FILES["data_batch_2.bin"])
    with pytest.raises(UsageError, match=r"data_batch_3\.bin is not the official file"):
        again()
    assert len(server.requests) == 1


def test_a_wrong_sum_removes_the_file_and_says_both_sums(root, serve):
    with pytest.raises(UsageError) as wrong:
        fetch(root, serve(CONTENT).address, OTHER_SUM)
    assert ARCHIVE.md5 in str(wrong.value)
    assert OTHER_SUM.md5 in str(wrong.value)
    assert left_in(root) == []


def test_an_interrupted_download_leaves_nothing_behind(root, serve):
    server = serve(CONTENT, limit=len(CONTENT) // 2)
    with pytest.raises(UsageError, match=rf"ended after \d+ of {len(CONTENT)} bytes"):
        fetch(root, server.address)
    assert left_in(root) == []


@pytest.mark.parametrize("moment", ["downloading", "unpacking"])
def test_an_interrupt_by_the_user_leaves_nothing_behind(root, serve, moment):
    def stop(what, done, total):
        if what.startswith(moment):
            assert left_in(root), "something must be there to be left behind"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(root, serve(CONTENT).address, tell=stop)
    assert left_in(root) == []


def test_no_network_says_which_file_to_put_where_and_then_uses_it(root, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server(CONTENT) as stopped:
        pass
    with pytest.raises(UsageError) as error:
        fetch(root, stopped.address)
    assert f"put tiny.tar.gz (MD5 {ARCHIVE.md5}) into {root}" in str(error.value)
    assert left_in(root) == []

    write(root, {"tiny.tar.gz": CONTENT})
    place = fetch(root, stopped.address)
    assert left_in(root) == [place.name, "tiny.tar.gz"]
    assert same(SMALL_CIFAR10.load(root).test, cifar10_split(range(5, 6), 40))


def test_a_bad_archive_put_there_by_hand_is_refused_and_kept(root):
    write(root, {"tiny.tar.gz": CONTENT[:-1]})
    with pytest.raises(UsageError, match="does not have the MD5 sum"):
        fetch(root)
    assert left_in(root) == ["tiny.tar.gz"]


def test_an_archive_without_the_right_files_puts_nothing_into_place(root, serve):
    content = tar("cifar-10-batches-bin", {"readme.html": b"hello"})
    archive = tiny_archive(FILES, content)
    with pytest.raises(UsageError, match=r"no good cifar-10-batches-bin/data_batch_1\.bin"):
        fetch(root, serve(content).address, archive)
    assert left_in(root) == []


def test_a_member_that_climbs_out_of_the_folder_is_refused(root, serve):
    content = tar("..", FILES)
    with pytest.raises(UsageError, match="cannot unpack"):
        fetch(root, serve(content).address, tiny_archive(FILES, content))
    assert left_in(root) == []
    assert left_in(root.parent) == ["data"]


def test_a_folder_that_lacks_a_file_is_never_overwritten(root, serve):
    files = dict(FILES)
    del files["data_batch_5.bin"]
    write(root / "cifar-10-batches-bin", files)
    server = serve(CONTENT)
    with pytest.raises(UsageError, match=r"is there but lacks data_batch_5\.bin"):
        fetch(root, server.address)
    assert server.requests == []


def test_a_root_that_cannot_be_written_to_is_said(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write cifar-10-batches-bin to"):
        fetch(tmp_path / "file")


def test_sets_without_files_need_no_download(tmp_path):
    said = []
    for name in ("digits", "synthetic", "folder"):
        assert data.fetch(name, tmp_path, lambda what, *_: said.append(what)) == tmp_path
    assert said[0] == "digits needs no download"


def test_unknown_names_and_forms_are_refused_before_anything_is_downloaded(tmp_path):
    with pytest.raises(UsageError, match="unknown data set 'cifar1': did you mean"):
        data.fetch("cifar1", tmp_path)
    with pytest.raises(UsageError, match="unknown form 'binery': did you mean binary"):
        fetch_archive(cifar.CIFAR10.forms, tmp_path, quietly, form="binery")


def test_the_official_batches_are_told_from_others(tmp_path):
    """The files here are not the official ones; official sums are known for three of four forms."""
    write(tmp_path / "cifar-10-batches-bin", FILES)
    with pytest.raises(UsageError, match=r"data_batch_1\.bin is not the official file"):
        data.fetch("cifar10", tmp_path)
    with pytest.raises(UsageError, match=r"data_batch_1\.bin is cut short"):
        data.describe("cifar10", tmp_path)
    assert data.data_record("cifar10").verify(tmp_path) == "no"
    for known in (cifar.CIFAR10, cifar.CIFAR100):
        for archive in known.forms.values():
            assert not archive.sums or set(archive.sums) == set(archive.files)


def test_the_python_form_is_recognised_where_it_is_there(tmp_path):
    write(tmp_path / "cifar-10-batches-py", cifar10_files(partial(python2, key="labels"), ""))
    with pytest.raises(UsageError, match="cifar-10-batches-py/data_batch_1 is not the official"):
        data.fetch("cifar10", tmp_path)


def test_files_of_a_verified_archive_are_recognised_later_without_it(root, serve):
    place = fetch(root, serve(CONTENT).address)
    assert ARCHIVE.wrong(place) == []
    (place / "test_batch.bin").write_bytes(b"other")
    assert ARCHIVE.wrong(place) == ["test_batch.bin"]
    (place / "md5sums.txt").unlink()
    assert ARCHIVE.wrong(place) is None
