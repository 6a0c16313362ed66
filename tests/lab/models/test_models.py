"""The lab's models, against the parameter counts of the literature."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from aesam.lab import models
from aesam.lab.errors import UsageError
from aesam.lab.models import resnet, wide_resnet
from aesam.lab.models.vit import ViT

pytestmark = pytest.mark.slow
SMALL = ["digits-cnn", "mlp", "resnet8", "resnet20", "resnet32", "resnet56", "wrn-10-1"]
LARGE = ["resnet18", "resnet34", "resnet50", "wrn-16-4", "pyramidnet-110", "vit-s"]
BUILDABLE = [name for name in models.models_reading("images") if name != "wrn-D-K"]


def small(name):
    """The model for 8x8 images; of ViT a thin and shallow one."""
    if name == "vit":
        return ViT(classes=5, channels=3, size=8, patch=4, dim=48, depth=2, heads=3)
    return models.build(name, classes=5, size=8)


def parameters(name, **task):
    with torch.device("meta"):
        return sum(p.numel() for p in models.build(name, **task).parameters())


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        ("resnet18", {"classes": 10}, 11_173_962),
        ("resnet50", {"classes": 1000, "size": 224}, 25_557_032),
        ("wrn-28-10", {"classes": 10}, 36_479_194),
        ("pyramidnet-110", {"classes": 10}, 28_485_477),
        ("vit-s", {"classes": 1000, "size": 224, "patch": 16}, 22_050_664),
        ("vit-s", {"classes": 1000, "size": 224}, 22_050_664),
        ("resnet20", {"classes": 10}, 269_722),
    ],
)
def test_parameter_count_is_exactly_that_of_the_literature(name, task, expected):
    assert parameters(name, **task) == expected


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("resnet20", 0.27),  # He et al. 2016, table 6
        ("resnet32", 0.46),
        ("resnet56", 0.85),
        ("wrn-40-4", 8.9),  # Zagoruyko & Komodakis 2016, table 5
        ("wrn-16-8", 11.0),
        ("wrn-28-10", 36.5),
        ("wrn-40-1", 0.6),
        ("wrn-40-2", 2.2),
        ("resnet34", 21.3),  # 21.8 for ImageNet: 10 classes in place of 1000, a 3x3 stem
    ],
)
def test_parameter_count_is_as_the_papers_round_it(name, millions):
    digits = 2 if millions < 1 and name.startswith("resnet") else 1
    assert round(parameters(name, classes=10) / 1e6, digits) == millions


def test_the_digits_network_is_small():
    assert 20_000 < parameters("digits-cnn", classes=10, channels=1, size=8) < 60_000


def test_depths_count_the_layers_with_weights():
    for name, depth in (
        ("resnet8", 8),
        ("resnet56", 56),
        ("resnet18", 18),
        ("resnet34", 34),
        ("resnet50", 50),
        ("pyramidnet-110", 110),
    ):
        with torch.device("meta"):
            layers = models.build(name, classes=10).named_modules()
        weighted = [k for k, m in layers if isinstance(m, nn.Conv2d | nn.Linear)]
        assert sum("shortcut" not in k for k in weighted) == depth


def test_small_cifar_resnets_and_pyramids_have_no_parameters_in_shortcuts():
    for name in ("resnet20", "pyramidnet-110"):
        with torch.device("meta"):
            kernels = [
                m for m in models.build(name, classes=10).modules() if isinstance(m, nn.Conv2d)
            ]
        assert all(k.kernel_size == (3, 3) for k in kernels)


def silenced(block):
    """The block with its branch made zero: what is left is the shortcut."""
    last = [m for m in block.modules() if isinstance(m, nn.BatchNorm2d | nn.Conv2d)][-1]
    nn.init.zeros_(last.weight)
    return block


def test_without_their_branches_blocks_pass_the_image_on():
    x = torch.rand(2, 16, 8, 8) + 0.1  # positive: ReLU changes nothing
    for kind in (resnet.PlainBlock, wide_resnet.PyramidBlock, wide_resnet.WideBlock):
        assert torch.equal(silenced(kind(16, 16, 1))(x), x)
    assert torch.equal(resnet.ResidualBlock(nn.Identity(), 16, 16, 1)(x), x + x)


def test_a_shortcut_without_parameters_thins_or_averages_and_appends_zeros():
    x = torch.rand(2, 16, 7, 7)
    thinned = silenced(resnet.PlainBlock(16, 32, 2))(x)
    averaged = silenced(wide_resnet.PyramidBlock(16, 21, 2))(x)
    assert torch.equal(thinned[:, :16], x[:, :, ::2, ::2])
    torch.testing.assert_close(averaged[:, :16, 0, 0], x[:, :, :2, :2].mean((2, 3)))
    torch.testing.assert_close(averaged[:, :16, 3, 3], x[:, :, 6, 6])
    assert not thinned[:, 16:].any()
    assert not averaged[:, 16:].any()


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    ("channels", "size", "classes"), [(1, 8, 10), (3, 32, 100), (4, 13, 3), (3, 48, 1)]
)
def test_small_models_take_any_image_and_number_of_classes(name, channels, size, classes):
    model = models.build(name, classes=classes, channels=channels, size=size)
    assert model(torch.randn(2, channels, size, size)).shape == (2, classes)


@pytest.mark.parametrize("name", LARGE)
def test_large_models_answer_for_cifar_images(name):
    model = models.build(name, classes=7).eval()
    with torch.no_grad():
        out = model(torch.randn(2, 3, 32, 32))
    assert out.shape == (2, 7)
    assert out.isfinite().all()


@pytest.mark.parametrize("name", [name for name in LARGE if name != "vit-s"])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 29), (3, 224)])
def test_large_convolutional_models_take_any_size(name, channels, size):
    with torch.device("meta"):
        model = models.build(name, classes=10, channels=channels, size=size)
        assert model(torch.randn(2, channels, size, size)).shape == (2, 10)


@pytest.mark.parametrize(
    ("size", "patch", "tokens"),
    [(32, None, 64), (64, None, 256), (224, None, 196), (32, 8, 16), (96, 32, 9), (8, None, 4)],
)
def test_vit_cuts_an_image_into_patches_beside_a_class_token(size, patch, tokens):
    with torch.device("meta"):
        model = models.build("vit-s", classes=10, channels=1, size=size, patch=patch)
        assert model(torch.randn(2, 1, size, size)).shape == (2, 10)
    assert model.get_parameter("positions").shape == (1, tokens + 1, 384)


def test_first_stage_of_resnet18_keeps_the_size_and_that_of_resnet50_has_a_quarter():
    with torch.device("meta"):
        image = torch.randn(2, 3, 64, 64)
        for name, size in (("resnet18", 64), ("resnet50", 16)):
            stem = models.build(name, classes=10).get_submodule("stem")
            assert stem(image).shape == (2, 64, size, size)


def gradients(model, x, y):
    F.cross_entropy(model(x), y).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_gradients_reach_every_parameter(name):
    torch.manual_seed(0)
    size = 32 if name == "resnet50" else 8
    model = models.build(name, classes=5, size=size)
    found = gradients(model, torch.randn(4, 3, size, size), torch.tensor([0, 1, 2, 3]))
    assert [k for k, g in found.items() if g is None or not g.isfinite().all() or not g.any()] == []


@pytest.mark.parametrize("name", ["digits-cnn", "resnet8", "wrn-10-1", "mlp", "vit"])
def test_channels_last_changes_nothing_but_the_last_digits(name):
    torch.manual_seed(0)
    model = small(name).double()
    x, y = torch.randn(4, 3, 8, 8).double(), torch.tensor([0, 1, 2, 3])
    usual = gradients(model, x, y)
    model.zero_grad()
    model.to(memory_format=torch.channels_last)
    last = gradients(model, x.to(memory_format=torch.channels_last), y)
    for key, gradient in usual.items():
        torch.testing.assert_close(last[key], gradient, rtol=1e-9, atol=1e-11)


def test_attention_is_softmax_of_scaled_products():
    torch.manual_seed(0)
    attention = small("vit").double().get_submodule("blocks.0.attention")
    x = torch.randn(2, 5, 48).double()
    query, key, value = attention.qkv(x).chunk(3, dim=-1)
    heads = []
    for i in range(3):
        q, k, v = (part[..., 16 * i : 16 * (i + 1)] for part in (query, key, value))
        heads.append((q @ k.mT / 16**0.5).softmax(-1) @ v)
    torch.testing.assert_close(attention(x), attention.out(torch.cat(heads, dim=-1)))


def test_mlp_gives_a_batch_the_mean_gradient_of_its_halves():
    torch.manual_seed(0)
    model = models.build("mlp", classes=3, channels=1, size=8).double()
    x, y = torch.randn(8, 1, 8, 8).double(), torch.arange(8) % 3
    whole = gradients(model, x, y)
    model.zero_grad()
    gradients(model, x[:4], y[:4])
    both = gradients(model, x[4:], y[4:])  # on top of the first half's: backward adds up
    for key, gradient in whole.items():
        torch.testing.assert_close(both[key] / 2, gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["digits-cnn", "mlp", "resnet8", "wrn-10-1", "vit"])
def test_the_seed_fixes_the_weights(name):
    def drawn(seed):
        torch.manual_seed(seed)
        return small(name).state_dict()

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)


def test_convolutions_start_as_he_et_al_draw_them():
    torch.manual_seed(0)
    for layer in models.build("resnet20", classes=10).modules():
        if isinstance(layer, nn.Conv2d):
            expected = math.sqrt(2 / (9 * layer.out_channels))
            assert layer.weight.std().item() == pytest.approx(expected, rel=0.15)


def test_vit_starts_truncated_at_two_deviations():
    torch.manual_seed(0)
    weights = dict(small("vit").named_parameters())
    drawn = [w for w in weights.values() if w.ndim > 1]
    assert all(w.std() > 0.01 and w.abs().max() <= 0.04 for w in drawn)
    assert not any(w.any() for k, w in weights.items() if k.endswith("bias"))


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("resnet-18", "resnet18"),
        ("wrn-28", "wrn-28-10"),
        ("vits", "vit-s"),
        ("Digits-CNN", "digits-cnn"),
    ],
)
def test_an_unknown_name_lists_near_matches_and_all_names(wrong, near):
    for refuse in (models.model_record, lambda name: models.build(name, classes=10)):
        with pytest.raises(
            UsageError, match=f"unknown model '{wrong}': did you mean .*{near}"
        ) as e:
            refuse(wrong)
        assert all(name in str(e.value) for name in models.list_models())


@pytest.mark.parametrize("wrong", ["wrn-28-0", "wrn-28-", "wrn-28-10x", "wrn--28-10", " mlp", ""])
def test_a_name_that_is_nearly_a_pattern_is_unknown(wrong):
    with pytest.raises(UsageError, match="unknown model"):
        models.model_record(wrong)


def test_an_impossible_wide_resnet_depth_names_the_nearest_possible_ones():
    with pytest.raises(UsageError, match="6n \\+ 4 layers.*not 27.*wrn-22-10 and wrn-28-10"):
        models.model_record("wrn-27-10")
    for depth in (0, 4, 9):
        with pytest.raises(UsageError, match="wrn-10-2 and wrn-16-2"):
            models.build(f"wrn-{depth}-2", classes=10)


def test_the_pattern_itself_is_explained():
    with pytest.raises(UsageError, match="write numbers for the depth D"):
        models.model_record("wrn-D-K")


def test_looking_a_model_up_builds_nothing(monkeypatch):
    def refuse(self):
        raise AssertionError("a module was made")

    monkeypatch.setattr(nn.Module, "__init__", refuse)
    for name in (*BUILDABLE, "wrn-400-20"):
        models.model_record(name)
    with pytest.raises(AssertionError, match="a module was made"):
        models.build("mlp", classes=2)


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("vit-s", {"size": 32, "patch": 5}, "patch 5 does not divide .* 32; choose among 1, 2, 4"),
        ("vit-s", {"size": 30}, "patch 4 does not divide images of size 30"),
        ("vit-s", {"size": 32, "patch": 64}, "patch 64 does not divide"),
        ("vit-s", {"size": 32, "patch": 0}, "patch 0 does not divide"),
        ("vit-s", {"size": 32, "patch": -4}, "patch -4 does not divide"),
        ("resnet18", {"patch": 4}, "patch 4 is for vit-s; model 'resnet18' has no patches"),
        ("digits-cnn", {"size": 7}, "size 8 or more, got 7"),
        ("mlp", {"size": 0}, "size must be 1 or more, got 0"),
        ("mlp", {"channels": 0}, "channels must be 1 or more, got 0"),
        ("mlp", {"classes": 0}, "classes must be 1 or more, got 0"),
    ],
)
def test_an_impossible_combination_is_refused(name, task, message):
    with pytest.raises(UsageError, match=message):
        models.build(name, **{"classes": 10, **task})
