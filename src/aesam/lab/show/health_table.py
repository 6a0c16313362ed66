"""Whether the second gradients of each method did anything: what they saw, and a sentence."""

from collections.abc import Callable

from aesam import Health
from aesam.lab import second_gradients
from aesam.lab.show.comparison import Comparison, MethodRow
from aesam.lab.show.table import Line, Sheet
from aesam.lab.show.wording import NOTHING

VERDICT = "in words"
EXPLANATION = (
    "From the steps that took a second gradient: by how much the loss rises from w to w + ε (the "
    "median of an epoch's steps, then over the epochs), the cosine of both gradients, and the "
    "length of what is new in the second, ‖g_v‖/‖g‖ (means of those that were looked at). Time is "
    "the share of training that went into second passes, as the host sees it. A loss that hardly "
    "rises means that ρ is too small to change anything; one that falls, that the ascent descends."
)
COLUMNS: dict[str, Callable[[Health], str]] = {
    "loss at w + ε": lambda health: _number(health.rise, "{:+.3g} %", 100.0),
    "cosine": lambda health: _number(health.cosine, "{:.3f}"),
    "‖g_v‖/‖g‖": lambda health: _number(health.bend, "{:.2f}"),
    "% SAM": lambda health: _number(health.share, "{:.1f}", 100.0),
    "time": lambda health: _number(health.time_share, "{:.0f} %", 100.0),
    VERDICT: str,
}


def health_of(row: MethodRow) -> Health | None:
    """What the second gradients of a row saw; None for runs without any, and of before."""
    return second_gradients.of_runs([run.summary for run in row.runs])


def health_sheet(comparison: Comparison) -> Sheet | None:
    """A line for each method of whose second gradients anything is known; None without one."""
    lines: list[Line] = []
    for row in comparison.rows:
        health = health_of(row)
        if health is not None:
            cells = (row.label, *(shown(health) for shown in COLUMNS.values()))
            lines.append(Line(cells, method=row.method))
    if not lines:
        return None
    return Sheet(
        f"Second gradients on {comparison.title}",
        ("method", *COLUMNS),
        (tuple(lines),),
        EXPLANATION,
        words=(VERDICT,),
    )


def _number(value: float | None, shown: str, times: float = 1.0) -> str:
    return NOTHING if value is None else shown.format(times * value).replace("-", "−")
