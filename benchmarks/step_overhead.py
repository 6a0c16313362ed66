"""The bookkeeping time of one step: no model, gradients prepared beforehand, one thread.

    make bench

Times, side by side in one run, on the tensor shapes of real models: the base optimizer's own step
(SGD with momentum and weight decay), one SAM step of aesam and of pytorch_optimizer, one AE-SAM
step that takes no second gradient, and one step of each variant. What counts is the extra time over
the base step, as a ratio; of a variant, to SAM's. Prints a table and writes JSON with the
environment it ran in.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytorch_optimizer
import torch
from torch import Tensor, nn

import aesam
import environment
from shapes import SHAPES, Shape

SGD_OPTIONS = {"lr": 1e-9, "momentum": 0.9, "weight_decay": 1e-4}
TARGETS = {
    "ResNet-18": {"sam_over_theirs": 0.5, "skipped_over_sgd": 0.35},
    "ViT-S": {"sam_over_theirs": 0.65, "skipped_over_sgd": 0.35},
    "1,000 small": {"sam_over_theirs": 0.65, "skipped_over_sgd": 0.35},
}


VARIANT = 1.5  # the target of each variant's extra, as a multiple of SAM's
RECORDS = [aesam.method_record(name) for name in aesam.list_methods()]
VARIANTS = [record.name for record in RECORDS if record.rule and not record.only_for]


class ManyNorms(nn.Module):
    """The one-dimensional parameters, or some, as those of normalisation layers."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        super().__init__()
        chosen = [p for p in params if p.ndim == 1] or params[::10]
        for i, p in enumerate(chosen):
            self.register_parameter(f"p{i}", p)


class Prepared:
    """Parameters whose two gradients are ready, so that a backward pass costs an assignment."""

    def __init__(self, shapes: list[Shape]) -> None:
        torch.manual_seed(0)
        self.params = [nn.Parameter(torch.randn(s)) for s in shapes]
        self.first = [torch.randn(s) for s in shapes]
        self.second = [torch.randn(s) for s in shapes]

    def backward(self, gradients: list[Tensor]) -> None:
        for p, g in zip(self.params, gradients, strict=True):
            p.grad = g


def base_step(data: Prepared) -> Callable[[], None]:
    sgd = torch.optim.SGD(data.params, **SGD_OPTIONS)

    def step() -> None:
        data.backward(data.first)
        sgd.step()

    return step


def our_step(data: Prepared, opt: aesam.SharpnessAware) -> Callable[[], None]:
    def step() -> None:
        data.backward(data.first)
        if opt.needs_second_pass():
            with opt.perturbed():
                data.backward(data.second)
        opt.step()

    return step


def sam_step(data: Prepared) -> Callable[[], None]:
    return our_step(data, aesam.SAM(torch.optim.SGD(data.params, **SGD_OPTIONS)))


def skipped_step(data: Prepared) -> Callable[[], None]:
    never = float("inf")
    sgd = torch.optim.SGD(data.params, **SGD_OPTIONS)
    return our_step(data, aesam.AESAM(sgd, total_steps=10**6, lambda1=never, lambda2=never))


def their_sam_step(data: Prepared) -> Callable[[], None]:
    sam = pytorch_optimizer.SAM(data.params, torch.optim.SGD, **SGD_OPTIONS)

    def step() -> None:
        data.backward(data.first)
        sam.step(lambda: data.backward(data.second))

    return step


def variant_step(name: str, data: Prepared) -> Callable[[], None]:
    record = aesam.method_record(name)
    sgd = torch.optim.SGD(data.params, **SGD_OPTIONS)
    needed = {"total_steps": 10**6} if record.needs_total_steps else {}
    return our_step(data, record.make(sgd, ManyNorms(data.params), **needed))


STEPS = {
    "sgd": base_step,
    "sam": sam_step,
    "skipped": skipped_step,
    "pytorch_optimizer_sam": their_sam_step,
    **{name: partial(variant_step, name) for name in VARIANTS},
}


def measure(shapes: list[Shape], repeats: int) -> dict[str, float]:
    """Median milliseconds of each, interleaved so that a slow moment of the machine hits all."""
    steps = {name: make(Prepared(shapes)) for name, make in STEPS.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 3):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            if turn >= 3:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(ts) * 1e3 for name, ts in times.items()}


def ratios(ms: dict[str, float]) -> dict[str, float]:
    base = ms["sgd"]
    return {
        "sam_over_theirs": (ms["sam"] - base) / (ms["pytorch_optimizer_sam"] - base),
        "skipped_over_sgd": (ms["skipped"] - base) / base,
        **{f"{name}_over_sam": (ms[name] - base) / (ms["sam"] - base) for name in VARIANTS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=25, help="timed steps of each kind")
    parser.add_argument("--out", type=Path, default=Path("results/step_overhead.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, dict[str, float]]] = {}
    print(
        f"{'shapes':<12} {'SGD':>9} {'SAM extra':>10} {'theirs':>9} {'ratio':>14} {'skipped':>18}"
    )
    for name, shapes in SHAPES.items():
        ms = measure(shapes(), options.repeats)
        found, target = ratios(ms), TARGETS[name]
        wanted = {**target, **{f"{variant}_over_sam": VARIANT for variant in VARIANTS}}
        results[name] = {"milliseconds": ms, "ratios": found, "targets": wanted}
        extra, theirs = ms["sam"] - ms["sgd"], ms["pytorch_optimizer_sam"] - ms["sgd"]
        print(
            f"{name:<12} {ms['sgd']:>6.2f} ms {extra:>7.2f} ms {theirs:>6.2f} ms "
            f"{found['sam_over_theirs']:>5.2f} (≤ {target['sam_over_theirs']:.2f}) "
            f"{found['skipped_over_sgd']:>6.2f} of SGD (≤ {target['skipped_over_sgd']:.2f})"
        )
        shown = [f"{variant} {found[f'{variant}_over_sam']:.2f}" for variant in VARIANTS]
        print(f"{'':<12} × SAM's extra (≤ {VARIANT}): {', '.join(shown)}")
    command = f"python benchmarks/step_overhead.py --repeats {options.repeats}"
    environment.write(
        options.out, command, ("pytorch_optimizer",), repeats=options.repeats, results=results
    )


if __name__ == "__main__":
    main()
