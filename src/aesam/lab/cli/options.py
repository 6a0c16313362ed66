"""Flags that several commands share, and the run that they describe."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from aesam.lab import method_records
from aesam.lab.config import Method, Run, Training
from aesam.lab.data import data_record
from aesam.lab.errors import UsageError


@dataclass(frozen=True)
class RunOptions:
    """What is trained and how; flags left out take the usual value for the data set."""

    dataset: str = "digits"
    """digits (bundled), cifar10, cifar100, folder (ImageNet-style) or synthetic."""
    root: Path = Path("data")
    """Where data sets lie."""
    model: str | None = None
    """digits-cnn, mlp, resnet8/20/32/56/18/34/50, wrn-D-K, pyramidnet-110 or vit-s."""
    patch: int | None = None
    """Patch size of vit-s."""
    epochs: int | None = None
    """Passes over the training set: 60 for digits, 200 for CIFAR, 90 for folders."""
    batch_size: int | None = None
    """Samples per optimizer step, over all processes and micro-batches."""
    lr: float | None = None
    """Learning rate at its highest, 0.1; it falls along a cosine."""
    optimizer: str | None = None
    """sgd or adamw, underneath the method."""
    momentum: float | None = None
    """Of sgd, 0.9."""
    weight_decay: float | None = None
    """1e-4."""
    warmup: int | None = None
    """Epochs in which the learning rate rises, before the cosine."""
    label_smoothing: float | None = None
    """Share of each label that is spread over all classes, 0."""
    clip: float | None = None
    """Largest norm of the final direction."""
    accumulate: int | None = None
    """Micro-batches that a batch is split into, in both passes."""
    precision: str | None = None
    """no (float32), bf16 or fp16 (mixed), or float64."""
    channels_last: bool = False
    """Keep images with their channels last, which is faster on CPUs."""
    compile: bool = False
    """Compile the model with torch.compile."""
    cpu: bool = False
    """Stay on the CPU also where there is an accelerator."""
    workers: int | None = None
    """Processes that decode images of a folder."""
    evaluate_every: int | None = None
    """Epochs between evaluations; the last epoch is always evaluated."""
    noise_kind: str = "different"
    """Wrong labels are drawn from the different classes, or uniform over all."""
    holdout: float = 0.0
    """Share of the training set that is held out and evaluated on instead of the test set."""
    subset: int | None = None
    """Train on so many samples only, the same for every seed."""
    augment: tyro.conf.DisallowNone[bool | None] = None
    """Random crops and flips; None: as usual, which is yes for CIFAR and folders, no for digits."""
    cutout: int | None = None
    """Side of a square that is cut out of each training image."""
    rho: float | None = None
    """Radius of the ascent."""
    alpha: float | None = None
    """Weight of the reused direction (looksam, ae-looksam)."""
    k: int | None = None
    """A second gradient every k-th step (looksam)."""
    p: float | None = None
    """Probability of a second gradient (ss-sam)."""
    lambda1: float | None = None
    """Threshold at the end of training (ae-sam, ae-looksam)."""
    lambda2: float | None = None
    """Threshold at the start of training (ae-sam, ae-looksam)."""
    delta: float | None = None
    """Forgetting rate of the running mean and variance (ae-sam, ae-looksam)."""
    beta: float | None = None
    """Share of tensors in the ascent (esam)."""
    gamma: float | None = None
    """Share of rows in the second gradient (esam)."""
    after: float | None = None
    """Share of training before the first second gradient (late-sam)."""
    normalize: bool = True
    """Normalise the ascent or not."""


_TRAINING = (
    "epochs", "batch_size", "lr", "optimizer", "momentum", "weight_decay", "warmup",
    "label_smoothing", "clip", "accumulate", "precision", "channels_last", "compile", "cpu",
    "workers", "evaluate_every",
)  # fmt: skip
_METHOD = (
    "rho", "alpha", "k", "p", "lambda1", "lambda2", "delta", "beta", "gamma", "after", "normalize",
)  # fmt: skip


def run_of(
    options: RunOptions, method: str, seed: int, noise: float, *, strict: bool = True, **base: Any
) -> Run:
    """The run that the flags describe; ``base`` has settings of the method that flags override."""
    usual = data_record(options.dataset).usual
    given = _given(options, _METHOD)
    if options.normalize:
        del given["normalize"]  # every method's default
    return Run(
        data=replace(
            usual.data,
            root=str(options.root),
            noise=noise,
            noise_kind=options.noise_kind,
            holdout=options.holdout,
            subset=options.subset,
            cutout=options.cutout,
            **_given(options, ("augment",)),
        ),
        model=replace(usual.model, name=options.model or usual.model.name, patch=options.patch),
        method=method_records.fill(Method(method, **{**base, **given}), strict=strict),
        training=_training(options, usual.training),
        seed=seed,
    )


def _training(options: RunOptions, usual: Training) -> Training:
    training = replace(usual, **_given(options, _TRAINING))
    if options.momentum is not None and training.optimizer == "adamw":
        raise UsageError(
            f"adamw has no momentum to set, got --momentum {options.momentum:g}: leave it out, or "
            "use --optimizer sgd"
        )
    return training


def given_settings(options: RunOptions) -> list[str]:
    """The settings of methods that flags were given for."""
    names = list(_given(options, _METHOD))
    return [name for name in names if name != "normalize" or not options.normalize]


def _given(options: RunOptions, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: v for name in names if (v := getattr(options, name)) is not None}
