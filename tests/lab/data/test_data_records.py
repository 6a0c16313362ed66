"""Data sets by name: what a record must say, and that one from outside is a set like any other."""

import pytest
from support.commands import aesam
from support.fixtures_data import numbered

from aesam.lab import data
from aesam.lab.config import Data, Model, Run, Training, config_hash
from aesam.lab.data import DataRecord
from aesam.lab.errors import UsageError

SMALL_CIFAR = Training(epochs=60, channels_last=True, evaluate_every=5)
BUILT_IN = ["digits", "cifar10", "cifar100", "cifar10-16", "folder", "kjv-text", "synthetic"]
FACTS = {
    "name": "rows",
    "label": "Rows",
    "help": "each image is its own class",
    "load": lambda root, size: numbered(12),
    "model": "mlp",
    "training": Training(epochs=7, batch_size=4),
    "augment": False,
}


@pytest.fixture
def rows():
    """A data set from outside, known during one test."""
    data.register_data_set(DataRecord(**FACTS))
    yield data.data_record("rows")
    data.forget_data_set("rows")


def test_the_built_in_sets_are_listed_and_every_record_is_complete():
    assert data.list_data_sets() == BUILT_IN
    assert data.list_data_sets("c*") == ["cifar10", "cifar100", "cifar10-16"]
    for name in BUILT_IN:
        record = data.data_record(name)
        assert record.name == name
        assert record.label
        assert record.help


def test_an_unknown_name_is_refused_with_the_near_ones_by_everything_that_takes_one():
    for refuse in (
        data.data_record,
        data.forget_data_set,
        lambda name: data.load(name, "."),
        lambda name: data.fetch(name, "."),
        lambda name: data.describe(name, "."),
    ):
        with pytest.raises(UsageError, match="unknown data set 'cifar-10': did you mean cifar10"):
            refuse("cifar-10")
    with pytest.raises(UsageError, match=f"'mnist': Known are {', '.join(BUILT_IN)}"):
        data.data_record("mnist")


@pytest.mark.parametrize(
    ("name", "model", "augment", "training", "identity"),
    [
        ("digits", "digits-cnn", False, Training(epochs=60), "04c4eb4d0433"),
        ("cifar10", "resnet18", True, Training(epochs=200), "aee402585332"),
        ("cifar100", "resnet18", True, Training(epochs=200), "a301e4781fbe"),
        ("cifar10-16", "resnet8", False, SMALL_CIFAR, "8b7f0fced4c7"),
        ("folder", "resnet50", True, Training(epochs=90, batch_size=512), "3cd38d0ce67a"),
        ("synthetic", "mlp", True, Training(epochs=3, batch_size=64), "ef84a87fefa6"),
    ],
)
def test_the_usual_run_is_that_of_published_results(name, model, augment, training, identity):
    usual = data.data_record(name).usual
    assert usual == Run(Data(name, augment=augment), Model(model), training=training)
    assert config_hash(usual) == identity


@pytest.mark.parametrize("forgotten", FACTS)
def test_a_record_that_forgets_anything_cannot_be_made(forgotten):
    facts = {name: fact for name, fact in FACTS.items() if name != forgotten}
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{forgotten}'"):
        DataRecord(**facts)


def test_a_set_from_outside_is_listed_loaded_described_and_trained_as_it_says(rows, tmp_path):
    assert data.list_data_sets() == [*BUILT_IN, "rows"]
    assert data.load("rows", tmp_path).classes == 12
    described = data.describe("rows", tmp_path)
    assert (described["name"], described["images"], described["verified"]) == (
        "rows",
        24,
        "unknown",
    )
    assert rows.usual.model == Model("mlp")
    assert (rows.usual.training.epochs, rows.usual.data.augment) == (7, False)
    assert data.samples_of(rows.usual).kind == "test"
    assert data.fetch("rows", tmp_path) == tmp_path


def test_a_set_from_outside_can_be_forgotten_and_then_be_another(rows):
    with pytest.raises(ValueError, match="a data set 'rows' is registered already"):
        data.register_data_set(rows)
    data.forget_data_set("rows")
    assert data.list_data_sets() == BUILT_IN
    with pytest.raises(UsageError, match="unknown data set 'rows'"):
        data.load("rows", ".")
    data.register_data_set(DataRecord(**{**FACTS, "label": "Other rows"}))
    assert data.data_record("rows").label == "Other rows"


def test_fetch_and_verify_are_the_record_s_own(tmp_path):
    def fetch(root, tell):
        tell("making it", 1, 1)
        (root / "made").mkdir()
        return root / "made"

    def verify(root):
        return "yes" if (root / "made").is_dir() else "no"

    said = []
    data.register_data_set(DataRecord(**FACTS, fetch=fetch, verify=verify))
    try:
        assert data.describe("rows", tmp_path)["verified"] == "no"
        assert data.fetch("rows", tmp_path, lambda *step: said.append(step)) == tmp_path / "made"
        assert data.describe("rows", tmp_path)["verified"] == "yes"
    finally:
        data.forget_data_set("rows")
    assert said == [("making it", 1, 1)]


def test_only_a_resizable_set_is_given_a_size():
    sizes = []

    def load(root, size):
        sizes.append(size)
        return numbered(2, size=size or 8)

    data.register_data_set(DataRecord(**{**FACTS, "load": load}, resizable=True))
    try:
        assert data.load("rows", ".", size=32).size == 32
        assert data.load("rows", ".").size == 8
    finally:
        data.forget_data_set("rows")
    assert sizes == [32, None]
    with pytest.raises(UsageError, match="size=32 is for image folders: the images of digits"):
        data.load("digits", ".", size=32)


def test_the_command_lists_every_known_set_with_its_half_line(rows, capsys):
    _, told = aesam("data", "--help", capsys=capsys)
    for name in data.list_data_sets():
        assert f"{name}: {data.data_record(name).help}" in told


def test_the_command_describes_what_is_known_and_leaves_the_rest_out(tmp_path, capsys):
    code, told = aesam("data", "digits", "--root", tmp_path, capsys=capsys)
    assert code == 0
    assert "images: 1797" in told
    assert "verified: yes" in told
    assert "class_names" not in told
    assert "is in" not in told  # nothing was fetched
