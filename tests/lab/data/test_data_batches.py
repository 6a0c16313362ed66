"""Batches of sets in memory: fixed, complete, the same for any number of processes."""

from dataclasses import replace

import pytest
import torch
from support.fixtures_data import numbered, random_states_untouched

from aesam.lab import data
from aesam.lab.data.augment import Choices
from aesam.lab.errors import UsageError


def batches(data_set, size=10, seed=3, **options):
    options = {"augment": True, "device": "cpu"} | options
    return data.Batches(data_set.train, data_set, size, seed, **options)


def equal(one, two):
    one, two = list(one), list(two)
    return len(one) == len(two) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(one, two, strict=True)
    )


def normalised(image, data_set):
    mean, std = (torch.tensor(v).double().view(-1, 1, 1) for v in (data_set.mean, data_set.std))
    return (image.double() / 255 - mean) / std


def test_every_sample_comes_at_most_once_in_an_epoch_and_the_rest_is_dropped():
    source = batches(numbered(57))
    assert len(source) == 5
    seen = torch.cat([labels for _, labels in source.epoch(0)])
    assert len(seen) == 50
    assert len(seen.unique()) == 50


def test_the_dropped_rest_is_another_one_each_epoch():
    source = batches(numbered(57))
    seen = torch.cat([labels for epoch in range(12) for _, labels in source.epoch(epoch)])
    assert seen.unique().tolist() == list(range(57))


def test_images_are_float32_and_labels_int64():
    images, labels = next(batches(numbered(20)).epoch(0))
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert images.shape == (10, 3, 8, 8)


def test_without_augmentation_a_batch_is_its_normalised_rows():
    data_set = numbered(30)
    for images, labels in batches(data_set, augment=False).epoch(4):
        expected = torch.stack([normalised(data_set.train.images[i], data_set) for i in labels])
        torch.testing.assert_close(images.double(), expected, rtol=0, atol=2e-6)


def slow_image(data_set, choices, row, label, hole):
    """One augmented image by slicing, as one would write it on paper."""
    pad, size = data_set.pad, data_set.size
    image = data_set.train.images[label]
    padded = torch.zeros(image.shape[0], size + 2 * pad, size + 2 * pad, dtype=torch.uint8)
    padded[:, pad : pad + size, pad : pad + size] = image
    top, left = int(choices.top[row]), int(choices.left[row])
    image = padded[:, top : top + size, left : left + size]
    if choices.mirrored[row]:
        image = image.flip(2)
    image = normalised(image, data_set)
    if hole:
        y, x = int(choices.hole_y[row]) - hole // 2, int(choices.hole_x[row]) - hole // 2
        image[:, max(0, y) : max(0, y + hole), max(0, x) : max(0, x + hole)] = 0
    return image


@pytest.mark.parametrize("hole", [None, 1, 3, 4, 8])
@pytest.mark.parametrize(
    "facts",
    [
        {"pad": 2, "flips": True},
        {"pad": 1, "flips": False, "channels": 1},
        {"pad": 0, "flips": True},
        {"pad": 0, "flips": False},
    ],
)
def test_crop_mirror_and_cutout_are_what_one_image_at_a_time_gives(facts, hole):
    data_set = numbered(40, **facts)
    mirrored = set()
    for index, (images, labels) in enumerate(batches(data_set, cutout=hole).epoch(2)):
        choices = Choices.draw(
            10, 3, 2, index, pad=data_set.pad, flips=data_set.flips, size=data_set.size
        )
        mirrored |= set(choices.mirrored.tolist())
        rows = enumerate(labels.tolist())
        slow = [slow_image(data_set, choices, row, label, hole) for row, label in rows]
        torch.testing.assert_close(images.double(), torch.stack(slow), rtol=0, atol=2e-6)
    assert mirrored == ({True, False} if data_set.flips else {False})


def test_all_shifts_are_equally_likely_and_half_of_the_images_are_mirrored():
    dot = torch.zeros(3000, 1, 8, 8, dtype=torch.uint8)
    dot[:, 0, 4, 5] = 255
    data_set = numbered(3000, channels=1, pad=1)
    data_set = replace(data_set, train=data.Split(dot, torch.arange(3000)))
    places = torch.zeros(64, dtype=torch.int64)
    for images, _ in batches(data_set, size=300).epoch(0):
        places += images.flatten(1).argmax(1).bincount(minlength=64)
    places = places.view(8, 8)
    assert int(places.sum()) == 3000
    for y in range(8):
        for x in range(8):
            ways = (y in (3, 4, 5)) * ((x in (4, 5, 6)) + (x in (1, 2, 3)))
            expected = 3000 * ways / 18
            assert abs(int(places[y, x]) - expected) <= 5 * expected**0.5


def test_the_same_seed_gives_the_same_epochs_and_another_seed_others():
    data_set = numbered(40)
    with random_states_untouched():
        assert equal(batches(data_set).epoch(1), batches(data_set).epoch(1))
    assert not equal(batches(data_set).epoch(1), batches(data_set, seed=4).epoch(1))
    assert not equal(batches(data_set).epoch(1), batches(data_set).epoch(2))


def test_an_epoch_entered_in_the_middle_is_its_tail_bit_for_bit():
    source = batches(numbered(60), cutout=3)
    whole = list(source.epoch(5))
    for start in range(len(source) + 1):
        assert equal(source.epoch(5, start), whole[start:])


def test_two_epochs_read_in_turns_do_not_disturb_each_other():
    source = batches(numbered(40))
    expected = list(source.epoch(0)), list(source.epoch(1))
    turns = list(zip(source.epoch(0), source.epoch(1), strict=True))
    assert equal([a for a, _ in turns], expected[0])
    assert equal([b for _, b in turns], expected[1])


@pytest.mark.parametrize("world", [2, 3, 6])
def test_the_rows_of_all_ranks_in_order_are_those_of_one_process(world):
    data_set, options = numbered(50), {"size": 12, "cutout": 3}
    ranks = [batches(data_set, rank=r, world=world, **options).epoch(1) for r in range(world)]
    joined = [
        tuple(torch.cat(parts) for parts in zip(*shares, strict=True))
        for shares in zip(*ranks, strict=True)
    ]
    assert equal(joined, batches(data_set, **options).epoch(1))


def test_channels_last_changes_the_layout_and_no_value():
    data_set = numbered(20)
    for options in ({"augment": True, "cutout": 2}, {"augment": False}):
        plain, _ = next(batches(data_set, **options).epoch(0))
        images, _ = next(batches(data_set, channels_last=True, **options).epoch(0))
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert not images.is_contiguous()
        assert torch.equal(images, plain)


def test_the_images_of_a_split_are_never_changed():
    data_set = numbered(20)
    before = data_set.train.images.clone()
    for images, labels in batches(data_set, cutout=4).epoch(0):
        images.zero_()
        labels.zero_()
    assert torch.equal(data_set.train.images, before)
    assert data_set.train.labels.tolist() == list(range(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 21}, "batch_size=21 is larger than the data set, which has 20 images"),
        ({"size": 0}, "batch_size must be at least 1, got 0"),
        ({"size": 10, "world": 3}, "batch_size=10 .* multiple of their number, 3"),
        ({"cutout": 0}, "cutout must be between 1 and the image size 8, got 0"),
        ({"cutout": 9}, "cutout must be between 1 and the image size 8, got 9"),
    ],
)
def test_impossible_batches_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        batches(numbered(20), **options)


def test_places_that_do_not_exist_are_refused_at_once():
    source = batches(numbered(20))
    for epoch, start in ((-1, 0), (0, -1), (0, 3)):
        with pytest.raises(ValueError, match="must be"):
            source.epoch(epoch, start)
    with pytest.raises(ValueError, match="rank must be one of the world's 0..1, got 2"):
        batches(numbered(20), rank=2, world=2)


@pytest.mark.parametrize("count", [1, 2, 7, 30, 31])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_evaluation_sees_each_sample_once_over_all_ranks(count, world, size):
    data_set = numbered(count)
    chunks = [
        chunk
        for rank in range(world)
        for chunk in data.evaluation_chunks(data_set.test, data_set, size, "cpu", rank, world)
    ]
    assert sorted(int(label) for _, labels in chunks for label in labels) == list(range(count))
    for images, labels in chunks:
        assert 0 < len(labels) <= size
        expected = torch.stack([normalised(data_set.test.images[i], data_set) for i in labels])
        torch.testing.assert_close(images.double(), expected, rtol=0, atol=2e-6)


def test_evaluation_can_be_channels_last_and_refuses_what_cannot_be():
    data_set = numbered(9)
    (images, _), *_ = data.evaluation_chunks(data_set.test, data_set, 4, "cpu", channels_last=True)
    assert images.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(UsageError, match="at least 1, got 0"):
        data.evaluation_chunks(data_set.test, data_set, 0, "cpu")
    with pytest.raises(ValueError, match="rank must be"):
        data.evaluation_chunks(data_set.test, data_set, 4, "cpu", rank=3, world=3)


def test_the_random_choices_are_others_for_each_seed_epoch_and_batch():
    def drawn(*key):
        choices = Choices.draw(64, *key, pad=4, flips=True, size=32)
        return torch.stack(list(vars(choices).values())).numpy().tobytes()

    keys = [(seed, epoch, batch) for seed in range(3) for epoch in range(3) for batch in range(3)]
    assert len({drawn(*key) for key in keys}) == len(keys)
    assert drawn(1, 2, 0) == drawn(1, 2, 0)
