"""The smallest run that has everything: epochs, SAM steps, a memory, random draws."""

import shutil
from dataclasses import replace

from aesam.lab.config import Method
from aesam.lab.data import data_record
from aesam.lab.lab_methods import fill
from aesam.lab.training import run_checkpoint
from support.commands import SMALL, metrics_of, summary_of

WORDS = ("train", *SMALL[:4], "--method", "ae-looksam", "--batch-size", 256, "--epochs", 2)
FILES = {"config.json", "metrics.jsonl", "summary.json", "checkpoint.pt"}


def tiny_run(method="ae-looksam", **training):
    """What ``WORDS`` trains."""
    usual = data_record("synthetic").usual
    changed = replace(usual.training, **({"epochs": 2, "batch_size": 256} | training))
    return replace(usual, method=fill(Method(method)), training=changed)


def numbers_of(folder):
    """Everything that a finished run is: its metrics, its summary and its weights, to the bit."""
    content = run_checkpoint.load(folder / "checkpoint.pt")
    states = content["model"], content.get("evaluated") or {}
    weights = [{name: t.numpy().tobytes() for name, t in state.items()} for state in states]
    return metrics_of(folder), summary_of(folder), weights


def content_of(folder):
    """The bytes of every file in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def copied(folder, target):
    """A fresh copy of a folder, whatever was there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target
