"""What the paper says of its tables and figures, held against our runs, by seed.

Disagreement is said as it is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aesam.lab.show import (
    Comparison,
    MethodRow,
    PairedTest,
    bootstrap_interval,
    paired_t_test,
    wording,
)

SIGNIFICANT = 0.05
FEWEST = 3  # seeds for a verdict: with two, a single difference more would turn it
ALIKE = 10.0  # points of % SAM within which two methods count as equally often
LEARNT = 0.5  # of the right labels; less is settings that failed, whatever the method
SAME = "every seed differs by the same, so nothing can be tested"
FEW = "two seeds, too few to say"
PAPER = "the paper"


@dataclass(frozen=True)
class Quantity:
    """A number of each run, and how two methods are compared by it."""

    of: Callable[[MethodRow], Mapping[int, float]]  # by seed
    better: str
    same: str
    unit: str = ""
    digits: str = ".2f"
    small_is_good: bool = False
    lacking: Callable[[MethodRow], str] = lambda _: ""  # why a row has too little for it

    def shown(self, value: float, sign: str = "") -> str:
        return f"{value:{sign}{self.digits}}".replace("-", "−")


ACCURACY = Quantity(lambda row: row.accuracies, "more accurate than", "as accurate as", "points")


@dataclass(frozen=True)
class Claim:
    """``better`` is better than ``worse``, or as good if ``comparable``.

    ``by`` is who says so; what the paper does not say is a question of ours, and stands there.
    ``alike`` is said of methods that use SAM equally often: where they do not, the verdict says so.
    """

    better: str
    worse: str
    comparable: bool = False
    by: str = PAPER
    alike: bool = False


@dataclass(frozen=True)
class Verdict:
    """What our runs say of a claim, in numbers and in one sentence."""

    claim: Claim
    quantity: Quantity
    where: str
    means: tuple[float, float]
    test: PairedTest
    interval: tuple[float, float]
    word: str
    remark: str = ""

    def sentence(self) -> str:
        shown, (ours, theirs) = self.quantity.shown, self.means
        if not math.isfinite(self.test.difference):
            return f"{self.where}: {self.claimed} → {self.word}."
        low, high = self.interval
        unit = f" {self.quantity.unit}" if self.quantity.unit else ""
        tested = f"{wording.p_statement(self.test)}, " if self.test.p_value > 0.0 else ""
        return (
            f"{self.where}: {self.claimed} → {self.word} ({shown(ours)} against "
            f"{shown(theirs)}: {shown(self.test.difference, '+')}{unit}, bootstrap "
            f"{shown(low, '+')} to {shown(high, '+')}, {tested}n = {self.test.n}"
            f"{'; ' + self.remark if self.remark else ''})."
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "where": self.where,
            "claim": self.claimed,
            "word": self.word,
            "means": list(self.means),
            "difference": self.test.difference,
            "interval_95": list(self.interval),
            "p_value": self.test.p_value,
            "n": self.test.n,
            "remark": self.remark,
        }

    @property
    def claimed(self) -> str:
        """The claim in words."""
        relation = self.quantity.same if self.claim.comparable else self.quantity.better
        asked = "" if self.claim.by == PAPER else f" ({self.claim.by})"
        return f"{self.claim.better} {relation} {self.claim.worse}{asked}"


TABLE_CIFAR = (
    Claim("ae-sam", "sam"),
    Claim("ae-sam", "ss-sam", alike=True),
    Claim("ae-looksam", "looksam", alike=True),
)
TABLE_IMAGENET = (
    Claim("ae-sam", "sam", comparable=True),
    Claim("ae-looksam", "looksam", alike=True),
)
TABLE_NOISE = (
    Claim("ae-looksam", "sam", comparable=True),
    Claim("ae-looksam", "esam"),
    Claim("ae-looksam", "ss-sam", alike=True),
    Claim("ae-looksam", "looksam", alike=True),
    Claim("ae-sam", "ss-sam", alike=True),
    Claim("sam", "erm"),
)
CONTROL_CLAIMS = (
    Claim("ae-sam", "matched-sam", by="the geometry, not just the schedule?", alike=True),
    Claim("ae-sam", "inverted-sam", by="the sharp steps, not just any?", alike=True),
    Claim("ae-looksam", "matched-looksam", by="the geometry, not just the schedule?", alike=True),
    Claim("ae-looksam", "inverted-looksam", by="the sharp steps, not just any?", alike=True),
    Claim("sam", "erm-long", by="SAM, not just the time?"),
    Claim("ae-looksam", "erm-long", by="the method, not just the time?"),
    Claim("ae-looksam", "late-sam", by="better than SAM at the end only?"),
)


def judge(
    comparison: Comparison, claims: Sequence[Claim], quantity: Quantity = ACCURACY
) -> list[Verdict]:
    """A verdict on each claim whose methods are both there with two seeds or more in common."""
    rows = {row.method: row for row in comparison.rows}
    found = (_verdict(claim, rows, comparison.title, quantity) for claim in claims)
    return [verdict for verdict in found if verdict is not None]


def _verdict(
    claim: Claim, rows: Mapping[str, MethodRow], where: str, quantity: Quantity
) -> Verdict | None:
    if claim.better not in rows or claim.worse not in rows:
        return None
    return compare_rows(rows[claim.better], rows[claim.worse], claim, where, quantity)


def compare_rows(
    ours: MethodRow,
    theirs: MethodRow,
    claim: Claim,
    where: str,
    quantity: Quantity = ACCURACY,
) -> Verdict | None:
    """The verdict on two rows; None with fewer than two seeds in common."""
    left, right = quantity.of(ours), quantity.of(theirs)
    seeds = sorted(left.keys() & right.keys())
    named = replace(claim, better=ours.label, worse=theirs.label)
    astray = [s for s in seeds if not math.isfinite(left[s] - right[s])]
    why = f"not finite at seed {wording.whole_numbers(astray)}" if astray else ""
    why = quantity.lacking(ours) or quantity.lacking(theirs) or why
    if why and seeds:
        return _untestable(named, quantity, where, why, len(seeds))
    test = paired_t_test(left, right)
    interval = bootstrap_interval([left[s] - right[s] for s in seeds])
    if test is None or interval is None:
        return None
    means = (sum(left[s] for s in seeds) / len(seeds), sum(right[s] for s in seeds) / len(seeds))
    word, remark = _word(claim, test, quantity), _remark(claim, ours, theirs)
    return Verdict(named, quantity, where, means, test, interval, word, remark)


def _untestable(claim: Claim, quantity: Quantity, where: str, why: str, n: int) -> Verdict:
    test, gone = PairedTest(n, math.nan, math.nan), (math.nan, math.nan)
    return Verdict(claim, quantity, where, gone, test, gone, f"not tested: {why}")


def _remark(claim: Claim, ours: MethodRow, theirs: MethodRow) -> str:
    """Why a verdict says little: methods that are no match, or one whose settings failed it."""
    left, right = ours.percent_sam.mean, theirs.percent_sam.mean
    unequal = claim.alike and abs(left - right) > ALIKE
    found = [f"not like for like: {left:.0f} and {right:.0f} % SAM"] if unequal else []
    found += [_failure(row) for row in (ours, theirs) if not _learnt(row)]
    return "; ".join(found)


def _learnt(row: MethodRow) -> bool:
    """Whether at least half as many labels were learnt as are right."""
    right = 100.0 * (1.0 - float(row.runs[0].config["data"].get("noise", 0.0)))
    return row.train_accuracy.mean >= LEARNT * right


def _failure(row: MethodRow) -> str:
    in_training = f"{row.train_accuracy.mean:.0f} % in training"
    return f"{row.label} hardly learnt with these settings, {in_training}"


def _word(claim: Claim, test: PairedTest, quantity: Quantity) -> str:
    # Equal differences at every seed are chance on a small test set: no spread to test against.
    if test.p_value == 0.0:
        return SAME
    if test.n < FEWEST:
        return FEW
    certain = test.p_value < SIGNIFICANT
    good = test.difference < 0 if quantity.small_is_good else test.difference > 0
    if claim.by != PAPER:
        return "cannot tell" if not certain else "yes" if good else "no, the other way round"
    if claim.comparable:
        return "no difference found" if not certain else _beyond(good)
    if good:
        return "holds here" if certain else "same direction, not significant"
    return "disagrees" if certain else "not seen here"


def _beyond(good: bool) -> str:
    return "better here" if good else "disagrees: worse here"
