"""CIFAR in both official forms, and files that are not what they should be."""

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.fixtures_data import (
    SMALL_CIFAR10,
    SMALL_CIFAR100,
    arrays,
    binary,
    cifar10_files,
    cifar10_split,
    python,
    python2,
    same,
    write,
)

from aesam.lab.errors import UsageError

PYTHON_FORMS = [
    pytest.param(python2, id="python 2"),
    *(pytest.param(partial(python, protocol=p), id=f"protocol {p}") for p in (2, 3, 4, 5)),
]


def check_cifar10(found):
    assert same(found.train, cifar10_split(range(5)))
    assert same(found.test, cifar10_split(range(5, 6)))
    assert (found.classes, found.channels, found.size, found.pad) == (10, 3, 32, 4)
    assert found.flips


@pytest.mark.parametrize("inside", ["cifar-10-batches-bin", "."])
def test_binary_cifar10_is_read_exactly_from_the_root_or_its_folder(tmp_path, inside):
    write(tmp_path / inside, cifar10_files(binary, ".bin"))
    check_cifar10(SMALL_CIFAR10.load(tmp_path))


@pytest.mark.parametrize("inside", ["cifar-10-batches-py", "."])
@pytest.mark.parametrize("encode", PYTHON_FORMS)
def test_python_cifar10_is_read_exactly(tmp_path, inside, encode):
    write(tmp_path / inside, cifar10_files(partial(encode, key="labels"), ""))
    check_cifar10(SMALL_CIFAR10.load(tmp_path))


def test_arrays_in_fortran_order_are_read_as_they_are_meant(tmp_path):
    def encode(pixels, labels, protocol):
        return python(np.asfortranarray(pixels), labels, "labels", protocol)

    for protocol in (2, 5):
        write(tmp_path, cifar10_files(partial(encode, protocol=protocol), ""))
        check_cifar10(SMALL_CIFAR10.load(tmp_path))


def test_cifar100_has_its_fine_labels_in_both_forms(tmp_path):
    train, test = arrays(6, 100, 1), arrays(3, 100, 2)
    assert max(train[1]) >= 10
    forms = {
        "cifar-100-binary": {
            "train.bin": binary(*train, coarse=True),
            "test.bin": binary(*test, coarse=True),
        },
        "cifar-100-python": {
            "train": python2(*train, "fine_labels"),
            "test": python2(*test, "fine_labels"),
        },
    }
    for folder, files in forms.items():
        write(tmp_path / folder / folder, files)
        found = SMALL_CIFAR100.load(tmp_path / folder)
        assert found.classes == 100
        for split, (pixels, labels) in ((found.train, train), (found.test, test)):
            assert torch.equal(split.images, torch.from_numpy(pixels).view(-1, 3, 32, 32))
            assert split.labels.tolist() == labels.tolist()


def test_a_missing_file_is_named_with_the_command_that_gets_it(tmp_path):
    with pytest.raises(UsageError) as empty:
        SMALL_CIFAR100.load(tmp_path)
    assert f"{tmp_path / 'cifar-100-binary' / 'train.bin'} is missing" in str(empty.value)
    assert f"`aesam data cifar100 --root {tmp_path}`" in str(empty.value)

    files = cifar10_files(partial(python2, key="labels"), "")
    del files["data_batch_4"]
    write(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(UsageError, match="cifar-10-batches-py/data_batch_4 is missing"):
        SMALL_CIFAR10.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 3072, 3074, -1])
def test_a_truncated_binary_file_is_refused(tmp_path, keep):
    files = cifar10_files(binary, ".bin")
    files["data_batch_2.bin"] = files["data_batch_2.bin"][:keep]
    write(tmp_path, files)
    with pytest.raises(UsageError, match=r"data_batch_2\.bin is cut short: .*aesam data cifar10"):
        SMALL_CIFAR10.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 40, 3000, -1])
def test_a_truncated_python_file_is_refused(tmp_path, keep):
    files = cifar10_files(partial(python2, key="labels"), "")
    files["test_batch"] = files["test_batch"][:keep]
    write(tmp_path, files)
    with pytest.raises(UsageError, match="test_batch is damaged or cut short.*aesam data cifar10"):
        SMALL_CIFAR10.load(tmp_path)


def test_a_label_that_the_set_does_not_have_is_refused(tmp_path):
    files = cifar10_files(binary, ".bin")
    pixels, labels = arrays(4, 10, 0)
    files["data_batch_1.bin"] = binary(pixels, np.array([0, 1, 10, 2]))
    write(tmp_path, files)
    with pytest.raises(UsageError, match=r"data_batch_1\.bin has a label outside 0\.\.9"):
        SMALL_CIFAR10.load(tmp_path)


PIXELS = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds no dictionary"),
        ({"labels": [0, 1]}, "no 'data' of 3072 bytes"),
        ({"data": PIXELS[:, :100], "labels": [0, 1]}, "no 'data' of 3072 bytes"),
        ({"data": PIXELS.astype(np.int64), "labels": [0, 1]}, "not of unsigned bytes"),
        ({"data": PIXELS}, "no list of numbers 'labels'"),
        ({"data": PIXELS, "labels": ["cat", "dog"]}, "no list of numbers 'labels'"),
        ({"data": PIXELS, "labels": [0, 2**80]}, "no list of numbers 'labels'"),
        ({"data": PIXELS, "labels": [0]}, "2 images and 1 labels"),
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path, content, message):
    files = cifar10_files(partial(python2, key="labels"), "")
    write(tmp_path, files | {"data_batch_1": pickle.dumps(content)})
    with pytest.raises(UsageError, match=message):
        SMALL_CIFAR10.load(tmp_path)


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("where", ["alone", "beside", "as a key", "as labels"])
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_malicious_pickle_is_refused_and_executes_nothing(tmp_path, protocol, where):
    marker = tmp_path / "executed"
    bomb = Bomb(marker)
    content = {
        "alone": bomb,
        "beside": {b"data": PIXELS, b"labels": [0, 1], b"x": bomb},
        "as a key": {bomb: 1},
        "as labels": {b"data": PIXELS, b"labels": [0, bomb]},
    }[where]
    raw = pickle.dumps(content, protocol=protocol)
    pickle.loads(raw)
    assert marker.exists(), "the bomb must work for this test to mean anything"
    marker.unlink()

    files = cifar10_files(partial(python2, key="labels"), "")
    write(tmp_path, files | {"data_batch_1": raw})
    with pytest.raises(UsageError, match=r"asks to call \w+\.open, which was not done"):
        SMALL_CIFAR10.load(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "name",
    [
        *("os system", "posix system", "builtins eval", "builtins getattr", "builtins bytes"),
        *("numpy load", "numpy.core.multiarray scalar", "numpy._core.multiarray set_typeDict"),
        *("numpy ndarray.__class__", "copyreg _reconstructor", "torch load", "_codecs decode"),
    ],
)
def test_only_what_makes_an_array_of_bytes_is_known_by_name(tmp_path, name):
    module, _, attribute = name.partition(" ")
    raw = b"\x80\x04" + b"\x8c" + bytes([len(module)]) + module.encode()
    raw += b"\x8c" + bytes([len(attribute)]) + attribute.encode() + b"\x93."
    write(tmp_path, cifar10_files(binary, "") | {"data_batch_1": raw})
    with pytest.raises(UsageError, match=f"asks to call {module}.{attribute}"):
        SMALL_CIFAR10.load(tmp_path)


@pytest.mark.parametrize(
    "callee",
    ["numpy\ndtype", "numpy\nndarray", "_codecs\nencode", "numpy.core.numeric\n_frombuffer"],
)
def test_a_pickle_cannot_change_the_reader_for_the_next_file(tmp_path, callee):
    """BUILD with a state for a class would set its attributes, if the class let it."""
    name = callee.replace("\n", " ").encode()
    state = b"N}(X\x08\x00\x00\x00__init__K\x01X\x07\x00\x00\x00__new__K\x01u\x86"
    raw = b"\x80\x02c" + name.replace(b" ", b"\n") + b"\n" + state + b"b."
    files = cifar10_files(partial(python2, key="labels"), "")
    write(tmp_path / "bad", files | {"data_batch_1": raw})
    with pytest.raises(UsageError, match="damaged"):
        SMALL_CIFAR10.load(tmp_path / "bad")
    for protocol in (2, 5):
        encode = partial(python, key="labels", protocol=protocol)
        write(tmp_path / "good", cifar10_files(encode, ""))
        check_cifar10(SMALL_CIFAR10.load(tmp_path / "good"))


def test_cifar10_at_16_pixels_has_the_mean_of_each_square_of_four(tmp_path):
    write(tmp_path, cifar10_files(binary, ".bin"))
    found = replace(SMALL_CIFAR10, shrink=2).load(tmp_path)
    whole = SMALL_CIFAR10.load(tmp_path)
    squares = whole.train.images.to(torch.float64).view(-1, 3, 16, 2, 16, 2)
    assert torch.equal(found.train.images, squares.mean((3, 5)).round().to(torch.uint8))
    assert torch.equal(found.train.labels, whole.train.labels)
    assert (found.size, found.pad, found.test.images.shape[2:]) == (16, 2, (16, 16))
