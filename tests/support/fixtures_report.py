"""Run folders with plausible numbers, made without training anything."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from aesam.lab.show import Comparison, compare, read_runs

VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "aesam": "0.1.0", "accelerate": "1.15.0"}
EMPTY = dict.fromkeys(
    ("rho", "alpha", "k", "p", "lambda1", "lambda2", "delta", "beta", "gamma", "normalize")
)
SAM = {"rho": 0.15, "normalize": True}
METHODS: dict[str, dict[str, Any]] = {
    "erm": {},
    "sam": SAM,
    "esam": SAM | {"beta": 0.6, "gamma": 0.5},
    "ss-sam": SAM | {"p": 0.5},
    "looksam": SAM | {"alpha": 0.5, "k": 5},
    "ae-sam": SAM | {"lambda1": -1.0, "lambda2": 1.0, "delta": 0.9},
    "ae-looksam": SAM | {"alpha": 0.5, "lambda1": 0.0, "lambda2": 2.0, "delta": 0.9},
}


def by_method(table: str) -> dict[str, tuple[float, ...]]:
    """Numbers of each method, from a line for each: its name and its numbers."""
    lines = [line.split() for line in table.strip().splitlines()]
    return {name: tuple(map(float, numbers)) for name, *numbers in lines}


# Final test accuracy, its peak before overfitting, training accuracy and % SAM at 60 % noise.
ENDS = by_method("""
    erm         45.0  72.0  88.0    0.0
    sam         64.0  76.0  62.0  100.0
    esam        59.0  74.0  66.0  100.0
    ss-sam      47.0  73.0  80.0   50.0
    looksam     75.0  78.0  52.0   20.0
    ae-sam      46.4  73.0  82.0   49.0
    ae-looksam  84.0  84.0  45.0   19.0
""")
# Of seed 0 accuracy, % SAM, gradients and seconds; then what each seed has more in accuracy.
NUMBERS = by_method("""
    erm         44.0    0.0   720   5.0  0.0  1.0  0.5
    sam         63.0  100.0  1440  10.0  0.2  0.1  2.0
    esam        59.0  100.0  1440   9.0  1.5  0.0  0.5
    ss-sam      47.0   50.0  1080   7.5  0.0  0.4  1.9
    ae-sam      48.0   46.0  1051   7.4  1.0  0.0  0.3
    looksam     74.0   20.0   864   6.0  2.0  0.1  1.0
    ae-looksam  83.0   19.0   857   6.1  0.5  1.1  0.0
""")
STEPS = 12  # an epoch


def config_of(method: str, seed: int = 0, **data: Any) -> dict[str, Any]:
    """A run's configuration as in config.json; keyword arguments go into its data block."""
    return {
        "data": {
            "name": "digits",
            "root": "data",
            "noise": 0.6,
            "noise_kind": "different",
            "holdout": 0.0,
            "subset": None,
            "augment": True,
        }
        | data,
        "model": {"name": "digits-cnn", "patch": None},
        "method": {"name": method} | EMPTY | METHODS.get(method, {}),
        "training": {
            "epochs": 60,
            "batch_size": 128,
            "lr": 0.1,
            "optimizer": "sgd",
            "momentum": 0.9,
            "weight_decay": 0.0001,
            "warmup": 0,
            "label_smoothing": 0.0,
            "clip": None,
            "accumulate": 1,
            "precision": "no",
            "channels_last": False,
            "compile": False,
        },
        "seed": seed,
    }


def summary_of(config: dict[str, Any], **numbers: Any) -> dict[str, Any]:
    """A summary with round numbers; keyword arguments replace them."""
    return {
        "method": config["method"]["name"],
        "seed": config["seed"],
        "test_accuracy": 80.0,
        "validation_accuracy": None,
        "train_loss": 0.9,
        "train_accuracy": 55.0,
        "percent_sam": 0.0,
        "steps": 720,
        "gradients": 720,
        "seconds": 5.0,
        "skipped_steps": 0,
        "parameters": 23456,
        "versions": VERSIONS,
        "config_hash": "ab12cd34ef56",
    } | numbers


def epoch_line(epoch: int, split: str = "test", **numbers: Any) -> dict[str, Any]:
    """One line of metrics.jsonl with an empty trace."""
    return {
        "epoch": epoch,
        "step": STEPS * epoch,
        "lr": 0.1,
        "train_loss": 2.0 / epoch,
        "train_accuracy": 50.0 + epoch,
        f"{split}_loss": 2.1 / epoch,
        f"{split}_accuracy": 60.0 + epoch,
        "percent_sam": 0.0,
        "percent_sam_epoch": 0.0,
        "gradients": STEPS * epoch,
        "seconds": 0.3 * epoch,
        "trace": {"step": [], "squared_norm": [], "mean": [], "threshold": [], "used_sam": []},
    } | numbers


def write_run(
    folder: Path, config: dict[str, Any], metrics: list[dict[str, Any]], summary: dict[str, Any]
) -> Path:
    """Lay a run's folder down."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    lines = "".join(json.dumps(line) + "\n" for line in metrics)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def write_short_run(
    root: Path,
    method: str,
    seed: int = 0,
    *,
    data: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **numbers: Any,
) -> Path:
    """A run of two epochs whose summary has the given numbers."""
    config = config_of(method, seed, **(data or {}))
    config["method"] |= settings or {}
    config["training"] |= training or {}
    split = "validation" if numbers.get("validation_accuracy") is not None else "test"
    metrics = [epoch_line(1, split), epoch_line(2, split)]
    folder = root / f"run-{len(list(root.glob('*')))}"
    return write_run(folder, config, metrics, summary_of(config, **numbers))


def write_methods(
    root: Path, methods: tuple[str, ...] = tuple(NUMBERS), seeds: int = 3, **more: Any
) -> Path:
    """Short runs of all methods, whose table and tests are known."""
    for method in methods:
        accuracy, share, gradients, seconds, *over_seeds = NUMBERS[method]
        for seed in range(seeds):
            write_short_run(
                root,
                method,
                seed,
                test_accuracy=accuracy + over_seeds[seed],
                train_accuracy=accuracy - 3.0 * seed,
                percent_sam=share + 0.5 * seed * method.startswith("ae"),
                gradients=int(gradients),
                seconds=seconds,
                **more,
            )
    return root


def compared(root: Path) -> list[Comparison]:
    """The comparisons of the runs in a folder."""
    return compare(read_runs([root]))


def write_plausible_run(
    root: Path, method: str, seed: int, *, epochs: int = 60, noise: float = 0.6
) -> Path:
    """A run whose curves look like those of training with flipped labels, trace included."""
    random = np.random.default_rng([seed, epochs, *method.encode()])
    final, peak, train, share = ENDS[method]
    shift = float(random.normal(0, 1.3))
    final, peak = (x + (0.6 - noise) * (97 - x) / 0.6 + shift for x in (final, peak))
    train += (0.6 - noise) * (99 - train) / 0.6
    metrics: list[dict[str, Any]] = []
    policy = _Policy(METHODS[method], share, epochs * STEPS, random)
    cost = 0.085 * (1 + float(random.normal(0, 0.01)))
    for epoch in range(1, epochs + 1):
        done = epoch / epochs
        trace = policy.epoch()
        rise = 1 - math.exp(-9 * done)
        overfit = (peak - final) / (1 + math.exp(-9 * (done - 0.62)))
        test = 10 + (peak - 10) * rise - overfit + random.normal(0, 1.6 * (1 - done) + 0.25)
        fit = 11 + (min(train, 41.0) - 11) * rise + max(0.0, train - 41) * done**3
        metrics.append(
            epoch_line(
                epoch,
                step=epoch * STEPS,
                lr=0.05 * (1 + math.cos(math.pi * done)),
                train_loss=2.32 - 2.1 * (fit - 11) / 88 + random.normal(0, 0.012),
                train_accuracy=float(fit + random.normal(0, 0.5)),
                test_loss=2.3 - 1.2 * rise + 1.4 * overfit / 27 + abs(random.normal(0, 0.02)),
                test_accuracy=float(test),
                percent_sam=policy.percent,
                percent_sam_epoch=100 * float(np.mean(trace["used_sam"])),
                gradients=policy.step + policy.fired,
                seconds=cost
                * (epoch + policy.fired / STEPS * (0.75 if method == "esam" else 0.96)),
                trace=trace,
            )
        )
    config = config_of(method, seed, noise=noise)
    config["training"]["epochs"] = epochs
    last = metrics[-1]
    kept = {
        name: last[name]
        for name in ("test_accuracy", "train_loss", "train_accuracy", "percent_sam", "gradients")
    }
    summary = summary_of(config, **kept, steps=last["step"], seconds=last["seconds"])
    folder = root / f"{method}-noise{noise:g}-seed{seed}"
    return write_run(folder, config, metrics, summary)


def write_comparison(
    root: Path,
    *,
    methods: tuple[str, ...] = tuple(METHODS),
    seeds: int = 3,
    epochs: int = 60,
    noises: tuple[float, ...] = (0.6,),
) -> Path:
    """All methods × seeds × noise levels."""
    for noise in noises:
        for method in methods:
            for seed in range(seeds):
                write_plausible_run(root, method, seed, epochs=epochs, noise=noise)
    return root


class _Policy:
    """Which steps use SAM: the adaptive rule on made-up norms, or a share of the steps."""

    def __init__(
        self, settings: dict[str, Any], share: float, total: int, random: np.random.Generator
    ) -> None:
        self.settings, self.share, self.total, self.random = settings, share, total, random
        self.step = self.fired = 0
        self.mean, self.variance = 0.0, math.exp(-10)

    @property
    def percent(self) -> float:
        return 100 * self.fired / self.step

    def epoch(self) -> dict[str, list[Any]]:
        trace: dict[str, list[Any]] = copy.deepcopy(epoch_line(1)["trace"])
        for _ in range(STEPS):
            done = self.step / self.total
            level = 2.2 * math.exp(-3.2 * done) + 0.5 * done**2
            norm = level * float(self.random.lognormal(0, 0.45))
            fire, mean, threshold = self._decide(norm, done)
            values = (self.step, norm, mean, threshold, fire)
            for name, value in zip(trace, values, strict=True):
                trace[name].append(value)
            self.step, self.fired = self.step + 1, self.fired + fire
        return trace

    def _decide(self, norm: float, done: float) -> tuple[bool, float | None, float | None]:
        if self.settings.get("lambda2") is None:
            if self.settings.get("k"):
                return self.step % self.settings["k"] == 0, None, None
            return bool(self.random.random() < self.share / 100), None, None
        self.mean = 0.9 * self.mean + 0.1 * norm
        self.variance = 0.9 * self.variance + 0.1 * (norm - self.mean) ** 2
        c = done * self.settings["lambda1"] + (1 - done) * self.settings["lambda2"]
        threshold = self.mean + c * math.sqrt(self.variance)
        return norm >= threshold, self.mean, threshold
