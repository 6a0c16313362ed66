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
from aesam.evidence.settings import OF_TRAINING
from aesam.lab import files
from aesam.lab.config import Method, Run, as_dict, config_hash
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.grid import Job

#: What of a run's summary is kept.
KEPT = (
    "test_accuracy", "validation_accuracy", "test_loss", "validation_loss", "train_loss",
    "train_accuracy", "percent_sam", "steps", "gradients", "seconds", "skipped_steps", "diverged",
)  # fmt: skip

#: In so many digits, which is what 32-bit losses have. Accuracies stay as they are: two of them are
#: equal or not, and a search goes by that.
SHORT = {"test_loss": 7, "validation_loss": 7, "train_loss": 7, "seconds": 3}


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
        self.about: dict[str, Any] = {k: v for k, v in read.items() if k not in ("runs", "columns")}
        for line in read["runs"]:
            for seed, values in line["seeds"].items():
                summary = dict(zip(read["columns"].split(), values, strict=True))
                kept = {name: value for name, value in summary.items() if value is not None}
                self._add(Finished(self._run_of(line, int(seed)), kept))

    def __iter__(self) -> Iterator[Finished]:
        return iter(self._runs.values())

    def _add(self, finished: Finished) -> None:
        kept = {name: _short(name, value) for name, value in finished.summary.items()}
        self._runs[config_hash(finished.run)] = Finished(finished.run, kept)

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
                self._add(Finished(job.run, kept))

    def write(self, **about: Any) -> None:
        """The whole file: what is said ``about`` the runs, then a line for those alike but in seed.

        Names of columns stand once, since thousands of runs would repeat them.
        """
        self.about = dict(about)
        head = _as_json({**about, "columns": " ".join(KEPT)}, indent=1)[:-2]
        lines: dict[str, dict[str, Any]] = {}
        for finished in sorted(self, key=self._place):
            what = _what(finished.run, self._bench)
            line = lines.setdefault(json.dumps(what), {**what, "seeds": {}})
            line["seeds"][str(finished.run.seed)] = [finished.summary.get(name) for name in KEPT]
        body = ",\n  ".join(map(_as_json, lines.values()))
        files.write_text(self._path, f'{head},\n "runs": [\n  {body}\n ]\n}}\n')

    def _run_of(self, line: Mapping[str, Any], seed: int) -> Run:
        base = self._bench.search if line["search"] else self._bench.base
        settings = {k: v for k, v in line["method"].items() if k != "name"}
        return replace(
            base,
            method=Method(line["method"]["name"], **settings),
            training=replace(base.training, epochs=line["epochs"], **line.get("training", {})),
            seed=seed,
        )

    def _place(self, finished: Finished) -> tuple[bool, str, str, int]:
        """Where a run stands in the file: searches first, then by method, settings and seed."""
        what = _what(finished.run, self._bench)
        return not what["search"], finished.run.method.name, json.dumps(what), finished.run.seed


def _short(name: str, value: Any) -> Any:
    return float(f"{value:.{SHORT[name]}g}") if name in SHORT else value


def _as_json(value: dict[str, Any], indent: int | None = None) -> str:
    return json.dumps(files.without_nan(value), indent=indent, ensure_ascii=False)


def _what(run: Run, bench: Bench) -> dict[str, Any]:
    """What a run of the bench is, but for its seed; of its training what is not the bench's."""
    usual = bench.base.training
    own = {
        name: value
        for name in OF_TRAINING
        if (value := getattr(run.training, name)) != getattr(usual, name)
    }
    return {
        "search": run.data.holdout > 0.0,
        "method": {"name": run.method.name, **run.method.settings},
        "epochs": run.training.epochs,
        **({"training": own} if own else {}),
    }
