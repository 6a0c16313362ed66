"""Everything that can be refused before anything is downloaded, loaded or trained."""

from collections.abc import Mapping
from typing import Any, get_args

from aesam.lab import data, fit, lab_methods, models
from aesam.lab.config import Measure, NoiseKind, OptimizerName, Precision, Run, Training
from aesam.lab.data.run_samples import NO_NOISE, samples_of
from aesam.lab.errors import UsageError, unknown

Bounds = Mapping[str, tuple[int, int]]

#: From where to where the whole numbers of a run go. The largest are beyond all use, and such that
#: what follows from them can still be counted and held.
OF_A_RUN: Bounds = {
    "epochs": (1, 10**6),
    "batch_size": (1, 10**7),
    "accumulate": (1, 10**5),
    "evaluate_every": (1, 10**6),
    "warmup": (0, 10**6),
    "workers": (0, 256),
    "subset": (1, 10**9),
    "cutout": (1, 10**5),
    "patch": (1, 10**5),
    "seed": (0, 2**32 - 1),
}
#: The same of a comparison.
OF_A_GRID: Bounds = {"jobs": (1, 10**6)}
#: The same of a search for settings: 2⁶⁴-fold is beyond all of them.
OF_A_SEARCH: Bounds = {"limit": (0, 64)}
#: The same of measuring sharpness, where a slice has the square of ``grid`` points.
OF_A_MEASUREMENT: Bounds = {
    "samples": (1, 10**9),
    "k": (1, 10**5),
    "trace_samples": (2, 10**6),
    "grid": (2, 501),
    "threads": (1, 1024),
    "seed": (0, 2**63 - 1),
}
#: Real numbers that multiply weights, which in float32 reach 3e38, stay below this.
LARGEST = 1e30


def check(run: Run) -> None:
    """Raise a :class:`UsageError` for names and combinations that cannot work."""
    data.data_record(run.data.name)
    models.model_record(run.model.name)
    lab_methods.check_settings(run.method)
    sections = vars(run.data) | vars(run.model) | vars(run.training)
    check_whole(OF_A_RUN, sections | {"seed": run.seed})
    _check_data(run)
    _check_training(run)


def check_whole(bounds: Bounds, values: Mapping[str, Any]) -> None:
    """Raise a :class:`UsageError` for whole numbers out of their bounds; None is left alone."""
    for name, (least, most) in bounds.items():
        value = values[name]
        if value is not None and not least <= value <= most:
            flag = name.replace("_", "-")
            limit = f"at least {least}" if value < least else f"at most {most}"
            raise UsageError(f"{flag} must be {limit}, got {value}")


def check_positive(name: str, value: float) -> None:
    """Raise a :class:`UsageError` unless ``value`` is above 0 and no larger than can be used."""
    if not 0.0 < value <= LARGEST:
        raise UsageError(f"{name} must be above 0 and at most {LARGEST:g}, got {value}")


def _check_data(run: Run) -> None:
    _check_kind(run)
    _between("noise", run.data.noise, 0.0, 1.0)
    _between("holdout", run.data.holdout, 0.0, 1.0)
    _one_of("kind of noise", run.data.noise_kind, NoiseKind)


def _check_kind(run: Run) -> None:
    """A model is made for images or for text, and so are some settings."""
    known, model = data.data_record(run.data.name), models.model_record(run.model.name)
    if model.reads != known.kind:
        raise UsageError(
            f"model {model.name} reads {model.reads} and {known.name} is {known.kind}: choose "
            f"among {', '.join(models.models_reading(known.kind))}"
        )
    if known.kind == "text":
        if run.data.noise:
            raise UsageError(f"{NO_NOISE}, got noise={run.data.noise}")
        for name, value in (
            ("augment", run.data.augment),
            ("cutout", run.data.cutout),
            ("channels_last", run.training.channels_last),
        ):
            if value:
                raise UsageError(f"{name} is for images and {known.name} is text: leave it out")


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
    _check_warmup(run)
    _one_of("optimizer", training.optimizer, OptimizerName)
    _one_of("precision", training.precision, Precision)
    if training.measure is not None:
        _one_of("measure", training.measure, Measure)
    if training.batch_size % training.accumulate:
        raise UsageError(
            f"batch_size {training.batch_size} cannot be split into {training.accumulate} equal "
            "micro-batches: choose a multiple"
        )
    if training.accumulate > 1 and lab_methods.compares_outputs(run.method):
        raise UsageError(
            f"{run.method.name} cannot accumulate: its term is of a whole batch. Use accumulate 1, "
            "or another method"
        )
    if training.accumulate > 1 and lab_methods.samples_of_method(run.method).needs_losses:
        splits = lab_methods.samples_of_method(run.method).splits
        why = "chooses samples within one batch" if splits == 1 else "splits each batch itself"
        instead = "gamma 1" if splits == 1 else "splits 1"
        raise UsageError(
            f"{run.method.name} cannot accumulate: it {why}. Use accumulate 1, {instead}, or "
            "another method"
        )


def _check_numbers(training: Training) -> None:
    _between("label_smoothing", training.label_smoothing, 0.0, 1.0)
    _between("momentum", training.momentum, 0.0, 1.0)
    check_positive("lr", training.lr)
    if training.weight_decay != 0.0:
        check_positive("weight-decay, where it is not 0,", training.weight_decay)
    if training.clip is not None:
        check_positive("clip", training.clip)


def _check_warmup(run: Run) -> None:
    warmup, whole, epochs = run.training.warmup, run.training.epochs, lab_methods.epochs_of(run)
    if not warmup or warmup < epochs:
        return
    if epochs == whole:
        raise UsageError(
            f"warmup must be shorter than the training's {epochs} epochs, got {warmup}"
        )
    raise UsageError(
        f"warmup must be shorter than the {epochs} of {whole} epochs that {run.method.name} has, "
        f"got {warmup}: shorten it, or leave {run.method.name} out"
    )


def _one_of(kind: str, name: str, names: Any) -> None:
    """A name of a closed set; files and programs may hold another."""
    if name not in get_args(names):
        raise unknown(kind, name, get_args(names))


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value < high:
        raise UsageError(f"{name} must be at least {low:g} and below {high:g}, got {value}")
