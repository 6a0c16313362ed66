"""Rows whose runs record their gradients on the way."""

from collections.abc import Sequence
from dataclasses import replace

from aesam.lab.config import Run
from aesam.paper.benches import Bench
from aesam.paper.plan import Panel, method_rows


def measured_panel(bench: Bench, names: Sequence[str], seeds: Sequence[int], kind: str) -> Panel:
    """The methods on a bench, each run recording what ``kind`` names (``Training.measure``)."""
    rows = [
        replace(row, runs=tuple(measuring(run, kind) for run in row.runs))
        for row in method_rows(bench, names, seeds)
    ]
    return Panel(bench.title, tuple(rows))


def measuring(run: Run, kind: str) -> Run:
    return replace(run, training=replace(run.training, measure=kind))
