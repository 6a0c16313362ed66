"""What counting and recording cost: whole steps, side by side in one run, one thread.

    make bench

The same step of SAM three times on each network: by a closure, by a closure with the hooks that
count backward passes taken off, and by a bare ``step()`` that runs the recorded forwards again. All
three compute the same two gradients, so what differs is the bookkeeping. Prints a table and writes
JSON with the environment it ran in.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import aesam
import environment
from aesam.lab.models import build

TARGET = 1.02
Step = Callable[[], None]


class Classifier(nn.Module):
    """A network and its loss as one module, so that all three steps are the same."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x), y)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 64, "vocab_size": 1000}
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        self.net = GPT2LMHeadModel(GPT2Config(**size, **ends))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.net(input_ids=x, labels=y).loss


def resnet20() -> tuple[nn.Module, Tensor, Tensor]:
    images = torch.randn(32, 3, 32, 32)
    return Classifier(build("resnet20", classes=10)), images, torch.randint(10, (32,))


def gpt2() -> tuple[nn.Module, Tensor, Tensor]:
    tokens = torch.randint(1000, (8, 64))
    return LanguageModel(), tokens, tokens


NETWORKS = {"ResNet-20, 32 images": resnet20, "GPT-2, 4 layers, 8 × 64 tokens": gpt2}


def step_of(kind: str, make: Callable[[], tuple[nn.Module, Tensor, Tensor]]) -> Step:
    torch.manual_seed(0)
    model, x, y = make()
    base = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    opt = aesam.SAM(base, model, replay=kind == "replay")
    if kind == "uncounted":
        for p in model.parameters():
            p._post_accumulate_grad_hooks.clear()

    def closure() -> Tensor:
        opt.zero_grad()
        loss: Tensor = model(x, y)
        loss.backward()
        return loss

    def bare() -> None:
        closure()
        opt.step()

    return bare if kind == "replay" else lambda: opt.step(closure)


def measure(
    make: Callable[[], tuple[nn.Module, Tensor, Tensor]], repeats: int
) -> dict[str, list[float]]:
    """Seconds of each step, interleaved so that a slow moment of the machine hits all."""
    kinds = ("closure", "uncounted", "replay")
    steps = {kind: step_of(kind, make) for kind in kinds}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(repeats + 3):
        for kind in (kinds, kinds[::-1])[turn % 2]:
            begin = time.perf_counter()
            steps[kind]()
            if turn >= 3:
                times[kind].append(time.perf_counter() - begin)
    return times


def over(times: dict[str, list[float]], kind: str, other: str) -> float:
    """The median over the turns of one step's time as a share of another's in the same turn."""
    return statistics.median(a / b for a, b in zip(times[kind], times[other], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=60, help="timed steps of each kind")
    parser.add_argument("--out", type=Path, default=Path("results/replay_overhead.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    for name, make in NETWORKS.items():
        times = measure(make, options.repeats)
        results[name] = {
            "milliseconds_by_closure": statistics.median(times["closure"]) * 1e3,
            "replay_over_closure": over(times, "replay", "closure"),
            "counted_over_uncounted": over(times, "closure", "uncounted"),
            "target": TARGET,
        }
        found = results[name]
        print(
            f"{name:<32} {found['milliseconds_by_closure']:>7.1f} ms by closure; bare step "
            f"{found['replay_over_closure']:.3f} of it (≤ {TARGET}), counting "
            f"{found['counted_over_uncounted']:.3f} of not counting"
        )
    command = f"python benchmarks/replay_overhead.py --repeats {options.repeats}"
    environment.write(
        options.out, command, ("transformers",), repeats=options.repeats, results=results
    )


if __name__ == "__main__":
    main()
