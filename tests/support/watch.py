"""A program: read hostile files, and say of each how that ended and whether anything was started.

``python watch.py images|pickles FOLDER`` prints one JSON object for all files in the folder:
for each how it ended, the events of which there should be none, and the most memory in MB.
"""

import codecs
import json
import os
import resource
import sys
from pathlib import Path

import torch

from aesam.lab.data.decoding import Files, Unreadable
from aesam.lab.data.sets import FolderSplit
from aesam.lab.errors import UsageError
from support.fixtures_data import SMALL_CIFAR10, cifar10_files, python2, write

STARTS = {
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("os.forkpty", "pty.spawn", "socket.connect", "ctypes.dlopen", "webbrowser.open"),
}
MOST_MEMORY = 6 << 30


def decode_twice(path):
    """How a file is decoded: refused in these words, or to the same pixels twice."""
    files = Files(FolderSplit((str(path),), torch.zeros(1, dtype=torch.int64)), 8, True, None)
    found, again = files[0], files[0]
    if isinstance(found, Unreadable):
        assert found == again
        return found.message
    assert found[0].shape == (1, 3, 8, 8)
    assert torch.equal(found[0], again[0]), "pixels that nobody wrote"
    return None


def load_pickle(path, folder):
    """How CIFAR's loader takes it for one of its batches."""
    (folder / "data_batch_1").write_bytes(path.read_bytes())
    try:
        SMALL_CIFAR10.load(folder)
    except UsageError as error:
        return str(error)
    return None


def most_memory() -> int:
    """In MB, of this program alone: what getrusage says has that of whoever started it in it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def main(kind, place):
    batches = place.parent / "batches"
    write(batches, cifar10_files(lambda *arrays: python2(*arrays, "labels"), ""))
    read = decode_twice if kind == "images" else lambda path: load_pickle(path, batches)
    files, events, forbidden = sorted(place.iterdir()), [], set(STARTS)
    sys.addaudithook(lambda event, args: event in forbidden and events.append([event, str(args)]))
    codecs.lookup("raw_unicode_escape")  # what is imported late is imported now
    for warm_up in files[:2]:
        read(warm_up)
    if kind == "pickles":
        forbidden |= {"import", "exec"}
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    ends = {path.name: read(path) for path in files}
    os.system("true")
    assert events.pop()[0] == "os.system", "the watch sleeps"
    most = most_memory()
    print(json.dumps({"ends": ends, "events": events, "most": most}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
