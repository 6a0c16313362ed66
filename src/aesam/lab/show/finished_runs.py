"""Finished runs, read from their folders and checked before anything is computed from them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from aesam.lab import files, summaries
from aesam.lab.errors import UsageError
from aesam.lab.files import is_number

JsonObject = dict[str, Any]

SECTIONS = ("data", "model", "method", "training")
LARGEST_EPOCH = 2**31


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

    @property
    def diverged(self) -> bool:
        return summaries.is_diverged(self.summary)

    @property
    def skipped_steps(self) -> int:
        return summaries.skipped_steps(self.summary)


def read_runs(folders: Iterable[Path]) -> list[FinishedRun]:
    """All finished runs (those with a ``summary.json``) in the folders and anywhere below them.

    A run that is found twice, because one folder lies inside another, is read once.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        with files.told_of(folder):
            there = folder.is_dir()
            ended = sorted(folder.rglob("summary.json"))
        if not there:
            raise UsageError(f"there is no folder {str(folder)!r} to read runs from")
        if not ended:
            raise UsageError(
                f"no finished run in {str(folder)!r}: a finished run's folder has a summary.json"
            )
        for summary in ended:
            found.setdefault(summary.parent.resolve(), summary.parent)
    return [_read_run(folder) for folder in found.values()]


def _read_run(folder: Path) -> FinishedRun:
    config = _checked_config(folder / "config.json")
    summary = _checked_summary(folder / "summary.json")
    own = {"method": config["method"]["name"], "seed": config["seed"]}
    for name, value in own.items():
        if summary.get(name, value) != value:
            raise UsageError(
                f"the summary.json in {str(folder)!r} is of another run than its config.json: "
                f"{name} is {summary[name]!r:.80} and {value!r}"
            )
    return FinishedRun(folder, config, _read_lines(folder / "metrics.jsonl"), summary)


def _checked_config(path: Path) -> JsonObject:
    config = _parse(_bytes(path), str(path))
    for section in SECTIONS:
        if not isinstance(config.get(section), dict):
            raise UsageError(f"{str(path)!r} has no settings for {section!r}: is it of a run?")
    if not isinstance(config["method"].get("name"), str):
        raise UsageError(f"{str(path)!r} does not name its method")
    if not is_number(config.get("seed")) or not isinstance(config["seed"], int):
        raise UsageError(f"{str(path)!r} has no whole number as seed: {config.get('seed')!r}")
    return config


def _checked_summary(path: Path) -> JsonObject:
    summary = _parse(_bytes(path), str(path))
    wrong = summaries.fault(summary)
    if wrong is not None:
        raise UsageError(
            f"{str(path)!r} is damaged: {wrong}. Move its folder away to report the others, or run "
            "it again"
        )
    return summary


def _read_lines(path: Path) -> list[JsonObject]:
    lines = [line for line in _bytes(path).splitlines() if line.strip()]
    epochs = [_parse(line, f"{path}, line {i}") for i, line in enumerate(lines, 1)]
    last = 0.0
    for number, epoch in enumerate(epochs, 1):
        where = f"'{path}, line {number}'"
        if not is_number(epoch.get("epoch")) or not 0 <= epoch["epoch"] <= LARGEST_EPOCH:
            raise UsageError(f"{where} does not say its epoch")
        if not last < epoch["epoch"]:
            raise UsageError(f"{where} is of epoch {epoch['epoch']:g}, after {last:g}")
        last = epoch["epoch"]
        if not _is_trace(epoch.get("trace")):
            raise UsageError(f"{where} has a trace of unequal or missing lists")
    return epochs


def _is_trace(trace: object) -> bool:
    """Whether this is nothing, or lists of one length with numbers, switches or nothing."""
    if trace is None:
        return True
    if not isinstance(trace, dict):
        return False
    series = list(cast("JsonObject", trace).values())
    if not all(isinstance(each, list) for each in series) or len({len(s) for s in series}) > 1:
        return False
    return all(v is None or isinstance(v, bool | int | float) for each in series for v in each)


def _bytes(path: Path) -> bytes:
    try:
        return files.read_bytes(path)
    except FileNotFoundError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from error


def _parse(text: bytes, where: str) -> JsonObject:
    try:
        value = files.parse_json(text)
    except ValueError as error:
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
