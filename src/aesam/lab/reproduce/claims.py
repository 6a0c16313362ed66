"""What the paper says of its tables, held against our runs; disagreement is said as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aesam.lab.report import (
    Comparison,
    MethodRow,
    PairedTest,
    bootstrap_interval,
    paired_t_test,
    wording,
)

SIGNIFICANT = 0.05
SAME = "every seed differs by the same, so nothing can be tested"


@dataclass(frozen=True)
class Claim:
    """``better`` is more accurate than ``worse``, or as accurate if ``comparable``."""

    better: str
    worse: str
    comparable: bool = False
    by: str = "the paper"


@dataclass(frozen=True)
class Verdict:
    """What our runs say of a claim, in numbers and in one sentence."""

    claim: Claim
    where: str
    n: int
    difference: float
    interval: tuple[float, float]
    p_value: float
    word: str

    def sentence(self) -> str:
        low, high = self.interval
        return (
            f"{self.where}: {self._claimed()} → {self.word} ({_signed(self.difference)} points, "
            f"bootstrap {_signed(low)} to {_signed(high)}, "
            f"{wording.p_statement(PairedTest(self.n, self.difference, self.p_value))}, "
            f"n = {self.n})."
        )

    def _claimed(self) -> str:
        relation = "as accurate as" if self.claim.comparable else "more accurate than"
        asked = "" if self.claim.by == "the paper" else f" ({self.claim.by})"
        return f"{self.claim.better} {relation} {self.claim.worse}{asked}"


def _signed(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


TABLE_CIFAR = (
    Claim("ae-sam", "sam"),
    Claim("ae-sam", "ss-sam"),
    Claim("ae-looksam", "looksam"),
)
TABLE_IMAGENET = (Claim("ae-sam", "sam", comparable=True), Claim("ae-looksam", "looksam"))
TABLE_NOISE = (
    Claim("ae-looksam", "sam", comparable=True),
    Claim("ae-looksam", "esam"),
    Claim("ae-looksam", "ss-sam"),
    Claim("ae-looksam", "looksam"),
    Claim("sam", "erm"),
)
CONTROLS = (
    Claim("ae-sam", "matched-sam", by="the geometry, not just the schedule?"),
    Claim("ae-sam", "inverted-sam", by="the sharp steps, not just any?"),
    Claim("ae-looksam", "matched-looksam", by="the geometry, not just the schedule?"),
    Claim("ae-looksam", "inverted-looksam", by="the sharp steps, not just any?"),
    Claim("sam", "erm-long", by="SAM, not just the time?"),
    Claim("ae-looksam", "erm-long", by="the method, not just the time?"),
    Claim("ae-looksam", "late-sam", by="better than SAM at the end only?"),
)


def judge(comparison: Comparison, claims: Sequence[Claim]) -> list[Verdict]:
    """A verdict on each claim whose methods are both there with two seeds or more in common."""
    rows = {row.method: row for row in comparison.rows}
    found = (_verdict(claim, rows, comparison.title) for claim in claims)
    return [verdict for verdict in found if verdict is not None]


def _verdict(claim: Claim, rows: Mapping[str, MethodRow], where: str) -> Verdict | None:
    if claim.better not in rows or claim.worse not in rows:
        return None
    return compare_rows(rows[claim.better], rows[claim.worse], claim, where)


def compare_rows(ours: MethodRow, theirs: MethodRow, claim: Claim, where: str) -> Verdict | None:
    """The verdict on two rows; None with fewer than two seeds in common."""
    test = paired_t_test(ours.accuracies, theirs.accuracies)
    seeds = sorted(ours.accuracies.keys() & theirs.accuracies.keys())
    interval = bootstrap_interval([ours.accuracies[s] - theirs.accuracies[s] for s in seeds])
    if test is None or interval is None:
        return None
    named = Claim(ours.label, theirs.label, claim.comparable, claim.by)
    # Equal differences at every seed are chance on a small test set: no spread to test against.
    word = _word(claim, test.difference, test.p_value) if test.p_value > 0.0 else SAME
    return Verdict(named, where, test.n, test.difference, interval, test.p_value, word)


def _word(claim: Claim, difference: float, p_value: float) -> str:
    certain = p_value < SIGNIFICANT
    if claim.comparable:
        if not certain:
            return "no difference found"
        return "better here" if difference > 0 else "disagrees: worse here"
    if difference > 0:
        return "holds here" if certain else "same direction, not significant"
    return "disagrees" if certain else "not seen here"
