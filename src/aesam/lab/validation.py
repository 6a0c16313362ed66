"""Everything that can be refused before anything is downloaded, loaded or trained."""

import math
from typing import Any, get_args

from aesam.lab import data, fit, lab_methods, models
from aesam.lab.config import Measure, NoiseKind, OptimizerName, Precision, Run, Training
from aesam.lab.data.run_samples import samples_of
from aesam.lab.errors import UsageError, unknown


def check(run: Run) -> None:
    """Raise a :class:`UsageError` for names and combinations that cannot work."""
    data.data_record(run.data.name)
    models.model_record(run.model.name)
    lab_methods.check_settings(run.method)
    _check_data(run)
    _check_training(run)
    if not 0 <= run.seed < 2**32:
        raise UsageError(f"seed must be from 0 to 2**32 - 1, got {run.seed}")


def _check_data(run: Run) -> None:
    _between("noise", run.data.noise, 0.0, 1.0)
    _between("holdout", run.data.holdout, 0.0, 1.0)
    _one_of("kind of noise", run.data.noise_kind, NoiseKind)
    if run.data.subset is not None:
        _at_least("subset", run.data.subset, 1)
    if run.data.cutout is not None:
        _at_least("cutout", run.data.cutout, 1)


def check_with_data(run: Run) -> None:
    """What only the data can tell: whether they are there, and fit the model and the batches."""
    samples = samples_of(run)
    fit.outline(run, samples.data_set)
    if run.training.batch_size > len(samples.train):
        raise UsageError(
            f"batch_size {run.training.batch_size} is larger than the {len(samples.train)} "
            "training samples"
        )
    fit.check_smallest_pass(run, samples.data_set)


def _check_training(run: Run) -> None:
    training = run.training
    _check_numbers(training)
    _one_of("optimizer", training.optimizer, OptimizerName)
    _one_of("precision", training.precision, Precision)
    if training.measure is not None:
        _one_of("measure", training.measure, Measure)
    if training.batch_size % training.accumulate:
        raise UsageError(
            f"batch_size {training.batch_size} cannot be split into {training.accumulate} equal "
            "micro-batches: choose a multiple"
        )
    if training.accumulate > 1 and lab_methods.samples_of_method(run.method).selects_rows:
        raise UsageError(
            f"{run.method.name} cannot accumulate: it chooses samples within one batch. Use "
            "accumulate 1, gamma 1, or another method"
        )


def _check_numbers(training: Training) -> None:
    for name in ("epochs", "batch_size", "accumulate", "evaluate_every"):
        _at_least(name, getattr(training, name), 1)
    for name in ("warmup", "workers"):
        _at_least(name, getattr(training, name), 0)
    _between("label_smoothing", training.label_smoothing, 0.0, 1.0)
    _between("momentum", training.momentum, 0.0, 1.0)
    if not 0.0 < training.lr < math.inf:
        raise UsageError(f"lr must be above 0, got {training.lr}")
    if not 0.0 <= training.weight_decay < math.inf:
        raise UsageError(f"weight_decay must be at least 0, got {training.weight_decay}")
    if training.clip is not None and not 0.0 < training.clip < math.inf:
        raise UsageError(f"clip must be above 0, got {training.clip}")
    if training.warmup and training.warmup >= training.epochs:
        raise UsageError(
            f"warmup must be shorter than the training's {training.epochs} epochs, got "
            f"{training.warmup}"
        )


def _one_of(kind: str, name: str, names: Any) -> None:
    """A name of a closed set; files and programs may hold another."""
    if name not in get_args(names):
        raise unknown(kind, name, get_args(names))


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value < high:
        raise UsageError(f"{name} must be at least {low:g} and below {high:g}, got {value}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{name} must be at least {least}, got {value}")
