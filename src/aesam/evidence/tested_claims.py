"""What the paper says of methods at equal cost, and what its critics ask, on ten fresh seeds.

One row against another, paired by seed, on every bench that has both. “Better” must survive Holm's
correction over all claims and benches together; “as good” is an interval that ends above the
bench's margin, never “no difference found”.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aesam.evidence.benches import BENCHES, Bench
from aesam.evidence.standing import FEWEST, Difference, Standing, difference, holm

Word = Literal["holds", "does not hold", "cannot tell", "no verdict"]


@dataclass(frozen=True)
class RowClaim:
    """One row is better than another, or as good.

    Args:
        told: the claim in words.
        ours: the row that it is about.
        theirs: the row that it is held against.
        as_good: whether it says as good and not better; False by default.
        by_paper: whether the paper says so, else it is what a reviewer asks; True by default.
    """

    told: str
    ours: str
    theirs: str
    as_good: bool = False
    by_paper: bool = True


CLAIMS = (
    RowClaim("SAM better than ERM", "sam", "erm"),
    RowClaim("SAM better than ERM stopped early", "sam", "erm-early", by_paper=False),
    RowClaim("SAM better than ERM for as long", "sam", "erm-long", by_paper=False),
    RowClaim("SAM better than ERM, weight decay tuned", "sam", "erm-decay", by_paper=False),
    RowClaim("SAM better than ERM, label smoothing tuned", "sam", "erm-smooth", by_paper=False),
    RowClaim("SAM better than ERM, all of these tuned", "sam", "erm-tuned", by_paper=False),
    RowClaim("AE-SAM as good as SAM", "ae-sam", "sam", as_good=True),
    RowClaim("AE-SAM better than SS-SAM", "ae-sam", "ss-sam"),
    RowClaim(
        "AE-SAM better than a coin with its schedule", "ae-sam", "matched-sam", by_paper=False
    ),
    RowClaim("AE-SAM better than ERM stopped early", "ae-sam", "erm-early", by_paper=False),
    RowClaim("AE-SAM better than ERM, all tuned", "ae-sam", "erm-tuned", by_paper=False),
    RowClaim("AE-LookSAM as good as SAM", "ae-looksam", "sam", as_good=True),
    RowClaim("AE-LookSAM better than LookSAM", "ae-looksam", "looksam"),
    RowClaim("AE-LookSAM better than SS-SAM", "ae-looksam", "ss-sam"),
    RowClaim(
        "AE-LookSAM better than a coin with its schedule",
        "ae-looksam",
        "matched-looksam",
        by_paper=False,
    ),
    RowClaim("AE-LookSAM better than ERM stopped early", "ae-looksam", "erm-early", by_paper=False),
    RowClaim("AE-LookSAM better than ERM, all tuned", "ae-looksam", "erm-tuned", by_paper=False),
)


@dataclass(frozen=True)
class Tested:
    """A claim on a bench: the difference, p corrected with all others, and what follows.

    ``shares`` are the percentages of steps with a second gradient of both rows.
    """

    claim: RowClaim
    bench: Bench
    found: Difference
    p_holm: float
    word: Word
    shares: tuple[float, float]


def tested(found: Mapping[str, Sequence[Standing]]) -> list[Tested]:
    """Every claim on every bench that has both rows, by claim and then by bench."""
    cells: dict[str, tuple[RowClaim, Bench, Difference, tuple[Standing, Standing]]] = {}
    for claim in CLAIMS:
        for bench, standings in found.items():
            by_name = {s.name: s for s in standings}
            if claim.ours in by_name and claim.theirs in by_name:
                pair = by_name[claim.ours], by_name[claim.theirs]
                apart = difference(pair[0].scores, pair[1].scores)
                if apart is not None:
                    cells[f"{claim.told} {bench}"] = claim, BENCHES[bench], apart, pair
    p_values = holm({key: apart.p_value for key, (_, _, apart, _) in cells.items()})
    return [
        Tested(
            claim,
            bench,
            apart,
            p_values[key],
            _word(claim, bench, apart, p_values[key], fair=not any(s.at_edge for s in pair)),
            (pair[0].percent_sam, pair[1].percent_sam),
        )
        for key, (claim, bench, apart, pair) in cells.items()
    ]


def _word(claim: RowClaim, bench: Bench, found: Difference, p_holm: float, fair: bool) -> Word:
    if not fair or found.n < FEWEST:
        return "no verdict"
    if claim.as_good and found.low >= -bench.margin:
        return "holds"
    if p_holm < 0.05:
        worse = found.mean < 0.0
        if claim.as_good:
            return "does not hold" if worse and found.high < -bench.margin else "cannot tell"
        return "does not hold" if worse else "holds"
    return "cannot tell"
