"""Tiny data sets in the official forms, and a server to fetch them from."""

import hashlib
import io
import pickle
import random
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import torch

from aesam.lab.data import Archive, DataSet, Split
from aesam.lab.data.cifar import CIFAR10, CIFAR100, Cifar

PIXELS = 3072


def of_any_size(known: Cifar) -> Cifar:
    """The same set without the sizes and sums of its official files, for made-up ones."""
    forms = {form: replace(it, sums={}, sizes={}) for form, it in known.forms.items()}
    return replace(known, forms=forms)


SMALL_CIFAR10, SMALL_CIFAR100 = of_any_size(CIFAR10), of_any_size(CIFAR100)


def official(folder: Path, form: str) -> Cifar:
    """CIFAR-10 whose official files are those in ``folder``: their sizes and sums are known."""
    archive = CIFAR10.forms[form]
    content = {name: (folder / name).read_bytes() for name in archive.files}
    sums = {k: hashlib.md5(v, usedforsecurity=False).hexdigest() for k, v in content.items()}
    sizes = {k: len(v) for k, v in content.items()} if form == "binary" else {}
    return replace(CIFAR10, forms={form: replace(archive, sums=sums, sizes=sizes)})


def arrays(count: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pixels ``[count, 3072]`` and labels, as a CIFAR file holds them."""
    source = np.random.default_rng(seed)
    pixels = source.integers(0, 256, (count, PIXELS), dtype=np.uint8)
    return pixels, source.integers(0, classes, count)


def binary(pixels: np.ndarray, labels: np.ndarray, coarse: bool = False) -> bytes:
    """CIFAR's binary form; CIFAR-100 has a byte for the coarse label first."""
    first = [np.full((len(labels), 1), 7, np.uint8)] if coarse else []
    return np.concatenate([*first, labels.astype(np.uint8)[:, None], pixels], axis=1).tobytes()


def python(pixels: np.ndarray, labels: np.ndarray, key: str, protocol: int) -> bytes:
    """CIFAR's python form, as a Python of today writes it."""
    batch = {b"batch_label": b"tiny", key.encode(): labels.tolist(), b"data": pixels}
    return pickle.dumps(batch, protocol=protocol)


def python2(pixels: np.ndarray, labels: np.ndarray, key: str) -> bytes:
    """CIFAR's python form, opcode for opcode as the Python 2 of the official files wrote it."""

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    shape = number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    empty += number(0) + b"\x85" + text("b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + text("u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + text("|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    raw = b"T" + struct.pack("<i", pixels.nbytes) + pixels.tobytes()
    array = empty + b"(" + number(1) + shape + kind + b"\x89" + raw + b"tb"
    names = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    entries = text("batch_label") + text("tiny") + text(key) + names + text("data") + array
    return b"\x80\x02}(" + entries + b"u."


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def cifar10_files(encode: Callable[..., bytes], suffix: str, count: int = 4) -> dict[str, bytes]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {name + suffix: encode(*arrays(count, 10, seed)) for seed, name in enumerate(names)}


def cifar10_split(seeds: range, count: int = 4) -> Split:
    """What ``cifar10_files`` must be read back as."""
    parts = [arrays(count, 10, seed) for seed in seeds]
    pixels = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32)
    return Split(
        torch.from_numpy(pixels), torch.from_numpy(np.concatenate([labels for _, labels in parts]))
    )


def same(a: Split, b: Split) -> bool:
    return torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)


def numbered(count: int, size: int = 8, channels: int = 3, **facts: object) -> DataSet:
    """Random images, each labelled with its own row, so that a batch tells what is in it."""
    source = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (count, channels, size, size), generator=source)
    split = Split(images.to(torch.uint8), torch.arange(count))
    defaults = {"mean": (0.4, 0.5, 0.6)[:channels], "std": (0.2, 0.3, 0.4)[:channels]}
    defaults |= {"pad": 2, "flips": True} | facts
    return DataSet(count, split, split, channels=channels, size=size, **defaults)


@contextmanager
def random_states_untouched() -> Iterator[None]:
    """Fails if anybody draws from a global random state meanwhile."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    yield
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]


def tar(folder: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def tiny_archive(files: dict[str, bytes], content: bytes) -> Archive:
    """The description of an archive of tiny CIFAR-10 batches, with its own sum."""
    *train, test = files
    sum_of_all = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return Archive("", "tiny.tar.gz", sum_of_all, "cifar-10-batches-bin", tuple(train), test)


class Server:
    """Serves ``content`` under every address, and only the first ``limit`` bytes of it."""

    def __init__(self, content: bytes, limit: int | None = None) -> None:
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:limit])

            def log_message(self, *args: object) -> None:
                """Tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def write_bible(root, chapters=12, verses=8):
    """A text as ``bible`` prints it, with words that repeat, so that it can be learned."""
    words = ("And the king", "said unto", "his servants, Behold;", "there was light", "in the land")
    lines = []
    for chapter in range(chapters):
        for verse in range(verses):
            start = (3 * chapter + 5 * verse) % len(words)
            said = " ".join((*words[start:], *words[:start]))
            lines.append(f"{'1Ki' if chapter % 2 else 'Ge'}{chapter + 1}:{verse + 1} {said}.")
    root.mkdir(parents=True, exist_ok=True)
    (root / "kjv.txt").write_text("\n".join(lines) + "\n")
    return root
