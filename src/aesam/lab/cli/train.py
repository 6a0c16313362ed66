"""``aesam train``: one run."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aesam.lab.cli.console import console, diverged, print_summary
from aesam.lab.cli.run_flags import RunFlags
from aesam.lab.config import config_hash
from aesam.lab.summaries import is_diverged
from aesam.lab.training.engine import check_trackers
from aesam.lab.training.reporters import for_console
from aesam.lab.training.trainer import train


@dataclass(frozen=True)
class Train(RunFlags):
    """Train one model with one method.

    Everything goes into the run's folder: config.json, metrics.jsonl, summary.json and
    checkpoint.pt. Stopped with Ctrl-C, SIGTERM or kill -9, it goes on with --resume. Defaults are
    those of the data set: add --dataset to --help to see its own. A run that diverged ends with
    exit code 1.
    """

    method: str = "ae-sam"
    """The method."""
    noise: float = 0.0
    """Share of the training labels that are wrong."""
    seed: int = 0
    """Of the weights, the order of the samples, the wrong labels and the draws of the method."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """The run's folder; runs/DATASET-MODEL-METHOD-… if left out."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on in a folder that holds part of this run; start in an empty one."""
    track: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = ()
    """Trackers beside metrics.jsonl: tensorboard, wandb (if installed)."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Say nothing on the way."""

    def __call__(self) -> int:
        run = self.run(self.method, self.seed, self.noise)
        name = f"{run.data.name}-{run.model.name}-{run.method.name}-{config_hash(run)[:8]}"
        folder = self.out or Path("runs") / name
        reporter = for_console(console, self.quiet)
        check_trackers(self.track)
        summary = train(run, folder, resume=self.resume, reporter=reporter, trackers=self.track)
        is_main = os.environ.get("RANK", "0") == "0"
        if not self.quiet and is_main:
            print_summary(summary, folder)
        if not is_diverged(summary):
            return 0
        if is_main:
            print(f"aesam: {diverged(summary, folder)}", file=sys.stderr)
        return 1
