"""Keras 3 on torch: its model is a torch module whose statistics are frozen parameters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.moved_methods import LABELS

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]
METHODS = ["sam", "ae-sam", "ae-looksam"]


def in_keras(folder):
    """What support/in_keras.py found, in a process of its own."""
    there = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "KERAS_BACKEND": "torch",
        "KERAS_HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(there),
    }
    done = subprocess.run(
        [sys.executable, "-m", "support.in_keras", *METHODS],
        capture_output=True, check=False, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_keras_model_is_its_twin_in_torch_and_seeded_masks_are_the_same_in_both_passes(
    tmp_path, matrix
):
    found = in_keras(tmp_path)
    assert list(found["differences"]) == METHODS
    for differences in found["differences"].values():
        assert max(differences.values()) < 1e-4, differences  # Keras multiplies in float32
    matrix.right("Keras 3 (torch)", "a closure, dropout and BatchNorm", within=1e-4)

    for method, difference in found["moved"].items():
        assert difference < 1e-4
        matrix.right("Keras 3 (torch)", f"{LABELS[method]}, a bare loop", within=1e-4)

    for form, masks in found["seeded"].items():
        assert len(set(map(tuple, masks["alone"]))) == 4
        # A bare step looks at the first fired step, and seldom later, if its recording is whole.
        passes = [3 if form == "replay" else 2, 2, 2, 2]
        expected = [[m] * n for m, n in zip(masks["alone"], passes, strict=True)]
        assert masks["with SAM"] == [mask for of_step in expected for mask in of_step]
        matrix.right("Keras 3 (torch)", f"Dropout(seed=…): the same masks twice, {form}", 0.0)
