"""The scores of a search in a file, so that it goes on after a kill."""

import json
import math
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from aesam.searching.widening import Try

VERSION = 1


class KeptScores:
    """What has been scored, in memory and, where there is a ``path``, in a file.

    The file is whole at every moment: it is written beside, made durable, then renamed.

    Args:
        path: the file, or None for keeping nothing.
        of: what is trained; the file of another training is refused.
        settings: the names of the settings, in order; others are refused.
        mode: which scores are the better ones; another one is refused.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, *, of: str, settings: list[str], mode: str
    ) -> None:
        self._path = None if path is None else Path(path)
        self._is_of = {"function": of, "settings": settings, "mode": mode}
        self.scores: dict[Try, float | None] = {}
        if self._path is not None and self._path.exists():
            self.scores = self._read(self._path)
        self._write()  # a place that cannot be written to is better known before the first training

    def add(self, one: Try, score: float | None) -> None:
        """Keep a score; None for a training that diverged."""
        self.scores[one] = score
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        tried = [
            {"settings": one.settings, "seed": one.seed, "score": score}
            for one, score in self.scores.items()
        ]
        content = {"aesam_search": VERSION, **self._is_of, "tried": tried}
        _write_whole(self._path, json.dumps(content, indent=1) + "\n")

    def _read(self, path: Path) -> dict[Try, float | None]:
        try:
            content: Any = json.loads(path.read_bytes())
            version = content["aesam_search"]
            there = {name: content[name] for name in self._is_of}
            scores = dict(_tried(row, content["settings"]) for row in content["tried"])
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
            raise ValueError(
                f"keep: {path} is damaged, or was not written by aesam.search "
                f"({type(error).__name__}: {error}): name another file, or move it away"
            ) from error
        if version != VERSION:
            raise ValueError(
                f"keep: {path} was written by another version of aesam: name another file"
            )
        apart = [
            f"{name} is {ours!r} here and {there[name]!r} there"
            for name, ours in self._is_of.items()
            if ours != there[name]
        ]
        if apart:
            raise ValueError(
                f"keep: {path} belongs to another search: {'; '.join(apart)}. Name another file"
            )
        return scores


def _tried(row: Any, names: list[str]) -> tuple[Try, float | None]:
    """A row of the file, if all of it can be."""
    settings, seed, score = row["settings"], row["seed"], row["score"]
    numbers = [*settings.values(), *([] if score is None else [score])]
    if list(settings) != names or type(seed) is not int or not all(map(_is_number, numbers)):
        raise ValueError(f"{row!r:.200} is no score of {names}")
    return Try(tuple(cast("dict[str, float]", settings).items()), seed), score


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(cast(float, value))


def _write_whole(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(".unfinished", f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
