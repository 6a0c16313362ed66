"""Archives with the right sum and a wrong inside: nothing leaves the folder, nothing has no end."""

import gzip
import io
import random
import tarfile
from dataclasses import replace

from support.fixtures_data import binary, cifar10_files, tar, tiny_archive

from aesam.lab.data.download import fetch_archive
from aesam.lab.errors import UsageError

FOLDER = "cifar-10-batches-bin"
FILES = cifar10_files(binary, ".bin")
GOOD = tar(FOLDER, FILES)
MOST = 1 << 20


def member(name, kind=tarfile.REGTYPE, link="", size=0, **more):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, size
    for key, value in more.items():
        setattr(entry, key, value)
    return entry


def packed(*members, files=FILES, form=tarfile.GNU_FORMAT):
    """The good files, and members of another kind before them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=form, compresslevel=6) as archive:
        for entry in members:
            archive.addfile(entry, io.BytesIO(bytes(entry.size)))
        for name, content in files.items():
            archive.addfile(member(f"{FOLDER}/{name}", size=len(content)), io.BytesIO(content))
    return buffer.getvalue()


def links():
    """To be followed by what is written next, or to give away what is outside."""
    for label, kind in (("symlink", tarfile.SYMTYPE), ("hard link", tarfile.LNKTYPE)):
        for target in ("../../outside", "/etc/passwd", "..", ".", "test_batch.bin"):
            yield f"{label} to {target}", packed(member(f"{FOLDER}/link", kind, target))
        yield f"{label} for the folder", packed(member(FOLDER, kind, "../outside"))
        yield f"{label} for a file", packed(member(f"{FOLDER}/test_batch.bin", kind, "../../out"))


def hostile():
    yield from links()
    for name in ("../outside", f"{FOLDER}/../../outside", "a/../../b", ".."):
        yield f"{name} as a name", packed(member(name, size=4))
    for label, kind in (
        *(("fifo", tarfile.FIFOTYPE), ("device", tarfile.CHRTYPE), ("disk", tarfile.BLKTYPE)),
        *(("contiguous", tarfile.CONTTYPE), ("unknown", b"Z")),
    ):
        yield f"a {label}", packed(member(f"{FOLDER}/test_batch.bin", kind), files={})
    yield "zeros without an end", packed(member("zeros", size=20 << 20))
    yield "a long name without an end", packed(member("x" * (8 << 20)))
    pax = member("x", pax_headers={"comment": "x" * (8 << 20)})
    yield "a header without an end", packed(pax, form=tarfile.PAX_FORMAT)
    yield "many members", packed(*(member(f"many/{i}") for i in range(1000)))
    sparse = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(10**12)}
    sparse |= {"GNU.sparse.map": "0,0", "GNU.sparse.numblocks": "1"}
    yield "holes", packed(member("holes", pax_headers=sparse), form=tarfile.PAX_FORMAT)
    yield "headers within headers", gzip.compress(b"".join([nested()] * 3000))
    yield "no tar", gzip.compress(b"nothing of the kind" * 1000)
    yield "no gzip", b"nothing of the kind" * 1000
    yield "nothing", b""
    yield "other files", packed(files={"readme.html": b"hello"})
    yield "two gzip streams, one cut", GOOD + GOOD[:40]


def nested():
    return member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=512).tobuf() + b"x" * 512


def unpacked(root, content):
    """What fetching says of an archive that lies there with its right sum, and what it leaves."""
    root.mkdir(parents=True)
    archive = replace(tiny_archive(FILES, content), most_bytes=MOST)
    (root / archive.file).write_bytes(content)
    try:
        place = fetch_archive({"binary": archive}, root, lambda *step: None)
    except UsageError as error:
        assert [path.name for path in root.iterdir()] == [archive.file]
        return str(error)
    assert {name: (place / name).read_bytes() for name in FILES} == FILES
    return None


def test_hostile_archives_are_refused_and_leave_nothing(tmp_path, faults):
    cases = list(hostile())
    for i, (label, content) in enumerate(cases):
        said = unpacked(tmp_path / f"{i}" / "data", content)
        assert said is not None, f"{label} was unpacked"
        assert "tiny.tar.gz" in said, label
    assert {path.name for path in tmp_path.iterdir()} == {str(i) for i in range(len(cases))}
    assert {path.name for i in range(len(cases)) for path in (tmp_path / str(i)).iterdir()} == {
        "data"
    }
    faults.held("a hostile archive with the right sum", len(cases), "refused; nothing left behind")


def test_a_damaged_archive_is_unpacked_as_it_was_or_refused(tmp_path, faults):
    assert unpacked(tmp_path / "good", GOOD) is None
    source, tried = random.Random(0), faults.number(40, 2000)
    refused = 0
    for i in range(tried):
        content = bytearray(GOOD)
        if i % 2:
            del content[source.randrange(len(content)) :]
        else:
            content[source.randrange(len(content))] ^= 1 << source.randrange(8)
        refused += unpacked(tmp_path / f"{i}", bytes(content)) is not None
    assert refused > 0.9 * tried  # of what is left, a bit is flipped in the time of packing
    faults.held("a cut or flipped archive", tried, "unpacked as it was, or refused")


def test_an_absolute_name_stays_within_the_folder(tmp_path):
    outside = tmp_path / "outside"
    assert unpacked(tmp_path / "data", packed(member(str(outside), size=4))) is None
    assert not outside.exists()


def test_the_bound_is_on_what_comes_out(tmp_path):
    assert unpacked(tmp_path / "half", packed(member("zeros", size=MOST // 2))) is None
    said = unpacked(tmp_path / "more", packed(member("zeros", size=MOST)))
    assert f"it unpacks to more than {MOST} bytes): remove it" in said
