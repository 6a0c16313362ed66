"""Which row to take at a cost: the one whose worst difference to tuned SAM is the smallest.

A row that is best on one bench may be the last on another, and the best of many on the test set is
partly luck. So only the few rows are asked that were fixed to be run on every bench, and what
counts of a row is the bench on which it does worst. Benches count alike: differences are in units
of their margins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aesam.evidence.benches import BENCHES
from aesam.evidence.contenders import BESIDE, FINALISTS
from aesam.evidence.frontier_page import SAM, differences
from aesam.evidence.standing import FEWEST, Difference, Standing

#: The most gradients per step, in batches: of plain training, a tenth, a fifth and a half more, and
#: of SAM. A share of SAM steps that comes out of the gradients is not to the digit what was meant.
COSTS = (1.0, 1.15, 1.25, 1.55, 2.0)


@dataclass(frozen=True)
class Candidate:
    """A row that is finished on all benches.

    Args:
        name: the row's.
        samples: gradient-samples per step where it costs most, in batches.
        apart: its difference to SAM by the bench's name; SAM's own is None.
        at_edge: the benches on which its best setting is at the edge of what was tried.
    """

    name: str
    samples: float
    apart: Mapping[str, Difference | None]
    at_edge: Sequence[str] = ()

    @property
    def worst_bench(self) -> str:
        """Where it is farthest below SAM."""
        return min(self.apart, key=self.margins_apart)

    @property
    def worst(self) -> float:
        """Its mean difference there, in margins."""
        return self.margins_apart(self.worst_bench)

    def margins_apart(self, bench: str) -> float:
        """Its mean difference to SAM on a bench, in units of the bench's margin."""
        found = self.apart[bench]
        return 0.0 if found is None else found.mean / BENCHES[bench].margin


def compared_on(found: Mapping[str, Sequence[Standing]]) -> list[str]:
    """The benches on which SAM is finished, with a radius inside what was tried."""
    return [
        bench
        for bench, standings in found.items()
        for sam in standings
        if sam.name == SAM and len(sam.scores) >= FEWEST and not sam.at_edge
    ]


def candidates(found: Mapping[str, Sequence[Standing]]) -> list[Candidate]:
    """Every finalist, and what stands beside them, that is finished on each of those benches."""
    benches = compared_on(found)
    by_name = {bench: {s.name: s for s in found[bench]} for bench in benches}
    apart = {bench: differences(found[bench]) for bench in benches}
    return [
        Candidate(
            name,
            max(by_name[bench][name].samples for bench in benches),
            {bench: apart[bench].get(name) for bench in benches},
            [bench for bench in benches if by_name[bench][name].at_edge],
        )
        for name in (*FINALISTS, *BESIDE)
        if benches and all(len(_scores(by_name[bench], name)) >= FEWEST for bench in benches)
    ]


def _scores(standings: Mapping[str, Standing], name: str) -> Mapping[int, float]:
    return standings[name].scores if name in standings else {}


def best_at(cost: float, among: Sequence[Candidate]) -> Candidate | None:
    """The one that does least badly where it does worst, at no more than this cost."""
    able = [each for each in among if each.samples <= cost and not each.at_edge]
    return max(able, key=lambda each: each.worst, default=None)
