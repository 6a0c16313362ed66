"""How much a test of faults tries, and the count of what it tried.

``make faults`` tries all of it and writes results/faults.json; ``make test`` tries a part.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

WHOLE = os.environ.get("AESAM_FAULTS") == "all"
Case = TypeVar("Case")


class Faults:
    """What one test tries, and what it says of it."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def number(self, short: int, whole: int) -> int:
        """How many to try."""
        return whole if WHOLE else short

    def of(self, cases: Sequence[Case], short: int) -> list[Case]:
        """All cases, or ``short`` of them, evenly spaced from the first to the last."""
        if WHOLE or len(cases) <= short:
            return list(cases)
        steps = max(1, short - 1)
        return [cases[round(i * (len(cases) - 1) / steps)] for i in range(short)]

    def held(self, fault: str, tried: int, outcome: str) -> None:
        """Say that ``tried`` faults of this kind all ended as ``outcome`` says.

        Counts of the same fault with the same outcome are added up over tests.
        """
        assert tried > 0, f"nothing was tried of {fault!r}"
        self._node.user_properties.append(("fault", [fault, tried, outcome]))


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Faults:
    return Faults(request.node)
