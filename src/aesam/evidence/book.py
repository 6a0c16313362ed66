"""Finished runs of a bench in one small file: what each was, and how it ended.

A run's own folder has a checkpoint and a line for every epoch, which nobody needs afterwards. The
book is what is published; put back into folders it lets a command go on where another machine
stopped.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aesam.evidence.benches import Bench
from aesam.lab import files
from aesam.lab.config import Method, Run, as_dict, config_hash
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.grid import Job

#: What of a run's summary is kept; all numbers, as they were written.
KEPT = (
    "test_accuracy", "validation_accuracy", "test_loss", "validation_loss", "train_loss",
    "train_accuracy", "percent_sam", "steps", "gradients", "seconds", "skipped_steps", "diverged",
)  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """A run of a bench, and what is kept of its summary."""

    run: Run
    summary: Mapping[str, Any]


class Book:
    """The finished runs of one bench, by what each run is.

    Args:
        path: the file, which need not exist.
        bench: whose runs these are.
    """

    def __init__(self, path: Path, bench: Bench) -> None:
        self._path, self._bench = path, bench
        self._runs: dict[str, Finished] = {}
        read: dict[str, Any] = files.read_json(path) if path.exists() else {"runs": ()}
        #: What is said about the runs: the settings that were found, measured times, versions.
        self.about: dict[str, Any] = {k: v for k, v in read.items() if k != "runs"}
        for line in read["runs"]:
            found = Finished(self._run_of(line), line["summary"])
            self._runs[config_hash(found.run)] = found

    def __iter__(self) -> Iterator[Finished]:
        return iter(self._runs.values())

    def summary(self, run: Run) -> Mapping[str, Any] | None:
        """How this run ended, None where it is not in the book."""
        found = self._runs.get(config_hash(run))
        return None if found is None else found.summary

    def unpack(self, out: Path) -> None:
        """Put every run where the grid looks for it, as far as it is not there yet."""
        for finished in self:
            folder = RunFolder(folder_of(finished.run, out))
            if not folder.summary.exists():
                files.write_json(folder.config, as_dict(finished.run))
                named = {"method": finished.run.method.name, "seed": finished.run.seed}
                kept = {**named, **finished.summary, "config_hash": config_hash(finished.run)}
                files.write_json(folder.summary, kept)

    def take(self, jobs: Iterable[Job]) -> None:
        """Add the jobs that are finished."""
        for job in jobs:
            if job.is_finished:
                summary = RunFolder(job.folder).read_summary(job.run)
                kept = {name: summary[name] for name in KEPT if summary.get(name) is not None}
                self._runs[config_hash(job.run)] = Finished(job.run, kept)

    def write(self, **about: Any) -> None:
        """The whole file: what is said ``about`` the runs, then a line for each of them."""
        self.about = dict(about)
        head = json.dumps(files.without_nan(about), indent=1, ensure_ascii=False)[:-2]
        ordered = sorted(
            self, key=lambda f: (f.run.data.holdout == 0.0, f.run.method.name, f.run.seed)
        )
        lines = [
            json.dumps(files.without_nan(self._line_of(f)), ensure_ascii=False) for f in ordered
        ]
        body = ",\n  ".join(lines)
        files.write_text(self._path, f'{head},\n "runs": [\n  {body}\n ]\n}}\n')

    def _line_of(self, finished: Finished) -> dict[str, Any]:
        run = finished.run
        return {
            "search": run.data.holdout > 0.0,
            "method": {"name": run.method.name, **run.method.settings},
            "epochs": run.training.epochs,
            "seed": run.seed,
            "summary": dict(finished.summary),
        }

    def _run_of(self, line: Mapping[str, Any]) -> Run:
        base = self._bench.search if line["search"] else self._bench.base
        settings = {k: v for k, v in line["method"].items() if k != "name"}
        return replace(
            base,
            method=Method(line["method"]["name"], **settings),
            training=replace(base.training, epochs=line["epochs"]),
            seed=line["seed"],
        )
