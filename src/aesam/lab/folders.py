"""A run's folder: what it holds, and whether a run may begin or go on in it."""

import json
from pathlib import Path
from typing import Any

from aesam.lab import config, files
from aesam.lab.config import Run
from aesam.lab.errors import UsageError


def folder_of(run: Run, out: Path) -> Path:
    """Where a run goes under ``out``: by data set, model, noise, method, seed and settings."""
    where = f"{run.data.name}-{run.model.name}"
    what = f"{run.method.name}-seed{run.seed}-{config.config_hash(run)[:8]}"
    return out.resolve() / where / f"noise{run.data.noise:g}" / what


class RunFolder:
    """``config.json``, ``metrics.jsonl``, ``summary.json`` and ``checkpoint.pt`` of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.checkpoint = path / "checkpoint.pt"

    def is_finished(self, run: Run) -> bool:
        """Whether this very run was finished here."""
        return self.summary.exists() and self._saved_run() == _comparable(run)

    def admit(self, run: Run, resume: bool) -> bool:
        """Whether there is something to go on from; refuses to mix runs or lose one."""
        try:
            return self._admit(run, resume)
        except PermissionError as error:
            told = f"cannot read {error.filename} ({error.strerror}): choose another folder or let "
            raise files.DiskError(error.errno, told + "it be read") from error

    def _admit(self, run: Run, resume: bool) -> bool:
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file: choose a folder")
        if self.config.exists():
            there = _read_run(self.config)
            apart = config.differences(run, there)
            if apart:
                raise UsageError(
                    f"{self.path} holds another run: {'; '.join(apart)}. Choose another folder, or "
                    "the same settings to go on"
                )
        begun = self.checkpoint.exists() or self.summary.exists()
        if begun and not resume:
            raise UsageError(
                f"{self.path} holds this run already: add --resume to go on with it, or choose "
                "another folder"
            )
        return begun

    def begin(self, run: Run) -> None:
        self.summary.unlink(missing_ok=True)  # of a run that was taken back
        files.write_json(self.config, config.as_dict(run))

    def write_metrics(self, metrics: list[dict[str, Any]]) -> None:
        lines = [json.dumps(files.without_nan(line)) + "\n" for line in metrics]
        files.write_text(self.metrics, "".join(lines))

    def read_summary(self) -> dict[str, Any]:
        summary = _read(self.summary)
        missing = {"test_accuracy", "validation_accuracy", "percent_sam", "steps", "seconds"}
        if not missing <= summary.keys():
            raise UsageError(f"{self.summary} is damaged: move the folder away")
        return summary

    def _saved_run(self) -> dict[str, Any] | None:
        if not self.config.exists():
            return None
        return _comparable(_read_run(self.config))


def _comparable(run: Run) -> dict[str, Any]:
    return config.identity(run)


def _read_run(path: Path) -> Run:
    try:
        return config.from_dict(_read(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({error!r}): move the folder away") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return files.read_json(path)
    except ValueError as error:
        raise UsageError(f"{path} is damaged ({error}): move the folder away") from error
