"""The sets that need no files, wrong labels on purpose, and parts of a set."""

import hashlib
from dataclasses import FrozenInstanceError

import pytest
import torch
from support.fixtures_data import numbered, random_states_untouched, same

from aesam.lab import data
from aesam.lab.errors import UsageError


def labels_of(*counts):
    return torch.cat([torch.full((n,), label) for label, n in enumerate(counts)])


def test_digits_are_1437_to_train_on_and_360_to_test_each_with_all_classes(tmp_path):
    digits = data.load("digits", tmp_path)
    assert (len(digits.train), len(digits.test), digits.classes) == (1437, 360, 10)
    assert digits.train.images.shape == (1437, 1, 8, 8)
    shares = digits.test.labels.bincount() / (
        digits.test.labels.bincount() + digits.train.labels.bincount()
    )
    assert (shares - 360 / 1797).abs().max() < 0.006
    assert digits.train.images.unique().tolist() == [round(i * 255 / 16) for i in range(17)]


def test_the_split_of_the_digits_is_the_published_one():
    """Another split, by a change here or in a library, would make old results incomparable."""
    test = data.load("digits", ".").test
    raw = test.images.numpy().tobytes() + test.labels.numpy().tobytes()
    assert hashlib.md5(raw).hexdigest() == "61ec65e3448a07727dd3e1ea146efbba"


def test_no_digit_is_in_both_splits():
    digits = data.load("digits", ".")

    def rows(split):
        return {image.numpy().tobytes() for image in split.images}

    assert len(rows(digits.train) | rows(digits.test)) == 1797
    assert not rows(digits.train) & rows(digits.test)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_normalised_training_images_have_mean_0_and_deviation_1(name):
    found = data.load(name, ".")
    chunks = data.evaluation_chunks(found.train, found, 500, "cpu")
    images = torch.cat([images for images, _ in chunks])
    assert images.mean().abs() < 0.02
    assert abs(float(images.std()) - 1) < 0.03


def test_synthetic_is_always_the_same_and_a_nearest_centre_rule_learns_it():
    with random_states_untouched():
        one, two = data.load("synthetic", "."), data.load("synthetic", ".")
    assert same(one.train, two.train)
    assert same(one.test, two.test)
    assert (len(one.train), len(one.test), one.classes) == (512, 256, 4)
    flat = one.train.images.flatten(1).float()
    centres = torch.stack([flat[one.train.labels == c].mean(0) for c in range(4)])
    guess = torch.cdist(one.test.images.flatten(1).float(), centres).argmin(1)
    assert (guess == one.test.labels).float().mean() > 0.95


def test_splits_refuse_what_does_not_fit_and_do_not_change():
    split = numbered(6).train
    with pytest.raises(ValueError, match=r"uint8 \[N, C, H, W\]"):
        data.Split(split.images.float(), split.labels)
    with pytest.raises(ValueError, match="one per image"):
        data.Split(split.images, split.labels[:5])
    with pytest.raises(FrozenInstanceError):
        split.labels = split.labels


def test_describe_counts_what_is_there():
    found = data.describe("digits", ".")
    assert (found["images"], found["train"], found["test"]) == (1797, 1437, 360)
    assert found["shape"] == (1, 8, 8)
    assert sum(found["train_per_class"]) == 1437
    assert found["test_per_class"][8] == 35
    assert found["verified"] == "yes"
    assert data.describe("synthetic", ".")["verified"] == "unknown"


# Label noise


@pytest.mark.parametrize("share", [0.0, 0.2, 0.455, 0.6, 0.999])
def test_exactly_the_share_of_labels_changes_and_always_to_another_class(share):
    labels = labels_of(*[100] * 10)
    changed = data.flip_labels(labels, 10, share, seed=3)
    assert int((changed != labels).sum()) == round(share * 1000)
    assert 0 <= int(changed.min()) <= int(changed.max()) < 10


def test_wrong_labels_are_uniform_over_the_other_classes():
    labels = torch.full((60_000,), 3)
    counts = data.flip_labels(labels, 10, 0.6, seed=1).bincount(minlength=10)
    assert counts[3] == 24_000
    others = counts[torch.arange(10) != 3]
    assert (others - 4000).abs().max() < 5 * (36_000 * (1 / 9) * (8 / 9)) ** 0.5


def test_uniform_noise_draws_from_all_classes():
    labels = torch.full((60_000,), 3)
    counts = data.flip_labels(labels, 10, 0.5, seed=1, kind="uniform").bincount(minlength=10)
    others = counts[torch.arange(10) != 3]
    spread = 5 * (30_000 * 0.1 * 0.9) ** 0.5
    assert (others - 3000).abs().max() < spread
    assert abs(int(counts[3]) - 33_000) < spread


def test_noise_hits_every_class_alike():
    labels = labels_of(*[6000] * 10)
    hit = labels[data.flip_labels(labels, 10, 0.4, seed=0) != labels].bincount()
    assert (hit - 2400).abs().max() < 5 * (6000 * 0.4 * 0.6) ** 0.5


def test_noise_is_fixed_by_the_seed_and_draws_from_nobody_else():
    labels = labels_of(*[50] * 4)
    with random_states_untouched():
        one, two = (data.flip_labels(labels, 4, 0.5, seed=7) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, data.flip_labels(labels, 4, 0.5, seed=8))
    assert torch.equal(labels, labels_of(*[50] * 4))


def test_more_noise_with_the_same_seed_keeps_the_wrong_labels_of_less():
    labels = labels_of(*[50] * 4)
    little, much = (data.flip_labels(labels, 4, share, seed=7) for share in (0.2, 0.6))
    wrong = little != labels
    assert torch.equal(little[wrong], much[wrong])


def test_noisy_labels_replace_those_of_a_training_split_and_of_no_other():
    digits = data.load("digits", ".")
    clean = digits.test.labels.clone()
    noisy = digits.train.with_labels(data.flip_labels(digits.train.labels, 10, 0.6, seed=0))
    assert int((noisy.labels != digits.train.labels).sum()) == round(0.6 * 1437)
    assert torch.equal(noisy.images, digits.train.images)
    assert torch.equal(digits.test.labels, clean)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1, 2.0, float("nan"), True, "0.5", None])
def test_impossible_noise_is_refused(share):
    with pytest.raises(UsageError, match="noise must be a number of at least 0 and below 1"):
        data.flip_labels(labels_of(5, 5), 2, share, seed=0)


def test_unknown_kinds_single_classes_and_foreign_labels_are_refused():
    labels = labels_of(5, 5)
    with pytest.raises(UsageError, match="unknown kind of label noise 'unifrom': did you mean"):
        data.flip_labels(labels, 2, 0.5, seed=0, kind="unifrom")
    with pytest.raises(UsageError, match="at least 2 classes"):
        data.flip_labels(labels_of(5), 1, 0.5, seed=0)
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.2"):
        data.flip_labels(labels + 2, 3, 0.5, seed=0)


# Parts of a set


def split_of(labels):
    rows = torch.arange(len(labels)).to(torch.uint8)
    return data.Split(rows.view(-1, 1, 1, 1), labels)


def rows_in(split):
    return split.images.flatten().tolist()


@pytest.mark.parametrize(("counts", "share"), [((100, 50, 30), 0.1), ((7, 5, 3, 1), 0.3)])
def test_hold_out_is_disjoint_complete_and_proportional(counts, share):
    whole = split_of(labels_of(*counts))
    train, held = data.hold_out(whole, share, seed=0)
    assert len(held) == round(share * len(whole))
    assert sorted(rows_in(train) + rows_in(held)) == rows_in(whole)
    for label, count in enumerate(counts):
        assert abs(int((held.labels == label).sum()) - share * count) < 1
    assert torch.equal(held.labels, whole.labels[torch.tensor(rows_in(held))])


def test_hold_out_is_fixed_by_the_seed_alone():
    whole = split_of(labels_of(100, 100))
    with random_states_untouched():
        one, two = data.hold_out(whole, 0.1, seed=4), data.hold_out(whole, 0.1, seed=4)
    assert rows_in(one[1]) == rows_in(two[1])
    assert rows_in(one[1]) != rows_in(data.hold_out(whole, 0.1, seed=5)[1])


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 0.01, 0.99, float("nan")])
def test_hold_out_refuses_shares_that_leave_a_part_empty(share):
    with pytest.raises(UsageError, match="holdout"):
        data.hold_out(split_of(labels_of(4, 4)), share, seed=0)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(3, [1, 1, 1]), (9, [3, 3, 3]), (11, [4, 4, 3]), (20, [9, 8, 3]), (53, [30, 20, 3])],
)
def test_a_subset_is_balanced_as_far_as_there_are_images(count, expected):
    part = data.subset(split_of(labels_of(30, 20, 3)), count, seed=1)
    assert part.labels.bincount(minlength=3).tolist() == expected
    assert rows_in(part) == sorted(set(rows_in(part)))


def test_a_larger_subset_contains_a_smaller_one_and_the_seed_fixes_both():
    whole = split_of(labels_of(40, 40, 10))
    with random_states_untouched():
        small, large = (set(rows_in(data.subset(whole, n, seed=2))) for n in (17, 58))
    assert small < large
    assert small == set(rows_in(data.subset(whole, 17, seed=2)))
    assert small != set(rows_in(data.subset(whole, 17, seed=3)))


@pytest.mark.parametrize("count", [0, -1, 9])
def test_a_subset_of_more_than_there_is_or_of_nothing_is_refused(count):
    with pytest.raises(UsageError, match=f"between 1 and the 8 images there are, got {count}"):
        data.subset(split_of(labels_of(4, 4)), count, seed=0)
