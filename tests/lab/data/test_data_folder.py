"""Folders of images: decoded in worker processes, fixed by the seed, broken ones named."""

import errno
import os
import random
import stat

import numpy as np
import pytest
import torch
from PIL import Image
from support.fixtures_data import random_states_untouched

from aesam.lab import data
from aesam.lab.data import pictures
from aesam.lab.errors import UsageError

#: Newer Pythons warn of forking beside threads, which only a test runner has here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

COLOURS = {"cat": (200, 30, 90), "dog": (10, 150, 220), "emu": (90, 90, 90)}
SIZE = 16
WORKERS = min(2, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else 1


def noise_image(width, height, seed):
    source = random.Random(seed)
    return Image.frombytes("RGB", (width, height), source.randbytes(3 * width * height))


@pytest.fixture
def root(tmp_path):
    """Three classes: plain colours to test on, noise to train on, in several sizes and forms."""
    for label, (name, colour) in enumerate(COLOURS.items()):
        for part in ("train", "val"):
            (tmp_path / part / name).mkdir(parents=True)
        for i in range(5):
            image = noise_image(20 + 7 * i, 41 - 6 * i, 10 * label + i)
            image.save(tmp_path / "train" / name / f"{i}.png")
        for i, suffix in enumerate(("png", "JPEG", "jpg")):
            Image.new("RGB", (30, 20 + 9 * i), colour).save(
                tmp_path / "val" / name / f"{i}.{suffix}"
            )
    return tmp_path


def load(root):
    return data.load("folder", root, size=SIZE)


def batches(found, size=4, **options):
    options = {"augment": True, "device": "cpu"} | options
    return data.Batches(found.train, found, size, 7, **options)


def equal(one, two):
    one, two = list(one), list(two)
    return len(one) == len(two) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(one, two, strict=True)
    )


def test_classes_are_the_sorted_folders_of_train_and_val(root):
    (root / "train" / ".hidden").mkdir()
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    found = load(root)
    assert found.class_names == ("cat", "dog", "emu")
    assert (found.classes, found.channels, found.size, found.flips) == (3, 3, SIZE, True)
    assert found.train.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert len(found.test) == 9
    assert data.load("folder", root).size == 224
    described = data.describe("folder", root)
    assert described["train_per_class"] == [5, 5, 5]
    assert described["class_names"] == ["cat", "dog", "emu"]
    assert described["verified"] == "unknown"


def test_test_stands_in_for_val(root):
    (root / "val").rename(root / "test")
    assert len(load(root).test) == 9


@pytest.mark.parametrize("workers", [0, WORKERS])
def test_evaluation_gives_the_normalised_colours_of_every_file_once(root, workers):
    found = load(root)
    seen = []
    for rank in range(2):
        chunks = data.evaluation_chunks(found.test, found, 2, "cpu", rank, 2, workers=workers)
        for images, labels in chunks:
            assert images.shape[1:] == (3, SIZE, SIZE)
            for image, label in zip(images, labels.tolist(), strict=True):
                colour = torch.tensor(list(COLOURS.values())[label]) / 255
                expected = (colour - torch.tensor(found.mean)) / torch.tensor(found.std)
                expected = expected.view(3, 1, 1).expand_as(image)
                torch.testing.assert_close(image, expected, rtol=0, atol=0.06)  # JPEG rounds
            seen += labels.tolist()
    assert seen == found.test.labels.tolist()


def test_an_epoch_is_the_same_with_and_without_worker_processes(root):
    found = load(root)
    with random_states_untouched():
        here = list(batches(found).epoch(2))
        there = list(batches(found, workers=WORKERS).epoch(2))
    assert len(here) == len(batches(found)) == 3
    assert equal(here, there)
    assert not equal(here, batches(found).epoch(3))


def test_an_epoch_entered_in_the_middle_is_its_tail_and_ranks_make_up_the_whole(root):
    found = load(root)
    whole = list(batches(found).epoch(1))
    assert equal(batches(found, workers=1).epoch(1, start=1), whole[1:])
    ranks = [batches(found, rank=rank, world=2).epoch(1) for rank in range(2)]
    joined = [(torch.cat([a, c]), torch.cat([b, d])) for (a, b), (c, d) in zip(*ranks, strict=True)]
    assert equal(joined, whole)


def test_the_parts_of_an_image_differ_from_epoch_to_epoch_only_with_augmentation(root):
    found = load(root)

    def first(epoch, augment):
        by_label = {}
        single = found.train.select(torch.tensor([4]))
        source = data.Batches(single, found, 1, 0, augment=augment, device="cpu")
        for images, labels in source.epoch(epoch):
            by_label[int(labels)] = images
        return by_label[0]

    assert torch.equal(first(0, False), first(1, False))
    assert len({first(epoch, True).numpy().tobytes() for epoch in range(6)}) == 6


def test_channels_last_is_kept(root):
    images, _ = next(batches(load(root), channels_last=True).epoch(0))
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_parts_and_noise_work_on_folders(root):
    found = load(root)
    train, held = data.hold_out(found.train, 0.2, seed=0)
    assert (len(train), held.labels.tolist()) == (12, [0, 1, 2])
    assert set(train.paths).isdisjoint(held.paths)
    part = data.subset(found.train, 6, seed=0)
    assert part.labels.tolist() == [0, 0, 1, 1, 2, 2]
    noisy = part.with_labels(data.flip_labels(part.labels, 3, 0.5, seed=0)).to("cpu")
    assert noisy.paths == part.paths
    assert int((noisy.labels != part.labels).sum()) == 3


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_any_kind_of_image_becomes_rgb(tmp_path, mode):
    suffix, options = ("jpg", {}) if mode == "CMYK" else ("png", {})
    if mode == "P":
        options = {"transparency": bytes([0, 128, 255])}
    path = str(tmp_path / f"image.{suffix}")
    Image.new("RGB", (30, 20), (255, 255, 255)).convert(mode).save(path, **options)
    pixels = pictures.decode(path, 8, None, flips=False)
    assert pixels.shape == (3, 8, 8)
    assert int(pixels.min()) > 250


def test_evaluation_looks_at_the_middle(tmp_path):
    """As a resize of the shorter side to 16 and then a crop to 14, up to rounding."""
    image = noise_image(96, 64, seed=0)
    image.save(tmp_path / "image.png")
    pixels = pictures.decode(str(tmp_path / "image.png"), 14, None, flips=True)
    slow = image.resize((24, 16), Image.Resampling.BILINEAR).crop((5, 1, 19, 15))
    slow = torch.tensor(list(slow.tobytes())).view(14, 14, 3).permute(2, 0, 1)
    assert int((pixels.int() - slow).abs().max()) <= 1


def test_training_parts_are_inside_the_image_and_of_allowed_area_and_shape():
    source = random.Random(0)
    areas, aspects = [], []
    for _ in range(2000):
        left, top, right, bottom = pictures.random_box(400, 300, source)
        assert 0 <= left < right <= 400
        assert 0 <= top < bottom <= 300
        areas.append((right - left) * (bottom - top) / (400 * 300))
        aspects.append((right - left) / (bottom - top))
    assert 0.075 < min(areas) < 0.1 < 0.9 < max(areas)
    assert 0.74 < min(aspects) < 0.78 < 1.28 < max(aspects) < 1.35
    assert len({round(a, 3) for a in areas}) > 500


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1000, 1), (1, 1000), (5000, 10), (3, 2)])
def test_oblong_and_tiny_images_still_have_a_part_inside(width, height):
    for seed in range(20):
        left, top, right, bottom = pictures.random_box(width, height, random.Random(seed))
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    left, top, right, bottom = pictures.centre_box(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_half_of_the_training_images_are_mirrored_if_that_makes_sense(tmp_path):
    image = Image.new("L", (64, 64), 0)
    image.putdata([x * 4 for _ in range(64) for x in range(64)])
    path = str(tmp_path / "ramp.png")
    image.save(path)

    def rises(seed, flips):
        pixels = pictures.decode(path, 8, random.Random(seed), flips).float()
        return bool(pixels[0, 4, 7] > pixels[0, 4, 0])

    assert all(rises(seed, flips=False) for seed in range(50))
    assert 150 < sum(rises(seed, flips=True) for seed in range(400)) < 250


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [b"no image at all", b"", "half"])
def test_a_file_that_cannot_be_decoded_is_named(root, workers, content):
    bad = root / "train" / "dog" / "2.png"
    bad.write_bytes(bad.read_bytes()[:600] if content == "half" else content)
    with pytest.raises(UsageError) as error:
        list(batches(load(root), size=15, workers=workers).epoch(0))
    assert str(error.value).startswith(f"cannot decode {bad} (")
    assert str(error.value).endswith("): repair or remove the file")


def test_different_classes_to_train_and_to_test_on_are_named(root):
    (root / "val" / "emu").rename(root / "val" / "gnu")
    with pytest.raises(UsageError, match="only in train: emu; only in val: gnu"):
        load(root)


def test_incomplete_folders_are_refused(tmp_path):
    with pytest.raises(UsageError, match="has no folder train"):
        load(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(UsageError, match="has no folder val or test"):
        load(tmp_path)
    (tmp_path / "val" / "cat").mkdir(parents=True)
    with pytest.raises(UsageError, match="train has no folders"):
        load(tmp_path)
    (tmp_path / "train" / "cat").mkdir()
    with pytest.raises(UsageError, match="cat has no image"):
        load(tmp_path)


def test_impossible_requests_are_refused(root):
    found = load(root)
    with pytest.raises(UsageError, match="cutout=4 is for sets in memory"):
        batches(found, cutout=4)
    with pytest.raises(UsageError, match="workers must be at least 0, got -1"):
        batches(found, workers=-1)
    with pytest.raises(UsageError, match="batch_size=16 is larger than the data set, .* 15"):
        batches(found, size=16)
    with pytest.raises(UsageError, match="size must be at least 1 pixel"):
        data.load("folder", root, size=0)
    with pytest.raises(UsageError, match="workers must be at least 0"):
        data.evaluation_chunks(found.test, found, 2, "cpu", workers=-1)


def odd(kind, path):
    """Something that has an image's name and is no file."""
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif kind == "a link":
        path.symlink_to("gone.png")
    else:
        path.symlink_to("/dev/null")


ODD = ["a named pipe", "a folder", "a socket", "a link", "a device"]


@pytest.mark.parametrize("kind", ODD)
def test_what_only_has_the_name_of_an_image_is_refused_when_the_folder_is_read(root, kind):
    path = root / "train" / "dog" / "zzz.JPG"
    odd(kind, path)
    with pytest.raises(UsageError) as error:
        load(root)
    assert str(error.value).startswith(f"{path} is {kind}")
    assert "move it away" in str(error.value) or "remove the link" in str(error.value)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_has_taken_the_place_of_an_image_since_is_refused_when_it_is_its_turn(
    root, kind, workers
):
    found, path = load(root), root / "train" / "dog" / "2.png"
    path.unlink()
    odd(kind, path)
    with pytest.raises(UsageError) as error:
        list(batches(found, size=15, workers=workers).epoch(0))
    assert str(error.value).startswith(f"{path} is {kind}")


def test_links_to_images_are_images_and_only_links_are_looked_at(root, monkeypatch):
    path = root / "train" / "dog" / "2.png"
    path.rename(root / "elsewhere.png")
    path.symlink_to(root / "elsewhere.png")
    looked = []
    look = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: looked.append(path) or look(path, **how))
    found = load(root)
    assert len(found.train) == 15
    assert not any(str(path).endswith((".png", ".jpg", ".JPEG")) for path in looked)
    assert len(list(batches(found, size=15).epoch(0))) == 1


def test_sixteen_bits_of_grey_become_the_eight_upper_ones(tmp_path):
    shades = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    Image.fromarray(shades).save(tmp_path / "deep.png")
    with Image.open(tmp_path / "deep.png") as image:
        found = np.asarray(pictures._rgb(image))
    assert (found == (shades >> 8)[:, :, None]).all()


def test_the_colours_of_a_palette_or_under_transparency_stay_as_they_are(tmp_path):
    source = noise_image(16, 16, seed=3)
    palette = source.quantize(16)
    for name, image, more in (
        ("palette", palette, {"transparency": bytes(range(16))}),
        ("index", palette, {"transparency": 3}),
        ("colour", source, {"transparency": (300, 2, 60000)}),
        ("grey", source.convert("L"), {"transparency": 400}),
        ("alpha", Image.merge("RGBA", (*source.split(), source.convert("L"))), {}),
    ):
        image.save(tmp_path / f"{name}.png", **more)
        with Image.open(tmp_path / f"{name}.png") as read:
            assert pictures._rgb(read).tobytes() == image.convert("RGB").tobytes(), name


def test_of_an_animated_image_the_first_picture_is_taken(tmp_path):
    first, *others = [noise_image(16, 16, seed) for seed in range(4)]
    first.save(tmp_path / "moving.png", save_all=True, append_images=others)
    first.save(tmp_path / "still.png")
    moving, still = (
        pictures.decode(str(tmp_path / f"{name}.png"), 8, None, flips=False)
        for name in ("moving", "still")
    )
    assert torch.equal(moving, still)


@pytest.mark.slow
def test_an_image_of_too_many_pixels_is_refused_and_a_large_one_is_not_warned_of(
    tmp_path, monkeypatch
):
    path = tmp_path / "large.png"
    Image.new("1", (2**14, 2**14)).save(path)
    with pytest.raises(UsageError, match=r"large\.png has more than 178,956,970 pixels: make it"):
        pictures.decode(str(path), 8, None, flips=False)
    Image.new("1", (10_000, 10_000)).save(path)  # of which Pillow warns
    assert pictures.decode(str(path), 8, None, flips=False).shape == (3, 8, 8)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # whoever needs it otherwise
    Image.new("1", (2**14, 2**14)).save(path)
    with pytest.raises(UsageError, match="more than 178,956,970 pixels"):
        pictures.decode(str(path), 8, None, flips=False)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_read_that_the_disk_refuses_is_told_as_that(root, workers, monkeypatch):
    def failing(path):
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(pictures, "open_regular", failing)
    with pytest.raises(UsageError, match=r"cannot read .*\.png \(Input/output error\): see that"):
        list(batches(load(root), workers=workers).epoch(0))


def test_a_folder_that_cannot_be_listed_is_told_by_its_name(root, monkeypatch):
    def failing(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(UsageError, match=r"cannot read .*cat \(Input/output error\): see that"):
        load(root)
