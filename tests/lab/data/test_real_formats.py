"""The real command on files in CIFAR's format and on a folder of images, made by the test."""

import json

import numpy as np
import pytest
from PIL import Image
from support.commands import aesam, metrics_of

pytestmark = pytest.mark.slow


def write_cifar10(folder, per_batch=40):
    """Images whose mean brightness tells their class, in the official binary form."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        labels = draw.integers(0, 10, per_batch).astype(np.uint8)
        noise = draw.integers(0, 20, (per_batch, 3072))
        pixels = (labels[:, None] * 23 + noise).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], pixels]).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n")


def test_cifar_files_are_trained_on(tmp_path, capsys, small_cifar):
    write_cifar10(tmp_path / "data/cifar-10-batches-bin")
    code, told = aesam(
        "train", "--dataset", small_cifar, "--root", tmp_path / "data", "--model", "resnet8",
        "--method", "ae-looksam", "--epochs", 2, "--batch-size", 50, "--channels-last",
        "--noise", 0.4, "--out", tmp_path / "run", capsys=capsys,
    )  # fmt: skip
    assert code == 0, told
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [4, 8]
    assert json.loads((tmp_path / "run/config.json").read_text())["data"]["augment"] is True


def test_a_folder_of_images_is_trained_on(tmp_path, capsys):
    draw = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 3)):
        for name, level in (("dark", 40), ("light", 200)):
            place = tmp_path / "data" / split / name
            place.mkdir(parents=True)
            for i in range(count):
                pixels = draw.integers(level - 30, level + 30, (40, 48, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.png")
    code, told = aesam(
        "train", "--dataset", "folder", "--root", tmp_path / "data", "--model", "resnet8",
        "--method", "sam", "--epochs", 1, "--batch-size", 8, "--workers", 1, "--out",
        tmp_path / "run", capsys=capsys,
    )  # fmt: skip
    assert code == 0, told
    assert metrics_of(tmp_path / "run")[0]["step"] == 2
