"""Models by name: what a record says, families of them, and models from outside."""

import pytest
import torch
from support.fixtures_data import numbered
from torch import nn

from aesam.lab import models
from aesam.lab.config import Model
from aesam.lab.errors import UsageError
from aesam.lab.models import ModelFamily, ModelRecord

BUILT_IN = [
    *("digits-cnn", "mlp", "resnet8", "resnet20", "resnet32", "resnet56"),
    *("resnet18", "resnet34", "resnet50", "wrn-28-10", "pyramidnet-110", "vit-s"),
    *("text-transformer", "wrn-D-K"),
]


def linear(task):
    return nn.Sequential(nn.Flatten(), nn.Linear(task.channels * task.size**2, task.classes))


LINEAR = ModelRecord("linear", "Linear", "one layer", linear)


@pytest.fixture
def outside():
    """A model from outside, known during one test."""
    models.register_model(LINEAR)
    yield LINEAR
    models.forget_model("linear")


def test_the_built_in_models_are_listed_and_every_record_is_complete():
    assert models.list_models() == BUILT_IN
    assert models.list_models("resnet?") == ["resnet8"]
    for name in BUILT_IN[:-1]:
        record = models.model_record(name)
        assert record.name == name
        assert record.label
        assert record.help


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("digits-cnn", "Small CNN"),
        ("mlp", "MLP"),
        ("resnet8", "ResNet-8"),
        ("resnet18", "ResNet-18"),
        ("resnet32", "ResNet-32"),
        ("resnet50", "ResNet-50"),
        ("wrn-28-10", "WRN-28-10"),
        ("wrn-16-4", "WRN-16-4"),
        ("pyramidnet-110", "PyramidNet-110"),
        ("vit-s", "ViT-S16"),
    ],
)
def test_a_label_is_what_the_paper_s_tables_say(name, label):
    assert models.model_record(name).label == label


def test_a_record_without_its_builder_cannot_be_made():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'build'"):
        ModelRecord("linear", "Linear", "one layer")


def test_a_model_from_outside_is_listed_and_built_for_a_data_set(outside):
    assert models.list_models() == [*BUILT_IN[:-1], "linear", "wrn-D-K"]
    data_set = numbered(5, size=6, channels=1)
    net = models.build_for(Model("linear"), data_set)
    assert net(torch.zeros(2, 1, 6, 6)).shape == (2, 5)
    with pytest.raises(UsageError, match="unknown model 'liner': did you mean linear"):
        models.build("liner", classes=2)
    with pytest.raises(ValueError, match="a model 'linear' is registered already"):
        models.register_model(outside)


def test_a_model_from_outside_can_be_forgotten(outside):
    models.forget_model("linear")
    assert models.list_models() == BUILT_IN
    with pytest.raises(UsageError, match="unknown model 'linear'"):
        models.model_record("linear")
    with pytest.raises(UsageError, match="unknown model 'linear'"):
        models.forget_model("linear")
    models.register_model(outside)


def test_the_patch_of_a_run_reaches_its_model_and_is_refused_by_one_without():
    data_set = numbered(4, size=8)
    with torch.device("meta"):
        net = models.build_for(Model("vit-s", patch=2), data_set)
    assert net.get_parameter("positions").shape == (1, 17, 384)
    with pytest.raises(UsageError, match="patch 2 is for vit-s; model 'mlp' has no patches"):
        models.build_for(Model("mlp", patch=2), data_set)


def test_who_takes_a_patch_follows_from_the_records(outside):
    models.register_model(ModelRecord("cut", "Cut", "by patches", linear, has_patches=True))
    try:
        assert models.build("cut", classes=2, patch=4) is not None
        with pytest.raises(UsageError, match="patch 4 is for vit-s or cut; model 'linear' has no"):
            models.build("linear", classes=2, patch=4)
    finally:
        models.forget_model("cut")


def test_a_family_from_outside_knows_its_members_until_it_is_forgotten():
    def member(name):
        width = name.removeprefix("wide-")
        return ModelRecord(name, f"Wide-{width}", "", linear) if width.isdigit() else None

    family = ModelFamily("wide-N", "one layer of N", member)
    models.register_model(family)
    try:
        assert models.list_models()[-1] == "wide-N"
        assert models.model_record("wide-12").label == "Wide-12"
        assert models.model_record("wrn-16-4").label == "WRN-16-4"
        with pytest.raises(UsageError, match="unknown model 'wide-x': .*wide-N"):
            models.model_record("wide-x")
        with pytest.raises(ValueError, match="models 'wide-N' are registered already"):
            models.register_model(family)
    finally:
        models.forget_model("wide-N")
    with pytest.raises(UsageError, match="unknown model 'wide-12'"):
        models.model_record("wide-12")


@pytest.mark.parametrize(
    "name",
    ["wrn-16-9999999", "wrn-16-99999999999", "wrn-9999994-1", f"wrn-16-{'9' * 5000}", "wrn-28-200"],
)
def test_a_wide_resnet_beyond_all_memory_is_refused_by_its_name_alone(name):
    with pytest.raises(UsageError, match="is too large: .* at most 10,000 layers and 10,000,000,0"):
        models.model_record(name)


def test_a_deep_and_a_wide_one_within_the_limits_are_known():
    assert models.model_record("wrn-1000-1").label == "WRN-1000-1"
    assert models.model_record("wrn-28-100").label == "WRN-28-100"


@pytest.mark.parametrize("patch", [10**9, 10**30, 0, -4])
def test_a_patch_that_no_image_has_is_refused_before_anything_is_made(patch):
    with pytest.raises(UsageError, match=f"patch {patch} does not divide images of size 32"):
        models.build("vit-s", classes=10, patch=patch)


def test_a_model_for_which_memory_is_short_is_refused_in_words():
    def build(task):
        return torch.nn.Linear(2**40, task.classes)

    record = models.ModelRecord("huge", "Huge", "40 TB", build)
    models.register_model(record)
    try:
        with pytest.raises(UsageError, match="not enough memory for model 'huge': choose a small"):
            models.build("huge", classes=10)
    finally:
        models.forget_model("huge")
