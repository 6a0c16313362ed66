"""Checkpoints: everything that going on needs, in one file that executes nothing when read."""

import io
import pickle
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from aesam.lab import files
from aesam.lab.errors import UsageError

FORMAT = 1
_KEYS = {"config", "model", "optimizer", "scheduler", "scaler", "processes", "progress"}


def save(path: Path, content: dict[str, Any]) -> None:
    """Write atomically; the old checkpoint stays until the new one is whole."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    files.write_bytes(path, buffer.getvalue())


def load(path: Path) -> dict[str, Any]:
    """Read what :func:`save` wrote, or say that the file is damaged."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise _damaged(path, type(error).__name__) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise _damaged(path, "it is not a checkpoint of this version")
    missing = _KEYS - content.keys()  # pyright: ignore[reportUnknownVariableType]
    if missing:
        raise _damaged(path, f"it lacks {', '.join(sorted(missing))}")
    return content  # pyright: ignore[reportUnknownVariableType]


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(
        f"the checkpoint {path} is damaged and was left as it is ({why}): move it away to start "
        "this run again, or put a good copy in its place"
    )


def random_state() -> dict[str, Any]:
    """The state of every global generator, in types that ``weights_only`` reads."""
    kind, keys, *rest = cast(tuple[Any, ...], np.random.get_state())
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [str(kind), torch.tensor(keys.astype(np.int64)), *rest],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(_tuples(state["python"]))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value  # pyright: ignore
