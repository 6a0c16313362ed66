"""Who called: a loss scaler that has its own idea of a step, or the user's own line."""

import sys
from typing import Any


def scaler_above() -> Any:
    """The enabled GradScaler whose ``step`` is calling us, or None."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    for _ in range(6):
        if frame.f_globals.get("__name__") == "torch.amp.grad_scaler":
            scaler = frame.f_locals.get("self")
            return scaler if scaler is not None and scaler.is_enabled() else None
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def frames_to_user() -> int:
    """How far up the stack the user's own line is, for a warning that points at it."""
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in ("aesam", "torch", "contextlib"):
            break
        frame, level = frame.f_back, level + 1
    return level
