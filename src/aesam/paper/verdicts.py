"""Many verdicts for a reader: counted in one sentence, and as a table for each place."""

import math
from collections import Counter
from collections.abc import Sequence

from aesam.lab.show import wording
from aesam.lab.show.table import Line, Sheet
from aesam.paper.claims import PAPER, Verdict

COLUMNS = ("claim", "verdict", "difference", "bootstrap interval", "p", "n")
CAPTION = (
    "Differences are paired by seed; p is of a two-sided paired t-test, not corrected for the "
    "number of tests. What the paper does not claim is a question of ours, in brackets."
)


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many claims came out which way."""
    claimed = Counter(v.word for v in verdicts if v.claim.by == PAPER)
    asked = Counter(v.word for v in verdicts if v.claim.by != PAPER)
    counts = {"Claims of the paper": claimed, "Questions of ours": asked}
    parts = [f"{heading}: {_counted(count)}" for heading, count in counts.items() if count]
    return ". ".join(parts) + "."


def _counted(count: Counter[str]) -> str:
    return "; ".join(f"{n} × {word}" for word, n in count.most_common())


def sheets_of(verdicts: Sequence[Verdict]) -> list[Sheet]:
    """A table for each place, the paper's claims first and then our questions."""
    places = dict.fromkeys(verdict.where for verdict in verdicts)
    return [_sheet(place, [v for v in verdicts if v.where == place]) for place in places]


def _sheet(place: str, verdicts: Sequence[Verdict]) -> Sheet:
    claimed = tuple(_line(v) for v in verdicts if v.claim.by == PAPER)
    asked = tuple(_line(v) for v in verdicts if v.claim.by != PAPER)
    groups = tuple(group for group in (claimed, asked) if group)
    spare = ("bootstrap interval", "n")
    return Sheet(f"Claims: {place}", COLUMNS, groups, CAPTION, spare=spare, prose=True)


def _line(verdict: Verdict) -> Line:
    shown, unit = verdict.quantity.shown, verdict.quantity.unit
    low, high = verdict.interval
    finite = math.isfinite(verdict.test.difference)
    tested = verdict.test if verdict.test.p_value > 0.0 else None
    return Line(
        (
            verdict.claimed,
            f"{verdict.word}; {verdict.remark}" if verdict.remark else verdict.word,
            f"{shown(verdict.test.difference, '+')} {unit}".rstrip() if finite else wording.NOTHING,
            f"{shown(low, '+')} to {shown(high, '+')}" if finite else wording.NOTHING,
            wording.p_value(tested),
            str(verdict.test.n),
        )
    )
