"""Whether a model fits the data and the rows it is trained on, found out without any memory."""

import torch
from torch import nn

from aesam.lab import models
from aesam.lab.config import Run
from aesam.lab.data import DataSet
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import samples_of_method


def outline(run: Run, data_set: DataSet) -> nn.Module:
    """The run's model on the meta device: its shapes without its numbers.

    Nothing is drawn from any random state.
    """
    with torch.device("meta"):
        return models.build_for(run.model, data_set)


def smallest_pass(run: Run, world: int = 1) -> int:
    """The fewest rows that go through the model at once in training, on one of ``world`` processes.

    Every batch is full, so that leaves micro-batches and the rows that a method selects.

    >>> from aesam.lab.config import Method, Training
    >>> smallest_pass(Run(method=Method("esam", gamma=0.25), training=Training(batch_size=8)), 2)
    1
    """
    rows = run.training.batch_size // (world * run.training.accumulate)
    return samples_of_method(run.method).count(rows)


def check_smallest_pass(run: Run, data_set: DataSet, world: int = 1) -> None:
    """Refuse a single row where a BatchNorm would see a single value per channel.

    It sees more as long as the image is larger than a pixel there, so the model itself is asked.
    """
    rows = smallest_pass(run, world)
    if rows > 1:
        return
    if rows == 0:
        raise UsageError(
            f"batch_size {run.training.batch_size} over {world} process(es) leaves no row for each "
            f"of {run.method.name}'s splits: use a larger batch_size, or fewer splits"
        )
    side = data_set.size
    if data_set.is_text:
        row = torch.zeros(1, side, dtype=torch.int64, device="meta")
    else:
        row = torch.zeros(1, data_set.channels, side, side, device="meta")
    try:
        with torch.no_grad():
            outline(run, data_set).train()(row)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UsageError(_too_few(run, side, world)) from None


def _too_few(run: Run, side: int, world: int) -> str:
    training, gamma = run.training, run.method.get("gamma")
    selected = "" if gamma is None else f", of which {run.method.name} selects gamma {gamma:g}"
    return (
        f"batch_size {training.batch_size} over {world} process(es) × {training.accumulate} "
        f"micro-batch(es){selected} leaves a pass of 1 row, and {run.model.name} shrinks images of "
        f"{side}×{side} to one pixel, where BatchNorm cannot train on 1 row: use a larger "
        "batch_size, fewer processes or micro-batches, or another model"
    )
