"""A run's folder: what it holds, and whether a run may begin or go on in it."""

import errno
import json
from pathlib import Path
from typing import Any

from aesam.lab import config, files, summaries
from aesam.lab.config import Run
from aesam.lab.errors import DiskError, UsageError


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
        self._begun: Run | None = None

    def is_finished(self, run: Run) -> bool:
        """Whether this very run was finished here."""
        with files.told_of(self.path):
            there = self.summary.exists()
        return there and self._is_of(run)

    def admit(self, run: Run, resume: bool) -> bool:
        """Whether there is something to go on from; refuses to mix runs or lose one."""
        with files.told_of(self.path):
            return self._admit(run, resume)

    def _admit(self, run: Run, resume: bool) -> bool:
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file: choose a folder")
        there = self._saved_run()
        apart = [] if there is None else config.differences(run, there)
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
        """Say what runs here from now on."""
        self._begun = run
        files.remove(self.summary)  # of a run that was taken back
        files.write_json(self.config, config.as_dict(run), make_folder=False)

    def check_is_there(self) -> None:
        """Refuse to write into a folder that was removed, or made anew, while the run went on.

        What is missing there now would not come back, and nobody could tell what the rest is of.
        """
        if self._begun is not None and not self._is_of(self._begun):
            raise DiskError(
                errno.ENOENT,
                f"{self.config} is gone, or of another run by now: the folder was removed or "
                "replaced while the run went on, so that nothing more is written to it. Put it "
                "back and go on with --resume, or start again in another folder",
            )

    def write_metrics(self, metrics: list[dict[str, Any]]) -> None:
        lines = [json.dumps(files.without_nan(line)) + "\n" for line in metrics]
        files.write_text(self.metrics, "".join(lines), make_folder=False)

    def write_summary(self, summary: dict[str, Any]) -> None:
        self.check_is_there()
        files.write_json(self.summary, files.without_nan(summary), make_folder=False)

    def remove_unfinished(self) -> None:
        """Remove what a crash left of writing; only for who holds the folder."""
        own = (self.config, self.metrics, self.summary, self.checkpoint)
        files.remove_unfinished(self.path, [path.name for path in own])

    def read_summary(self, run: Run) -> dict[str, Any]:
        """How this very run ended."""
        summary = _read(self.summary)
        wrong = summaries.fault(summary)
        if wrong is not None:
            raise _damaged(self.summary, wrong)
        if summary.get("config_hash") not in (None, config.config_hash(run)):
            raise _damaged(self.summary, "it is of another run")
        return summary

    def _is_of(self, run: Run) -> bool:
        there = self._saved_run()
        return there is not None and config.identity(there) == config.identity(run)

    def _saved_run(self) -> Run | None:
        try:
            return _read_run(self.config)
        except FileNotFoundError:
            return None


def _read_run(path: Path) -> Run:
    saved = _read(path)
    try:
        return config.from_dict(saved)
    except UsageError as error:
        raise UsageError(f"{path} was left as it is: {error}") from error
    except (KeyError, TypeError) as error:
        raise _damaged(path, str(error)) from error


def _read(path: Path) -> Any:
    try:
        return files.read_json(path)
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is damaged ({why}): move the folder away")
