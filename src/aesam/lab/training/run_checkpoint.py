"""Checkpoints: everything that going on needs, in one file that executes nothing when read."""

import random
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from aesam.lab import config, files
from aesam.lab.config import Run
from aesam.lab.errors import UsageError
from aesam.lab.training.sealed import Unsound, opened, sealed

FORMAT = 1
_KINDS: dict[str, type | tuple[type, ...]] = {
    "config": dict,
    "model": dict,
    "optimizer": (dict, type(None)),
    "scheduler": dict,
    "scaler": (dict, type(None)),
    "processes": list,
    "progress": dict,
}
#: Only there for methods with a companion: its state, and after the last epoch what was evaluated.
_MAY_LACK: dict[str, type | tuple[type, ...]] = {
    "companion": dict,
    "evaluated": (dict, type(None)),
}


def save(path: Path, content: dict[str, Any]) -> None:
    """Write atomically; the old checkpoint stays until the new one is whole."""
    files.write_bytes(path, sealed({"format": FORMAT, **content}), make_folder=False)


def load(path: Path) -> dict[str, Any]:
    """Read what :func:`save` wrote, or say that the file is damaged."""
    try:
        content = opened(files.read_bytes(path))
    except Unsound as error:
        raise damaged(path, str(error)) from error
    if not isinstance(content, dict):
        raise damaged(path, "it is not a checkpoint of a run")
    found = cast(dict[str, Any], content)
    _check_format(path, found.get("format"))
    missing = _KINDS.keys() - found.keys()
    if missing:
        raise damaged(path, f"it lacks {', '.join(sorted(missing))}")
    for name, kind in (_KINDS | _MAY_LACK).items():
        if name in found and not isinstance(found[name], kind):
            raise damaged(path, f"{name} cannot be of type {type(found[name]).__name__}")
    return found


def trained_weights(content: dict[str, Any]) -> dict[str, Any]:
    """The state dict of the model that a finished run was judged by."""
    evaluated = content.get("evaluated")
    return content["model"] if evaluated is None else evaluated


def saved_run(path: Path, content: dict[str, Any]) -> Run:
    """The run that a checkpoint is of."""
    try:
        return config.from_dict(content["config"])
    except UsageError as error:
        raise UsageError(f"the checkpoint {path} was left as it is: {error}") from error
    except (KeyError, TypeError) as error:
        raise damaged(path, f"its config: {error}") from error


@contextmanager
def taken_from(path: Path) -> Generator[None]:
    """While the content is put in its place, what does not fit says that it does not."""
    try:
        with warnings.catch_warnings():
            # The run is the same, so the optimizer of the checkpoint has its settings.
            warnings.filterwarnings("error", ".*was saved with")
            yield
    except (UsageError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever a state of another shape makes torch and others raise
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def damaged(path: Path, why: str) -> UsageError:
    return UsageError(
        f"the checkpoint {path} is damaged and was left as it is ({why}): move it away to start "
        "this run again, or put a good copy in its place"
    )


def _check_format(path: Path, found: object) -> None:
    if not isinstance(found, int):
        raise damaged(path, "it is not a checkpoint of a run")
    if found > FORMAT:
        raise UsageError(
            f"the checkpoint {path} was left as it is: a newer version of aesam made it (format "
            f"{found}, this one knows {FORMAT}). Update aesam (pip install --upgrade aesam)"
        )
    if found < FORMAT:
        raise damaged(path, "it is not a checkpoint of a run")


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
