"""A run as a value: it prints, compares, hashes, goes into the checkpoint, and is what flags set.

The fields of :class:`Data`, :class:`Model` and :class:`Training` are the commands' flags; the
sentence below a field is the flag's help.
"""

import dataclasses
import hashlib
import json
import reprlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from tyro.conf import DisallowNone, Suppress, arg

from aesam.lab.errors import UsageError

NoiseKind = Literal["different", "uniform"]
OptimizerName = Literal["sgd", "adamw"]
Precision = Literal["no", "bf16", "fp16", "float64"]
Measure = Literal["gradients", "norms"]
Section = TypeVar("Section", bound="Data | Model | Training")


def _or(metavar: str, otherwise: str) -> Any:
    """How a flag that may be left unset is shown: its kind of value, and what happens without."""
    return arg(metavar=metavar, help_behavior_hint=f"(default: {otherwise})")


@dataclass(frozen=True)
class Data:
    """What is learned from; the defaults shown are those of the data set that is named."""

    name: Annotated[str, arg(name="dataset", metavar="NAME")] = "digits"
    """The data set; see `aesam data --help` for those there are."""
    root: str = "data"
    """Where data sets lie."""
    noise: Suppress[float] = 0.0  # a flag of the commands: some take several levels
    """Share of the training labels that are wrong."""
    noise_kind: NoiseKind = "different"
    """Wrong labels are drawn from the different classes, or uniform over all."""
    holdout: float = 0.0
    """Share of the training set that is held out and evaluated on instead of the test set."""
    subset: DisallowNone[Annotated[int | None, _or("INT", "all")]] = None
    """Train on so many samples only, the same for every seed."""
    augment: bool = True
    """Random crops and flips."""
    cutout: DisallowNone[Annotated[int | None, _or("INT", "none")]] = None
    """Side of a square that is cut out of each training image."""


@dataclass(frozen=True)
class Model:
    """What learns."""

    name: Annotated[str, arg(name="model", metavar="NAME")] = "digits-cnn"
    """The network: digits-cnn, mlp, resnet8, resnet18, …; a wrong name lists them all."""
    patch: DisallowNone[Annotated[int | None, _or("INT", "4 up to 64 pixels, then 16")]] = None
    """Patch size of a vision transformer."""


class Method:
    """How it learns: a method's name and its settings; None stands for a setting that it lacks.

    >>> Method("looksam", k=2, p=None)
    Method('looksam', k=2)
    >>> Method("looksam", k=2).get("k"), Method("looksam", k=2).get("p")
    (2, None)
    """

    def __init__(self, name: str = "ae-sam", /, **settings: float | None) -> None:
        self._name = name
        self._settings = {k: v for k, v in settings.items() if v is not None}
        for setting, value in self._settings.items():
            if not isinstance(value, bool | int | float):  # pyright: ignore
                raise TypeError(f"{setting} must be a number, got {value!r}")

    @property
    def name(self) -> str:
        """What commands call the method."""
        return self._name

    @property
    def settings(self) -> dict[str, float]:
        """The settings by name, whole numbers and switches as what they are."""
        return dict(self._settings)

    def get(self, setting: str) -> float | None:
        """The value of a setting, None where the method has no such setting."""
        return self._settings.get(setting)

    def but(self, **settings: float | None) -> "Method":
        """The same method with other values for these settings."""
        return Method(self._name, **{**self._settings, **settings})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Method):
            return NotImplemented
        return (self._name, self._settings) == (other._name, other._settings)

    def __hash__(self) -> int:
        return hash((self._name, frozenset(self._settings.items())))

    def __repr__(self) -> str:
        shown = "".join(f", {k}={v!r}" for k, v in self._settings.items())
        return f"Method({self._name!r}{shown})"


@dataclass(frozen=True)
class Training:
    """For how long, and with which optimizer underneath."""

    epochs: int = 60
    """Passes over the training set."""
    batch_size: int = 128
    """Samples per optimizer step, over all processes and micro-batches."""
    lr: float = 0.1
    """Learning rate at its highest; it falls along a cosine."""
    optimizer: OptimizerName = "sgd"
    """Underneath the method."""
    momentum: float = 0.9
    """Of sgd."""
    weight_decay: float = 1e-4
    """Of the optimizer, outside of the perturbed loss."""
    warmup: int = 0
    """Epochs in which the learning rate rises, before the cosine."""
    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes."""
    clip: DisallowNone[Annotated[float | None, _or("FLOAT", "no clipping")]] = None
    """Largest norm of the final direction."""
    accumulate: int = 1
    """Micro-batches that a batch is split into, in both passes."""
    precision: Precision = "no"
    """Mixed precision: no (float32), bf16 or fp16; or all in float64."""
    channels_last: bool = False
    """Keep images with their channels last, which is faster on CPUs."""
    compile: bool = False
    """Compile the model with torch.compile."""
    cpu: bool = False
    """Stay on the CPU also where there is an accelerator."""
    workers: int = 2
    """Processes that decode images of a folder."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    measure: Suppress[Measure | None] = None  # set by entries of the paper
    """Gradients to record on the way."""


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
CIRCUMSTANCES = {
    ("data", "root"),
    ("training", "cpu"),
    ("training", "workers"),
    ("training", "evaluate_every"),
}


def as_dict(run: Run) -> dict[str, Any]:
    """Nested plain values, for JSON and checkpoints."""
    return {
        "data": dataclasses.asdict(run.data),
        "model": dataclasses.asdict(run.model),
        "method": {"name": run.method.name, **run.method.settings},
        "training": dataclasses.asdict(run.training),
        "seed": run.seed,
    }


def from_dict(saved: Mapping[str, Any]) -> Run:
    """The run that :func:`as_dict` was given.

    A TypeError or KeyError says what is damaged, a UsageError what only a newer version knows.

    >>> from_dict(as_dict(Run(seed=3))) == Run(seed=3)
    True
    """
    saved = _settings("a run", saved)
    _refuse_unknown("", saved, ("data", "model", "method", "training", "seed"))
    method = _settings("method", saved["method"])
    if not isinstance(method.get("name"), str):
        raise TypeError(f"method must have a name, got {_shown(method)}")
    if not _is_of(saved["seed"], int):
        raise TypeError(f"seed must be a whole number, got {_shown(saved['seed'])}")
    return Run(
        _section("data", Data, saved["data"]),
        _section("model", Model, saved["model"]),
        Method(method["name"], **{k: v for k, v in method.items() if k != "name"}),
        _section("training", Training, saved["training"]),
        saved["seed"],
    )


def _section(name: str, kind: type[Section], saved: object) -> Section:
    """One part of a run, if each setting is of its type."""
    settings, hints = _settings(name, saved), get_type_hints(kind)
    _refuse_unknown(f"{name}.", settings, hints)
    for setting, value in settings.items():
        if not _is_of(value, hints[setting]):
            raise TypeError(f"{name}.{setting} cannot be {_shown(value)}")
    return kind(**settings)


def _settings(name: str, saved: object) -> dict[str, Any]:
    settings = cast(dict[str, Any], saved) if isinstance(saved, dict) else {0: saved}
    if not all(isinstance(key, str) for key in settings):
        raise TypeError(f"{name} must be settings by name, got {_shown(settings)}")
    return cast(dict[str, Any], settings)


def _refuse_unknown(prefix: str, settings: Mapping[str, Any], known: Collection[str]) -> None:
    foreign = [f"{prefix}{name}" for name in settings if name not in known]
    if foreign:
        raise UsageError(
            f"this version of aesam does not know {', '.join(foreign)}: a newer one made it. "
            "Update aesam (pip install --upgrade aesam)"
        )


def _is_of(value: object, hint: Any) -> bool:
    """Whether a value has the type of a setting; which words it may be is checked with the run."""
    if get_origin(hint) is Literal:
        return isinstance(value, str)
    if get_args(hint):
        return any(_is_of(value, each) for each in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and _fits(value)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _fits(value: float) -> bool:
    """Whether a number fits into a float: whole ones may be of any size."""
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def _shown(value: object) -> str:
    """For a message: files may hold anything, of any length."""
    return reprlib.repr(value)


def identity(run: Run) -> dict[str, Any]:
    """What makes this run this run, by dotted names; circumstances are left out.

    So is what is None: a setting that did not exist when a run was made leaves its identity alone.
    """
    flat: dict[str, Any] = {"seed": run.seed}
    for section, values in as_dict(run).items():
        if isinstance(values, dict):
            for name, value in values.items():  # pyright: ignore[reportUnknownVariableType]
                if value is not None and (section, name) not in CIRCUMSTANCES:
                    flat[f"{section}.{name}"] = value
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
