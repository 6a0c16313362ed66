"""The compatibility matrix of the docs, written and checked by the tests that establish its rows.

AESAM_WRITE_MATRIX=1 pytest -p no:xdist tests/... writes rows; without it they must be there.
"""

import json
import os
import textwrap
from pathlib import Path

import pytest

COMMAND = "AESAM_WRITE_MATRIX=1 pytest -p no:xdist tests cluster_tests"
MATRIX = Path(__file__).parents[2] / "results/compatibility.json"


class Matrix:
    """What one test says of one use of one stack."""

    def __init__(self, test: str) -> None:
        self._test = test

    def right(self, stack: str, use: str, within: float) -> None:
        """The use equals the plain loop of this library, weights within this difference."""
        self._row(stack, use, outcome="right", within=within)

    def refused(self, stack: str, use: str, error: BaseException | str) -> None:
        """The use is an error that says what to do."""
        self._row(stack, use, outcome="refused", says=first_sentence(str(error)))

    def _row(self, stack: str, use: str, **found: object) -> None:
        row = {"stack": stack, "use": use, **found, "test": self._test}
        rows = {(r["stack"], r["use"]): r for r in json.loads(MATRIX.read_text())["rows"]}
        if os.environ.get("AESAM_WRITE_MATRIX"):
            rows[stack, use] = row
            ordered = [rows[key] for key in sorted(rows)]
            whole = {"command": COMMAND, "rows": ordered}
            MATRIX.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        assert rows.get((stack, use)) == row, "write it with AESAM_WRITE_MATRIX=1"


def first_sentence(text: str) -> str:
    """The beginning of an error, on one line."""
    words = " ".join(text.split()).partition(". ")[0]
    return textwrap.shorten(words, 150, placeholder=" …").rstrip(".")


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> Matrix:
    path = Path(request.node.path).relative_to(MATRIX.parents[1])
    return Matrix(f"{path}::{request.node.originalname}")
