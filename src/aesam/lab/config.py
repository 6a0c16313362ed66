"""A run as a value: it prints, compares, hashes and goes into the checkpoint."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Data:
    """What is learned from."""

    name: str = "digits"
    root: str = "data"
    noise: float = 0.0
    noise_kind: str = "different"
    holdout: float = 0.0
    subset: int | None = None
    augment: bool = True
    cutout: int | None = None


@dataclass(frozen=True)
class Model:
    """What learns."""

    name: str = "digits-cnn"
    patch: int | None = None


@dataclass(frozen=True)
class Method:
    """How it learns; settings that mean nothing to the method are None."""

    name: str = "ae-sam"
    rho: float | None = None
    alpha: float | None = None
    k: int | None = None
    p: float | None = None
    lambda1: float | None = None
    lambda2: float | None = None
    delta: float | None = None
    beta: float | None = None
    gamma: float | None = None
    after: float | None = None
    normalize: bool | None = None


@dataclass(frozen=True)
class Training:
    """For how long, and with which optimizer underneath."""

    epochs: int = 60
    batch_size: int = 128
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warmup: int = 0
    label_smoothing: float = 0.0
    clip: float | None = None
    accumulate: int = 1
    precision: str = "no"
    channels_last: bool = False
    compile: bool = False
    cpu: bool = False
    workers: int = 2
    evaluate_every: int = 1
    measure: str | None = None


@dataclass(frozen=True)
class Run:
    """Everything that a training run is determined by."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    method: Method = field(default_factory=Method)
    training: Training = field(default_factory=Training)
    seed: int = 0


#: Where the data lie, which machine does the work and how often one looks: no part of what a run
#: is.
_CIRCUMSTANCES = {
    ("data", "root"),
    ("training", "cpu"),
    ("training", "workers"),
    ("training", "evaluate_every"),
}


def as_dict(run: Run) -> dict[str, Any]:
    """Nested plain values, for JSON and checkpoints."""
    return dataclasses.asdict(run)


def from_dict(saved: dict[str, Any]) -> Run:
    """The run that :func:`as_dict` was given.

    >>> from_dict(as_dict(Run(seed=3))) == Run(seed=3)
    True
    """
    return Run(
        Data(**saved["data"]),
        Model(**saved["model"]),
        Method(**saved["method"]),
        Training(**saved["training"]),
        saved["seed"],
    )


def identity(run: Run) -> dict[str, Any]:
    """What makes this run this run, by dotted names; circumstances are left out.

    So is what is None: a setting that did not exist when a run was made leaves its identity alone.
    """
    flat: dict[str, Any] = {"seed": run.seed}
    for part, settings in as_dict(run).items():
        if isinstance(settings, dict):
            for name, value in settings.items():  # pyright: ignore[reportUnknownVariableType]
                if value is not None and (part, name) not in _CIRCUMSTANCES:
                    flat[f"{part}.{name}"] = value
    return flat


def config_hash(run: Run) -> str:
    """Twelve letters that stand for the run's identity."""
    text = json.dumps(identity(run), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(here: Run, there: Run) -> list[str]:
    """What sets two runs apart, one sentence each.

    >>> differences(Run(seed=1), Run(seed=2))
    ['seed is 1 here and 2 there']
    """
    ours, theirs = identity(here), identity(there)
    return [
        f"{name} is {ours.get(name)} here and {theirs.get(name)} there"
        for name in {**ours, **theirs}
        if ours.get(name) != theirs.get(name)
    ]
