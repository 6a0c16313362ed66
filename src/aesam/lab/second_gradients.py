"""What second gradients saw, in plain numbers: of an epoch, of a run, and of a method's runs.

``percent_rise`` of the loss at ``w + ε``, ``cosine`` of both gradients, ``bend`` (‖g_v‖/‖g‖) and
``percent_time`` (the share of training time that went into second passes) have the names that
:func:`aesam.metrics` gives them; ``seconds`` is what a second pass took. What nobody saw is left
out.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, cast

from aesam import Health, StepRecord
from aesam.lab.files import is_number

#: What is kept of each step of an epoch that saw it.
SERIES = ("rise", "cosine", "bend")

#: The largest that a step can have seen: beyond all use, and such that sums can be held.
LARGEST = 1e90

#: From where to where the numbers of an epoch, a run or its summary go.
_BOUNDS = {
    "percent_rise": (-100.0 * LARGEST, 100.0 * LARGEST),
    "cosine": (-1.0, 1.0),
    "bend": (0.0, LARGEST),
    "percent_time": (0.0, 100.0),
    "seconds": (0.0, LARGEST),
}


def nothing_seen() -> dict[str, list[float]]:
    """At the beginning of an epoch."""
    return {name: [] for name in SERIES}


def note(seen: Mapping[str, list[float]], record: StepRecord) -> None:
    """One more step; a loss that was lost has no rise."""
    for name in SERIES:
        value: float | None = getattr(record, name)
        if value is not None and abs(value) <= LARGEST:
            seen[name].append(value)


def of_epoch(seen: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """For a line of metrics: the median rise, which single losses near 0 do not move, and means.

    >>> of_epoch({"rise": [0.1, 0.2, 9.0], "cosine": [0.5], "bend": []})
    {'percent_rise': 20.0, 'cosine': 0.5}
    """
    numbers = {"percent_rise": 100.0 * median(seen["rise"])} if seen["rise"] else {}
    return numbers | {name: fmean(seen[name]) for name in SERIES[1:] if seen[name]}


def of_run(lines: Iterable[Mapping[str, Any]], count: int, seconds: float) -> dict[str, Any] | None:
    """For a summary: the same over the epochs, and the verdict; None without a second gradient.

    Args:
        lines: of metrics, one for each epoch.
        count: of all second gradients.
        seconds: that they took together.
    """
    if not count:
        return None
    every = list(lines)
    found: dict[str, Any] = {}
    for name, middle in (("percent_rise", median), ("cosine", fmean), ("bend", fmean)):
        values = [line[name] for line in every if name in line]
        if values:
            found[name] = middle(values)
    if "percent_time" in every[-1]:
        found["percent_time"] = every[-1]["percent_time"]
    found["seconds"] = seconds / count
    return {**found, "verdict": _health(found, 0.0).verdict}


def of_runs(summaries: Sequence[Mapping[str, Any]]) -> Health | None:
    """A method's: the means over its runs; None where none of them has any."""
    known = [summary["health"] for summary in summaries if summary.get("health")]
    if not known:
        return None
    values = {name: [own[name] for own in known if own.get(name) is not None] for name in _BOUNDS}
    means = {name: fmean(found) for name, found in values.items() if found}
    return _health(means, fmean(float(summary["percent_sam"]) for summary in summaries))


def _health(numbers: Mapping[str, float], percent_sam: float) -> Health:
    rise, time = numbers.get("percent_rise"), numbers.get("percent_time")
    return Health(
        rise=None if rise is None else rise / 100.0,
        cosine=numbers.get("cosine"),
        bend=numbers.get("bend"),
        share=percent_sam / 100.0,
        seconds=numbers.get("seconds"),
        time_share=None if time is None else time / 100.0,
    )


# What files may hold -----------------------------------------------------------------------------


def can_be(name: str, value: object) -> bool | None:
    """Whether a number of this name may have this value; None where the name is none of these."""
    if name not in _BOUNDS:
        return None
    least, most = _BOUNDS[name]
    return is_number(value) and least <= cast(float, value) <= most


def check_seen(seen: object) -> None:
    """Refuse what :func:`note` cannot have kept."""
    kept = cast("dict[str, Any]", seen) if isinstance(seen, dict) else {}
    if kept.keys() != {*SERIES} or not all(isinstance(each, list) for each in kept.values()):
        raise TypeError(f"progress: seen must have lists of {', '.join(SERIES)}")
    every = [value for each in kept.values() for value in each]
    if not all(is_number(value) and abs(value) <= LARGEST for value in every):
        raise TypeError("progress: seen holds what is no number")


def fault(health: object) -> str | None:
    """What makes this no ``health`` of a summary; None where it can be, and where there is none."""
    if health is None:
        return None
    if not isinstance(health, dict):
        return "it has no numbers by name as 'health'"
    found = cast("dict[str, Any]", health)
    for name in _BOUNDS:
        if found.get(name) is not None and not can_be(name, found[name]):
            return f"it has no number as {name!r} of 'health' that can be: {found[name]!r:.80}"
    return None
