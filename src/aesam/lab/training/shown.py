"""Other weights in the model for as long as they are evaluated."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# accelerate and torch.optim.swa_utils carry no types.

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.optim import swa_utils

from aesam.lab.data import Batches
from aesam.lab.data.sets import inputs_as
from aesam.lab.training import run_checkpoint
from aesam.lab.training.engine import Engine


@contextmanager
def shown(engine: Engine, weights: Sequence[Tensor] | None, batches: Batches) -> Generator[None]:
    """While the block lasts, the model has these weights and BatchNorm statistics of their own.

    Afterwards the model and every random state are as before, to the bit. None is for the model as
    it is, to which nothing is done.
    """
    if weights is None:
        yield
        return
    params, buffers = list(engine.net.parameters()), list(engine.net.buffers())
    before = [t.detach().clone() for t in (*params, *buffers)]
    drawn = run_checkpoint.random_state()
    try:
        _copy(params, weights)
        _refresh(engine, batches)
        yield
    finally:
        _copy([*params, *buffers], before)
        run_checkpoint.restore_random_state(drawn)


@torch.no_grad()
def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _refresh(engine: Engine, batches: Batches) -> None:
    """BatchNorm's statistics as means over the batches of one epoch, of all processes."""

    def inputs() -> Iterator[Tensor]:
        for batch, _ in batches.epoch(0):
            yield inputs_as(batch, engine.dtype)

    with engine.accelerator.autocast():
        swa_utils.update_bn(inputs(), engine.net)
    if engine.accelerator.num_processes > 1:  # each has seen its own rows
        for module in engine.net.modules():
            if isinstance(module, _BatchNorm):
                for found in (module.running_mean, module.running_var):
                    if found is not None:
                        found.copy_(engine.accelerator.reduce(found, reduction="mean"))
