"""Where metrics may go beside ``metrics.jsonl``."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from aesam.lab.errors import UsageError, unknown


def check_trackers(names: Iterable[str]) -> None:
    """Refuse trackers that Accelerate does not know or that are not installed."""
    known = [str(name) for name in LOGGER_TYPE_TO_CLASS]
    installed = [str(tracker) for tracker in get_available_trackers()]
    for name in names:
        if name not in known:
            raise unknown("tracker", name, known)
        if name not in installed:
            raise UsageError(f"the tracker {name} is not installed: pip install {name}")
