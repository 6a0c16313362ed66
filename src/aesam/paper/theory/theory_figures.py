# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""The figures: both sides over T, their ratio over ζ, the counter-example and the lemmas."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from aesam.lab.lab_methods import colour_of, marker_of
from aesam.lab.show.canvas import INK, Drawing, draw, legend_below
from aesam.paper.theory.bounds import least_steps
from aesam.paper.theory.descent import ADAPTIVE, PATTERNS, SHOWN_OVER_STEPS
from aesam.paper.theory.experiment import TheoryResult
from aesam.paper.theory.lemmas import FULL, LemmaCheck
from aesam.paper.theory.sides import FULL_BATCH, MINI_BATCH, Sides
from aesam.paper.theory.theory_text import PRINTED, minus

STEPS = "number of steps T"
SHARE = "share ζ of steps that use SAM"
LEFT = {FULL_BATCH: "smallest ‖∇L‖²", MINI_BATCH: "smallest E‖∇L‖²"}
DASHED = (0, (4, 1.5))
LINES = ("-", DASHED, (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))  # one for each problem
GREY = "#767676"
SHADE = "#f0f0f0"
NARROW = 100.0  # an axis that spans less has ticks between the powers of ten
MARK_SIZES = (11.0, 9.0, 7.0, 5.0)  # marks of policies in the same place stay visible

CAPTIONS = {
    "steps": "The measured side must stay below the bound of its own colour.",
    "ratio": "Measured side over bound; a bound that is claimed holds below 1.",
    "counter": "The theorem as printed asks the measured side to be below the bound; for few "
    "steps it is above it, and the bound is negative.",
    "lemmas": "The smallest of left − right over all points tried, relative to the size of the "
    "right side's terms: 0 is tight, below 0 the lemma would be broken.",
}


def figures(result: TheoryResult) -> list[Drawing]:
    """All of them; a figure without data is left out."""
    found: list[Drawing] = []
    for bound, short in ((FULL_BATCH, "full-batch"), (MINI_BATCH, "mini-batch")):
        rows = [row for row in result.rows if row.bound == bound]
        found += _of_bound(rows, bound, short) if rows else []
    if result.counter_example:
        name = "theory-counter-example"
        svg = counter_example(result.counter_example, name)
        found.append(Drawing(name, "Where the printed theorem fails", CAPTIONS["counter"], svg))
    if result.lemmas:
        svg = lemma_slack(result.lemmas, "theory-lemmas")
        found.append(Drawing("theory-lemmas", "Slack of the lemmas", CAPTIONS["lemmas"], svg))
    return found


def _of_bound(rows: Sequence[Sides], bound: str, short: str) -> list[Drawing]:
    """Both sides over T on every problem, and their ratio over ζ."""
    title, found = bound.capitalize(), list[Drawing]()
    for problem in dict.fromkeys(row.problem for row in rows):
        name = f"theory-{short}-{problem.replace(' ', '-')}"
        svg = over_steps([row for row in rows if row.problem == problem], name)
        found.append(Drawing(name, f"{title}: {problem}", CAPTIONS["steps"], svg))
    name = f"theory-{short}-ratio"
    svg = ratio_over_zeta(rows, _telling_steps(rows, bound), name)
    found.append(Drawing(name, f"{title}: how tight", CAPTIONS["ratio"], svg))
    return found


def _telling_steps(rows: Sequence[Sides], bound: str) -> int:
    """T for the ratio: few steps on full batches, where later gradients vanish; else the most."""
    counts = {row.steps: 0 for row in rows}
    for row in rows:
        counts[row.steps] += 1
    common = [steps for steps, count in counts.items() if count == max(counts.values())]
    return min(common) if bound == FULL_BATCH else max(common)


def over_steps(rows: Sequence[Sides], name: str) -> str:
    """Measured value and bound over T for four policies, on one problem."""

    def paint(figure: Figure, axes: Axes) -> None:
        for pattern, size in zip(SHOWN_OVER_STEPS, MARK_SIZES, strict=True):
            own = sorted((r for r in rows if r.policy == pattern.label), key=lambda r: r.steps)
            if own:
                _paint_sides(axes, own, size)
        _set_log_steps(axes, rows)
        _set_log_values(axes)
        if rows[0].bound != FULL_BATCH:
            _shade_unclaimed(axes, rows)
        axes.plot([], [], color=GREY, linestyle=DASHED, label="bound")
        axes.set_title(f"{rows[0].problem}, β = {rows[0].beta:.3g}", fontsize=12.5)
        axes.set_xlabel(STEPS)
        axes.set_ylabel(LEFT[rows[0].bound])
        legend_below(figure, axes, 2)

    return draw(name, paint)


def _paint_sides(axes: Axes, rows: Sequence[Sides], size: float) -> None:
    steps, colour = [row.steps for row in rows], colour_of(rows[0].method)
    axes.plot(
        steps,
        [row.left for row in rows],
        color=colour,
        marker=marker_of(rows[0].method),
        markersize=size,
        markeredgecolor="white",
        markeredgewidth=0.4,
        label=f"{rows[0].policy}, measured",
    )
    axes.plot(steps, [row.right for row in rows], color=colour, linestyle=DASHED)


def _set_log_steps(axes: Axes, rows: Sequence[Sides]) -> None:
    """A logarithmic axis with ticks at the T that were computed, thinned so that they fit."""
    axes.set_xscale("log")
    steps = sorted({row.steps for row in rows})
    every = -(-len(steps) // 7)
    axes.set_xticks(steps[::every], labels=[str(t) for t in steps[::every]])
    axes.xaxis.set_minor_locator(NullLocator())


def _set_log_values(axes: Axes) -> None:
    axes.set_yscale("log", nonpositive="mask")
    low, high = axes.get_ylim()
    if high < NARROW * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _shade_unclaimed(axes: Axes, rows: Sequence[Sides]) -> None:
    """Grey where T is too small for the proof."""
    low, high = axes.get_xlim()
    needed = least_steps(rows[0].beta)
    if needed > min(row.steps for row in rows):
        edge = min(needed, high)
        label = f"T < (8β/3)⁴ = {needed:.4g}: not claimed"
        axes.axvspan(low, edge, color=SHADE, zorder=0, label=label)
        axes.set_xlim(low, high)


def ratio_over_zeta(rows: Sequence[Sides], steps: int, name: str) -> str:
    """Measured over bound against ζ: a line for each problem, a mark for each policy."""
    chosen = [row for row in rows if row.steps == steps and row.ratio]

    def paint(figure: Figure, axes: Axes) -> None:
        for place, problem in enumerate(dict.fromkeys(row.problem for row in chosen)):
            own = [r for r in chosen if r.problem == problem and r.method != ADAPTIVE.method]
            own.sort(key=lambda row: row.zeta)
            axes.plot(
                [row.zeta for row in own],
                [row.ratio or 0.0 for row in own],
                color=GREY,
                linewidth=1.3,
                linestyle=LINES[place % len(LINES)],
                label=problem,
            )
        _paint_policies(axes, chosen)
        axes.axhline(1.0, color=INK, linewidth=1.0)
        axes.annotate("tight", (0.5, 1.0), (0, 3), textcoords="offset points", ha="center")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.margins(y=0.12)
        axes.set_xlabel(SHARE)
        axes.set_ylabel(f"{LEFT[chosen[0].bound]} / bound, T = {steps}")
        legend_below(figure, axes, 2)

    return draw(name, paint)


def _paint_policies(axes: Axes, rows: Sequence[Sides]) -> None:
    """A mark of the policy's colour, hollow where the bound is not claimed."""
    labels = {"erm": "ERM", "ss-sam": "fixed or random share", "ae-sam": "AE-SAM", "sam": "SAM"}
    for method in dict.fromkeys(pattern.method for pattern in PATTERNS):
        own = [row for row in rows if row.method == method]
        look: dict[str, Any] = {
            "linestyle": "none",
            "marker": marker_of(method),
            "color": colour_of(method),
        }
        for claimed in (True, False):
            these = [row for row in own if row.claimed == claimed]
            axes.plot(
                [row.zeta for row in these],
                [row.ratio or 0.0 for row in these],
                markerfacecolor=colour_of(method) if claimed else "white",
                **look,
            )
        if own:
            axes.plot([], [], label=labels[method], **look)
    if not all(row.claimed for row in rows):
        axes.plot([], [], "o", color=GREY, markerfacecolor="white", label="hollow: not claimed")


def counter_example(rows: Sequence[Sides], name: str) -> str:
    """Both sides over T where the printed theorem fails; the right one is negative at first."""

    def paint(figure: Figure, axes: Axes) -> None:
        steps = [row.steps for row in rows]
        colour = colour_of("sam")
        axes.axhline(0.0, color=INK, linewidth=1.0)
        axes.plot(
            steps,
            [row.left for row in rows],
            color=colour,
            marker=marker_of("sam"),
            label="smallest ‖∇L‖², measured",
        )
        axes.plot(steps, [row.right for row in rows], color=colour, linestyle=DASHED, label="bound")
        failing = [row for row in rows if not row.holds]
        axes.plot(
            [row.steps for row in failing],
            [row.right for row in failing],
            linestyle="none",
            marker="X",
            markersize=9,
            color=colour_of("ae-sam"),
            label="bound below measured",
        )
        _set_log_steps(axes, rows)
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(-30, 60)
        _write_numbers(axes, [row for row in rows if row.steps == PRINTED])
        axes.set_yticks([-10, -1, 0, 1, 10], labels=["−10", "−1", "0", "1", "10"])
        _shade_unclaimed(axes, rows)
        axes.set_title(f"{rows[0].problem}, SAM on every step, σ = 0", fontsize=12.5)
        axes.set_xlabel(STEPS)
        axes.set_ylabel("smallest ‖∇L‖² and bound")
        legend_below(figure, axes, 2)

    return draw(name, paint)


def _write_numbers(axes: Axes, rows: Sequence[Sides]) -> None:
    for row in rows:
        for value, digits, above in ((row.left, 2, True), (row.right, 1, False)):
            axes.annotate(
                minus(value, digits),
                (row.steps, value),
                (0, 8) if above else (10, -4),
                textcoords="offset points",
                ha="center" if above else "left",
            )


def lemma_slack(checks: Sequence[LemmaCheck], name: str) -> str:
    """The smallest relative slack of both lemmas over ρβ; 0 is tight, below is broken."""

    def paint(figure: Figure, axes: Axes) -> None:
        for place, problem in enumerate(dict.fromkeys(check.problem for check in checks)):
            for kind in dict.fromkeys(check.lemma for check in checks):
                own = [c for c in checks if (c.problem, c.lemma) == (problem, kind)]
                batch = kind != FULL
                axes.plot(
                    [c.rho_beta for c in own],
                    [c.smallest for c in own],
                    color=colour_of("sam" if batch else "erm"),
                    marker=marker_of("sam" if batch else "erm"),
                    linestyle=LINES[place % len(LINES)],
                    label=f"{problem}, {'mini-batch' if batch else 'full batch'}",
                )
        axes.axhline(0.0, color=INK, linewidth=1.0)
        axes.set_xscale("log")
        radii = sorted({check.rho_beta for check in checks})
        axes.set_xticks(radii, labels=[f"{radius:g}" for radius in radii])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("radius ρβ")
        axes.set_ylabel("smallest relative slack")
        legend_below(figure, axes, 2)

    return draw(name, paint)
