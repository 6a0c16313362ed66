"""The rows of results/compatibility.json are those of tests that exist, and say what is known."""

import ast
import json
import math

import pytest
from support.fixtures_compatibility import MATRIX, first_sentence

pytestmark = pytest.mark.slow

ROOT = MATRIX.parents[1]
ROWS = json.loads(MATRIX.read_text())["rows"]
KEYS = {"right": "within", "refused": "says"}


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_is_of_a_test_that_exists():
    for row in ROWS:
        path, _, name = row["test"].partition("::")
        assert (ROOT / path).exists(), row
        assert name in functions_of(path), row


def test_every_outcome_is_a_known_one_with_its_number_or_words():
    for row in ROWS:
        own = KEYS[row["outcome"]]
        assert set(row) == {"stack", "use", "outcome", own, "test"}, row
        if own == "within":
            assert 0.0 <= row["within"] <= 1e-3, row
            assert math.isfinite(row["within"])
        else:
            assert row["says"], row


def test_no_use_is_told_twice():
    assert len({(row["stack"], row["use"]) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("no: give it\n one.", "no: give it one"),
        ("It was 0.5 off. Do this.", "It was 0.5 off"),
        ("words " * 50, "words " * 24 + "…"),
    ],
)
def test_of_an_error_the_first_sentence_is_told(error, said):
    assert first_sentence(error) == said
