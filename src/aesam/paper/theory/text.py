"""The tables for a terminal."""

from collections.abc import Sequence

from aesam.lab.show import table
from aesam.paper.theory.patterns import PATTERNS
from aesam.paper.theory.result import TheoryResult
from aesam.paper.theory.sides import BOUNDS, FULL_BATCH, MINI_BATCH, Sides

NOTHING = "–"


def text(result: TheoryResult) -> str:
    """All tables."""
    parts = [
        f"Both sides of the paper's bounds, preset {result.preset}",
        _titled("Problems", _problems(result)),
        _titled("Where each bound was claimed, and what was found", _summary(result.rows)),
    ]
    for bound in (FULL_BATCH, MINI_BATCH):
        rows = [row for row in result.rows if row.bound == bound]
        if rows:
            parts.append(_titled(f"{bound}: measured / bound", _ratios(rows)))
    parts += [
        _titled("Counter-example: 3 cos w, SAM on every step, σ = 0", _counter_example(result)),
        _titled("Lemmas: smallest relative slack", _lemmas(result)),
        _titled("Var ∇L(B) = E‖∇L(B)‖² − ‖∇L(D)‖²", _variances(result)),
    ]
    return "\n\n".join(parts) + "\n"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first to the left and the others to the right, a rule below.

    >>> print(aligned([["a", "n"], ["long", "10"]]))
    a      n
    --------
    long  10
    """
    head, *rows = table.aligned(lines, {0})
    return "\n".join((head.rstrip(), "-" * len(head), *(row.rstrip() for row in rows)))


def _titled(title: str, body: str) -> str:
    return f"{title}\n\n{body}"


def _problems(result: TheoryResult) -> str:
    lines = [["problem", "weights", "samples", "β of samples", "β of L", "σ²", "T ≥ (8β/3)⁴"]]
    for problem in result.problems:
        numbers = [problem[key] for key in ("weights", "samples", "beta", "full_beta", "variance")]
        lines.append(
            [str(problem["name"]), *(f"{n:.3g}" for n in numbers), f"{problem['least_steps']:.4g}"]
        )
    return aligned(lines)


def _summary(rows: Sequence[Sides]) -> str:
    lines = [["bound, problem", "T", "n", "claimed", "held", "tightest", "not claimed", "failed"]]
    for bound in BOUNDS:
        own = [row for row in rows if row.bound == bound]
        if own:
            lines.append([bound, *[""] * (len(lines[0]) - 1)])
        for problem in dict.fromkeys(row.problem for row in own):
            lines.append(_summary_line(f"  {problem}", [r for r in own if r.problem == problem]))
    note = (
        "tightest: the largest measured / bound where it is claimed. n: repetitions, with batches\n"
        "of their own; they share SS-SAM's draws, given which the pattern is a fixed one."
    )
    return f"{aligned(lines)}\n{note}"


def _summary_line(name: str, rows: Sequence[Sides]) -> list[str]:
    claimed = [row for row in rows if row.claimed]
    others = [row for row in rows if not row.claimed]
    ratios = [row.ratio for row in claimed if row.ratio is not None]
    return [
        name,
        _range([row.steps for row in rows]),
        _range([row.n for row in rows]),
        str(len(claimed)),
        str(sum(row.verdict == "holds" for row in claimed)),
        f"{max(ratios):.2g}" if ratios else NOTHING,
        str(len(others)),
        str(sum(not row.holds for row in others)),
    ]


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}…{high}"


def _ratios(rows: Sequence[Sides]) -> str:
    """A line for each problem and T, a column for each policy; marks for what is not claimed."""
    lines = [["problem, T", *(pattern.label for pattern in PATTERNS)]]
    for problem in dict.fromkeys(row.problem for row in rows):
        own = [row for row in rows if row.problem == problem]
        for steps in sorted({row.steps for row in own}):
            cells = {row.policy: _ratio(row) for row in own if row.steps == steps}
            shown = [cells.get(pattern.label, NOTHING) for pattern in PATTERNS]
            lines.append([f"{problem}, {steps}", *shown])
    note = "( ) its conditions do not hold; ! broken; < 0 the bound is negative"
    return f"{aligned(lines)}\n{note}"


def _ratio(row: Sides) -> str:
    shown = "< 0" if row.ratio is None else f"{row.ratio:{'.2g' if row.ratio < 0.95 else '.2f'}}"
    if row.verdict == "BROKEN":
        return f"!{shown}"
    return shown if row.claimed else f"({shown})"


def _counter_example(result: TheoryResult) -> str:
    lines = [["T", "ρβ", "L(w_0) − L(w_T)", "left", "right", "verdict"]]
    lines += [
        [
            str(row.steps),
            f"{row.rho * row.beta:.3g}",
            f"{row.decrease:.3g}",
            f"{row.left:.3g}",
            f"{row.right:.3g}",
            row.verdict,
        ]
        for row in result.counter_example
    ]
    return aligned(lines)


def _lemmas(result: TheoryResult) -> str:
    radii = list(dict.fromkeys(check.rho_beta for check in result.lemmas))
    lines = [["lemma, problem", "points", *(f"ρβ = {radius:g}" for radius in radii)]]
    for lemma, problem in dict.fromkeys((c.lemma, c.problem) for c in result.lemmas):
        own = [c for c in result.lemmas if (c.lemma, c.problem) == (lemma, problem)]
        many = f" ({own[0].functions} of them)" if own[0].functions > 1 else ""
        cells = [f"{c.smallest:.2g}{'' if c.holds else ' !'}" for c in own]
        lines.append([f"{lemma.partition(':')[0]}, {problem}{many}", str(own[0].points), *cells])
    return aligned(lines)


def _variances(result: TheoryResult) -> str:
    lines = [["problem", "b", "batches", "left", "right", "largest difference", "of σ²"]]
    lines += [
        [
            check.problem,
            str(check.batch),
            str(check.batches),
            f"{check.left:.4g}",
            f"{check.right:.4g}",
            f"{check.difference:.0e}",
            f"{check.share:.2g}",
        ]
        for check in result.variances
    ]
    return aligned(lines)
