"""Whether one cheap rule is as good as tuned SAM on most benches, from the published books.

To reach: one rule with a radius from the search whose paired 95 % interval of the difference to
tuned SAM has its lower end at the bench's margin or above, at no more than 1.15 gradient-samples
per step, on three of four benches.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aesam.evidence import results
from aesam.evidence.benches import BENCHES, Bench
from aesam.evidence.contenders import ALL, CONTENDERS, FINALISTS
from aesam.evidence.frontier_page import SAM, differences, label_of_row
from aesam.evidence.standing import FEWEST, Standing

FOUR = ("digits-40", "cifar-clean", "cifar-40", "text")
NEEDED, MOST_SAMPLES = 3, 1.15


def of_books(folder: Path) -> dict[str, Any]:
    """The verdict from the files of the four benches, as plain values with sentences."""
    return of_standings({name: results.published(BENCHES[name], folder) for name in FOUR})


def of_standings(found: Mapping[str, Sequence[Standing]]) -> dict[str, Any]:
    """The verdict from every bench's standings, by the bench's name."""
    tested = {name: _tested(BENCHES[name], rows) for name, rows in found.items()}
    names = [c.name for c in ALL if any(c.name in rows for rows in tested.values())]
    rules = {
        name: {bench: rows[name] for bench, rows in tested.items() if name in rows}
        for name in names
    }
    passed = {name: _passed(benches) for name, benches in rules.items()}
    winners = [name for name, benches in passed.items() if len(benches) >= NEEDED]
    return {
        "command": "aesam frontier --no-train",
        "target": {
            "benches": list(FOUR),
            "needed": NEEDED,
            "most gradient-samples per step": MOST_SAMPLES,
            "margins": {name: BENCHES[name].margin for name in FOUR},
        },
        "reached": bool(winners),
        "by": winners,
        "rules": rules,
        "sentences": _sentences(tested, passed, winners),
    }


def _tested(bench: Bench, standings: Sequence[Standing]) -> dict[str, dict[str, Any]]:
    """Every cheap rule with a radius of its own: whether it is as good as SAM, or why not."""
    by_name = {s.name: s for s in standings}
    sam, apart = by_name.get(SAM), differences(standings)
    found: dict[str, dict[str, Any]] = {}
    for name, each in apart.items():
        row = by_name[name]
        if "rho" not in row.settings or row.samples > MOST_SAMPLES or sam is None:
            continue
        why = None
        if each.n < FEWEST:
            why = f"{each.n} fresh seeds are fewer than {FEWEST}"
        elif row.at_edge or sam.at_edge:
            edge = SAM if sam.at_edge else name
            why = f"the best setting of {edge} is at the edge of what was tried"
        found[name] = {
            "samples": row.samples,
            "difference": each.mean,
            "low": each.low,
            "high": each.high,
            "n": each.n,
            "diverged": row.diverged,
            "as good": None if why else each.low >= -bench.margin,
            "why no verdict": why,
        }
    return found


def _passed(benches: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [name for name, each in benches.items() if each["as good"]]


def _sentences(
    tested: Mapping[str, Mapping[str, Any]],
    passed: Mapping[str, Sequence[str]],
    winners: Sequence[str],
) -> list[str]:
    aim = (
        f"One rule as good as tuned SAM at ≤ {MOST_SAMPLES:g} gradient-samples per step on "
        f"{NEEDED} of {len(FOUR)} benches"
    )
    missing = [name for name in FOUR if not tested.get(name)]
    if winners:
        how = "; ".join(f"{_label(name)} ({', '.join(passed[name])})" for name in winners)
        told = [f"{aim}: reached, by {how}."]
    elif missing:
        told = [f"{aim}: {_of_unfinished(tested, missing)}."]
    else:
        best = max(passed, key=lambda name: len(passed[name]), default=None)
        most = len(passed[best]) if best else 0
        told = [f"{aim}: not reached; no rule is on more than {most}."]
    return told + [_of_bench(name, rows) for name, rows in tested.items() if rows]


def _of_unfinished(tested: Mapping[str, Mapping[str, Any]], missing: Sequence[str]) -> str:
    """Whether one of those that are run everywhere can still reach it.

    A bench on which there is no verdict yet is not missed.
    """
    judged = {
        name: {bench: rows[name]["as good"] for bench, rows in tested.items() if name in rows}
        for name in FINALISTS
    }
    failed = {
        name: [bench for bench, passes in benches.items() if passes is False]
        for name, benches in judged.items()
        if benches
    }
    out = [name for name, benches in failed.items() if len(benches) > len(FOUR) - NEEDED]
    if not failed or len(out) < len(failed):
        return f"open, since no such rule is finished on {', '.join(missing)}"
    benches = ", ".join(dict.fromkeys(bench for name in out for bench in failed[name]))
    return (
        f"not reached by any rule that is run on all of them ({', '.join(map(_label, out))}), "
        f"whatever {' and '.join(missing)} will say: {benches} are too many to miss"
    )


def _of_bench(name: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """What each rule's interval is there, the best first."""
    bench = BENCHES[name]
    places = 2 if bench.measure == "accuracy" else 3
    ordered = sorted(rows, key=lambda row: -rows[row]["low"])
    shown = [
        f"{_label(row)} "
        + f"{rows[row]['low']:+.{places}f}".replace("-", "−")
        + (
            " (no verdict: " + rows[row]["why no verdict"] + ")"
            if rows[row]["as good"] is None
            else ""
        )
        for row in ordered
    ]
    return (
        f"{bench.title}: lower ends of the difference to SAM, of which −{bench.margin:g} or above "
        f"counts: {', '.join(shown)}."
    )


def _label(row: str) -> str:
    return label_of_row(CONTENDERS[row])
