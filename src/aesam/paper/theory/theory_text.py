"""What came out, in words: tables for a terminal, and sentences that are made from the numbers."""

import math
from collections.abc import Sequence

from aesam.lab.show import table
from aesam.paper.theory.descent import PATTERNS
from aesam.paper.theory.experiment import TheoryResult
from aesam.paper.theory.lemmas import FULL, LemmaCheck
from aesam.paper.theory.sides import BOUNDS, FULL_BATCH, MINI_BATCH, Sides

NOTHING = "–"
PRINTED = 16  # T of the counter-example that is spelled out


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


# Sentences ----------------------------------------------------------------------------------------


def conclusions(result: TheoryResult) -> list[str]:
    """One sentence or two for each thing that was looked at; what is broken comes first."""
    found = [_of_broken(result)] if result.broken else []
    for bound in BOUNDS:
        rows = [row for row in result.rows if row.bound == bound]
        if rows:
            found.append(_of_bound(bound, rows))
    return [
        *found,
        *_of_zeta(result.rows),
        *_of_adaptive(result.rows),
        *_of_counter_example(result.counter_example),
        *_of_lemmas(result.lemmas),
        *_of_variance(result),
    ]


def _of_broken(result: TheoryResult) -> str:
    rows = [item for item in result.broken if isinstance(item, Sides)]
    named = [f"{r.bound} on {r.problem}, T = {r.steps}, {r.policy}" for r in rows]
    named += [f"{item.problem}" for item in result.broken if not isinstance(item, Sides)]
    return f"BROKEN where it is claimed: {'; '.join(named)}."


def _of_bound(bound: str, rows: Sequence[Sides]) -> str:
    claimed = [row for row in rows if row.claimed]
    others = [row for row in rows if not row.claimed]
    if not claimed:
        return f"{_capital(bound)}: claimed nowhere."
    held = sum(row.verdict == "holds" for row in claimed)
    tightest = max(claimed, key=lambda row: row.ratio if row.ratio is not None else math.inf)
    text = f"{_capital(bound)}: claimed in {len(claimed)} cases, held in {held}."
    text += _tightest(tightest)
    if others:
        failed = sum(not row.holds for row in others)
        text += (
            f" Its conditions do not hold in {len(others)} cases; it failed in {failed} of them."
        )
    return text


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _tightest(row: Sides) -> str:
    if row.ratio is None or row.ratio == 0.0:
        return ""
    where = f"on {row.problem}, T = {row.steps}, {row.policy}"
    return f" At its tightest the bound is {times(1 / row.ratio)} what was measured ({where})."


def _of_zeta(rows: Sequence[Sides]) -> list[str]:
    """What the factor 7 − 6ζ does: the bound of SAM against that of ERM, and the measured."""
    claimed = [row for row in rows if row.bound == MINI_BATCH and row.claimed]
    erm = {(row.problem, row.steps): row for row in claimed if row.method == "erm"}
    sam = {(row.problem, row.steps): row for row in claimed if row.method == "sam"}
    pairs = [(erm[key], sam[key]) for key in erm.keys() & sam.keys()]
    bounds = [two.right / one.right for one, two in pairs if one.right > 0]
    lefts = [two.left / one.left for one, two in pairs if one.left > 0]
    if not bounds or not lefts:
        return []
    sentence = (
        f"From ζ = 0 to ζ = 1 the bound of the {MINI_BATCH} grows {spelled(bounds)} (7 − 6ζ falls "
        f"from 7 to 1, and the noise weighs more); what was measured becomes {spelled(lefts)} as "
        "large. The growth with ζ is the bound's, not SAM's."
    )
    return [sentence]


def _of_adaptive(rows: Sequence[Sides]) -> list[str]:
    adaptive = [r for r in rows if r.method == "ae-sam" and r.bound == MINI_BATCH]
    enough = [r for r in adaptive if r.gap is not None and not r.gap.startswith("T =")]
    if not enough:
        return []
    held = sum(row.holds for row in enough)
    sentence = (
        f"AE-SAM decides by the batch, which the proof of the {MINI_BATCH} does not cover: nothing "
        f"is claimed. With T large enough it was below the bound in {held} of {len(enough)} cases."
    )
    return [sentence]


def _of_counter_example(rows: Sequence[Sides]) -> list[str]:
    failing = [row for row in rows if not row.holds]
    if not failing:
        return []
    shown = next((row for row in failing if row.steps == PRINTED), failing[0])
    rises = "rises" if shown.decrease < 0 else "falls"
    sentence = (
        f"As printed the {MINI_BATCH} fails for few steps: on L = {shown.problem} with SAM on "
        f"every step and σ = 0, T = {shown.steps} gives {shown.left:.2f} on the left and "
        f"{minus(shown.right)} on the right. There ρβ = {shown.rho * shown.beta:.2g}: the gradient "
        f"at w + ρ∇L points the other way, SAM climbs, and the loss {rises} by "
        f"{abs(shown.decrease):.2f}. The printed proof loses the sign of 2ρβ where it collects "
        "the terms with ξ; with the right one it needs ρβ ≤ 3/8, that is T ≥ (8β/3)⁴. Measured, it "
        f"fails for T = {', '.join(str(r.steps) for r in failing)} and holds for "
        f"T = {', '.join(str(r.steps) for r in rows if r.holds)}."
    )
    return [sentence]


def _of_lemmas(checks: Sequence[LemmaCheck]) -> list[str]:
    found: list[str] = []
    for kind in dict.fromkeys(check.lemma for check in checks):
        own = [check for check in checks if check.lemma == kind]
        least = min(own, key=lambda check: check.smallest)
        name = "full-batch" if kind == FULL else "mini-batch"
        word = "holds at all" if all(check.holds for check in own) else "FAILS at some of"
        found.append(
            f"The {name} lemma {word} {sum(c.points for c in own)} points; the smallest "
            f"relative slack is {least.smallest:.2g} ({least.problem}, ρβ = {least.rho_beta:g})."
        )
    return found


def _of_variance(result: TheoryResult) -> list[str]:
    if not result.variances:
        return []
    worst = max(check.difference for check in result.variances)
    share = max(check.share for check in result.variances)
    sentence = (
        f"Var ∇L(B) = E‖∇L(B)‖² − ‖∇L(D)‖² holds to {worst:.1g}, with the library's ‖g‖² over all "
        f"batches; the largest variance that was met is {share:.3g} of its problem's σ²."
    )
    return [sentence]


def minus(number: float, digits: int = 1) -> str:
    """A number with the sign that readers know.

    >>> minus(-5.27)
    '−5.3'
    """
    return f"{number:.{digits}f}".replace("-", "−")


def times(factor: float) -> str:
    """A factor in words.

    >>> times(1.234), times(250.0), times(3e7)
    ('1.2 times', '250 times', '3e+07 times')
    """
    return f"{factor:.1f} times" if factor < 10 else f"{factor:.3g} times"


def spelled(factors: Sequence[float]) -> str:
    """A range of factors.

    >>> spelled([7.2, 11.0]), spelled([2.0])
    ('7.2 to 11 times', '2 times')
    """
    low, high = f"{min(factors):.3g}", f"{max(factors):.3g}"
    return f"{low} times" if low == high else f"{low} to {high} times"
