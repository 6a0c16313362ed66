"""Finished runs, read from their folders and checked before anything is computed from them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from aesam.lab.errors import UsageError

JsonObject = dict[str, Any]

SECTIONS = ("data", "model", "method", "training")
NUMBERS = ("train_accuracy", "percent_sam", "steps", "gradients", "seconds")


@dataclass(frozen=True)
class FinishedRun:
    """One run as its folder tells it: what was asked for, each epoch, and how it ended."""

    folder: Path
    config: JsonObject
    metrics: list[JsonObject]
    summary: JsonObject

    @property
    def method(self) -> str:
        return str(self.config["method"]["name"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])


def read_runs(folders: Iterable[Path]) -> list[FinishedRun]:
    """All finished runs (those with a ``summary.json``) in the folders and anywhere below them.

    A run that is found twice, because one folder lies inside another, is read once.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"there is no folder {str(folder)!r} to read runs from")
        summaries = sorted(folder.rglob("summary.json"))
        if not summaries:
            raise UsageError(
                f"no finished run in {str(folder)!r}: a finished run's folder has a summary.json"
            )
        for summary in summaries:
            found.setdefault(summary.parent.resolve(), summary.parent)
    return [_read_run(folder) for folder in found.values()]


def _read_run(folder: Path) -> FinishedRun:
    return FinishedRun(
        folder,
        _checked_config(folder / "config.json"),
        _read_lines(folder / "metrics.jsonl"),
        _checked_summary(folder / "summary.json"),
    )


def _checked_config(path: Path) -> JsonObject:
    config = _parse(_text(path), str(path))
    for section in SECTIONS:
        if not isinstance(config.get(section), dict):
            raise UsageError(f"{str(path)!r} has no settings for {section!r}: is it of a run?")
    if not isinstance(config["method"].get("name"), str):
        raise UsageError(f"{str(path)!r} does not name its method")
    if not isinstance(config.get("seed"), int):
        raise UsageError(f"{str(path)!r} has no whole number as seed: {config.get('seed')!r}")
    return config


def _checked_summary(path: Path) -> JsonObject:
    summary = _parse(_text(path), str(path))
    for name in NUMBERS:
        if not is_number(summary.get(name)):
            raise UsageError(f"{str(path)!r} has no number as {name!r}: {summary.get(name)!r}")
    if not isinstance(summary.get("versions", {}), dict):
        raise UsageError(f"{str(path)!r} has no names and numbers as 'versions'")
    if not any(is_number(summary.get(f"{on}_accuracy")) for on in ("test", "validation")):
        raise UsageError(f"{str(path)!r} has neither a test_accuracy nor a validation_accuracy")
    return summary


def _read_lines(path: Path) -> list[JsonObject]:
    lines = _text(path).splitlines()
    epochs = [_parse(line, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    for number, epoch in enumerate(epochs, 1):
        if not is_number(epoch.get("epoch")):
            raise UsageError(f"'{path}, line {number}' does not say its epoch")
        if not _is_trace(epoch.get("trace")):
            raise UsageError(f"'{path}, line {number}' has a trace of unequal or missing lists")
    return epochs


def _is_trace(trace: object) -> bool:
    """Whether this is nothing, or lists of one length."""
    if trace is None:
        return True
    if not isinstance(trace, dict):
        return False
    series = list(cast("JsonObject", trace).values())
    return all(isinstance(each, list) for each in series) and len({len(s) for s in series}) <= 1


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from error


def _parse(text: str, where: str) -> JsonObject:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{where!r} is damaged, not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where!r} is damaged: expected an object, got {type(value).__name__}")
    return cast("JsonObject", value)


def versions_of(runs: Iterable[FinishedRun]) -> dict[str, str]:
    """The versions the runs were made with; several of one package are listed."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, number in run.summary.get("versions", {}).items():
            found.setdefault(name, set()).add(str(number))
    return {name: ", ".join(sorted(found[name])) for name in sorted(found)}


def is_number(value: object) -> bool:
    """Whether a value read from JSON is a number; JSON's true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
