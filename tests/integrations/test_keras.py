"""Keras 3 on torch: its model is a torch module whose statistics are frozen parameters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]
METHODS = ["sam", "ae-sam", "ae-looksam"]


def test_a_keras_model_is_its_twin_in_torch_with_dropout_and_batchnorm(tmp_path, matrix):
    there = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "KERAS_BACKEND": "torch",
        "KERAS_HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(there),
    }
    done = subprocess.run(
        [sys.executable, "-m", "support.in_keras", *METHODS],
        capture_output=True, check=False, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == METHODS
    for method in METHODS:
        assert max(found[method].values()) < 1e-4, found  # Keras multiplies in float32
    matrix.right("Keras 3 (torch)", "a closure, dropout and BatchNorm", within=1e-4)
