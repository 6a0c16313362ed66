"""Model, optimizer and schedule of a run, made ready for whatever machine there is."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# accelerate carries no types.

import gc
import math
import random
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import aesam
from aesam.lab import lab_methods, models
from aesam.lab.companions.companion import Companion
from aesam.lab.config import Run, Training
from aesam.lab.data import DataSet
from aesam.lab.errors import UsageError, unknown


def accelerator_for(training: Training, trackers: Iterable[str] = (), folder: str = "") -> Any:
    """Accelerate's view of the machine: one process or many, CPU or GPU, the precision asked for.

    Its state is global to the process; several runs one after the other start afresh.
    """
    if not torch.distributed.is_initialized():
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()  # pyright: ignore
    return Accelerator(
        # Without it, Accelerate takes several CPU processes for as many runs of one process.
        cpu=training.cpu or not torch.accelerator.is_available(),
        mixed_precision="no" if training.precision == "float64" else training.precision,
        log_with=list(trackers) or None,
        project_dir=folder or None,
    )


def check_trackers(names: Iterable[str]) -> None:
    """Refuse trackers that Accelerate does not know or that are not installed."""
    known = [str(name) for name in LOGGER_TYPE_TO_CLASS]
    installed = [str(tracker) for tracker in get_available_trackers()]
    for name in names:
        if name not in known:
            raise unknown("tracker", name, known)
        if name not in installed:
            raise UsageError(f"the tracker {name} is not installed: pip install {name}")


@contextmanager
def threads(count: int) -> Generator[None]:
    """So many threads within the block, and as many as before after it.

    On small problems the threads mostly wait for each other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def leave_processes() -> None:
    """End the group of processes, and its threads, once nobody holds an engine any more.

    A wrapped model is a cycle that keeps the threads alive until it is collected. Left to Python's
    exit, one of them may wake in an interpreter that is half gone and abort the whole process.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()


def base_optimizer(training: Training, params: Iterable[Tensor]) -> torch.optim.Optimizer:
    if training.optimizer == "adamw":
        return torch.optim.AdamW(params, lr=training.lr, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        params, lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )


def cosine_with_warmup(step: int, warmup: int, total: int) -> float:
    """The factor on the learning rate: up linearly, then down along half a cosine.

    >>> [round(cosine_with_warmup(t, 2, 6), 2) for t in range(6)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def seed_all(seed: int) -> None:
    """Every global generator: models and augmentations from outside may draw from any."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


class Engine:
    """What a run trains with; ``model`` and ``prepared`` are Accelerate's wrappers."""

    def __init__(
        self,
        run: Run,
        data_set: DataSet,
        steps_per_epoch: int,
        accelerator: Any,
        companion: Companion | None = None,
    ) -> None:
        training, goes_along = run.training, companion or Companion()
        self.accelerator = accelerator
        self.epochs = goes_along.epochs(training.epochs)
        self.total_steps = self.epochs * steps_per_epoch
        seed_all(run.seed)
        self.net: nn.Module = models.build_for(run.model, data_set)
        if training.channels_last:
            self.net.to(memory_format=torch.channels_last)  # pyright: ignore
        if training.precision == "float64":
            self.net.double()
        self.dtype = next(self.net.parameters()).dtype
        base = base_optimizer(training, self.net.parameters())
        opt = lab_methods.make(
            run.method, base, self.net, total_steps=self.total_steps, seed=run.seed
        )
        compiled: Any = torch.compile(self.net) if training.compile else self.net
        prepared: tuple[Any, Any] = accelerator.prepare(compiled, opt)
        self.model, self.prepared = prepared
        self.opt: aesam.SharpnessAware = aesam.unwrap(self.prepared)
        warmup = training.warmup * steps_per_epoch

        def rate(step: int) -> float:
            usual = cosine_with_warmup(step, warmup, self.total_steps)
            return usual if step < warmup else goes_along.rate(usual)

        self.scheduler = LambdaLR(self.opt, rate)
        seed_all(run.seed * 1000 + accelerator.process_index)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.net.parameters())
