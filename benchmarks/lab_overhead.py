"""What the lab costs over a bare hand-written loop, and each method over ERM.

    make bench-lab

All in one run, taking turns epoch by epoch so that a slow moment of the machine hits everyone: a
plain PyTorch loop with the same model, data and optimizer, the lab's ERM, and the lab's methods.
Turns are in random order, and everyone is made afresh for each block of turns: order and place in
memory are worth a few per cent. The plain loop takes part twice, which shows what is left of that.
For a method the yardstick is (1 + its share of SAM steps) × ERM. Prints medians over the blocks and
writes JSON with the environment it ran in.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import environment
from aesam.lab import data, models
from aesam.lab.config import Method, Model, Run
from aesam.lab.lab_methods import fill, methods_of
from aesam.lab.training.counts import Counts, Sums
from aesam.lab.training.engine import Engine, accelerator_for
from aesam.lab.training.passes import Passes

TARGETS = {"erm_over_bare": 1.05, "method_over_share": 1.03}


def digits() -> Run:
    return data.data_record("digits").usual


def cifar_resnet20() -> Run:
    """CIFAR's shapes: 640 images of noise, since only the time is looked at."""
    usual = data.data_record("cifar10").usual
    return replace(
        usual, model=Model("resnet20"), training=replace(usual.training, channels_last=True)
    )


def data_set_of(run: Run) -> data.DataSet:
    if run.data.name == "digits":
        return data.load("digits", "data")
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (640, 3, 32, 32), generator=draw, dtype=torch.uint8)
    split = data.Split(images, torch.randint(0, 10, (640,), generator=draw))
    mean = std = (0.5, 0.5, 0.5)
    return data.DataSet(10, split, split, mean, std, 3, 32, 4, True)


def batches_for(run: Run, data_set: data.DataSet) -> data.Batches:
    training = run.training
    return data.Batches(
        data_set.train, data_set, training.batch_size, 0, augment=True, device="cpu",
        channels_last=training.channels_last,
    )  # fmt: skip


Turn = tuple[float, float]
"""Seconds of an epoch, and its share of SAM steps."""


def bare_epochs(run: Run, data_set: data.DataSet) -> Iterator[Turn]:
    """The loop that one would write by hand."""
    torch.manual_seed(0)
    model = models.build_for(run.model, data_set)
    if run.training.channels_last:
        model = model.to(memory_format=torch.channels_last)
    batches = batches_for(run, data_set)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10_000)
    epoch = 0
    while True:
        begin, loss_sum, correct = time.perf_counter(), 0.0, 0
        for x, y in batches.epoch(epoch):
            opt.zero_grad()
            logits = model(x)
            loss = cross_entropy(logits, y)
            loss.backward()
            opt.step()
            schedule.step()
            loss_sum += loss.item()
            correct += int((logits.argmax(1) == y).sum())
        yield time.perf_counter() - begin, 0.0
        epoch += 1


def lab_epochs(run: Run, data_set: data.DataSet) -> Iterator[Turn]:
    """The lab's own step, with its counting."""
    batches = batches_for(run, data_set)
    engine = Engine(run, data_set, len(batches), accelerator_for(run.training))
    passes, sums, epoch = Passes(engine, run.training), Sums(engine.accelerator.device), 0
    while True:
        begin, seen = time.perf_counter(), Counts()
        for x, y in batches.epoch(epoch):
            loss, correct = passes.step(x, y)
            seen.count(engine.opt.last_step, len(batches))
            sums.add(loss, correct, len(y))
        yield time.perf_counter() - begin, seen.percent_sam / 100
        epoch += 1


Times = dict[str, list[Turn]]


def contenders(run: Run, data_set: data.DataSet) -> dict[str, Iterator[Turn]]:
    """All of them afresh; each builds its model in its first turn."""
    methods = {name: replace(run, method=fill(Method(name))) for name in methods_of("paper")}
    return {
        "bare": bare_epochs(run, data_set),
        "bare again": bare_epochs(run, data_set),
        **{name: lab_epochs(filled, data_set) for name, filled in methods.items()},
    }


def measure_block(run: Run, data_set: data.DataSet, epochs: int, order: random.Random) -> Times:
    """Epoch by epoch, in another order each time, so that no one always comes after another."""
    turns = contenders(run, data_set)
    times: Times = {name: [] for name in turns}
    for turn in range(epochs + 1):
        for name in order.sample(list(turns), len(turns)):
            found = next(turns[name])
            if turn:  # the first warms up
                times[name].append(found)
    return times


def measure(make: Callable[[], Run], epochs: int, blocks: int) -> dict[str, dict[str, float]]:
    """The median over blocks, each with contenders of its own."""
    run, data_set, order = make(), data_set_of(make()), random.Random(0)
    found = [ratios(measure_block(run, data_set, epochs, order)) for _ in range(blocks)]
    return {
        name: {key: statistics.median(block[name][key] for block in found) for key in row}
        for name, row in found[0].items()
    }


def ratios(times: Times) -> dict[str, dict[str, float]]:
    """Turn by turn, each against the bare loop's or ERM's time of the same turn."""
    found: dict[str, dict[str, float]] = {}
    for name, turns in times.items():
        found[name] = {"seconds_per_epoch": statistics.median(s for s, _ in turns)}
        if name in ("erm", "bare again"):
            pairs = zip(turns, times["bare"], strict=True)
            found[name]["over_bare"] = statistics.median(a / b for (a, _), (b, _) in pairs)
        elif name != "bare":
            pairs = zip(turns, times["erm"], strict=True)
            shares = [a / (b * (1 + share)) for (a, share), (b, _) in pairs]
            found[name]["over_share_of_erm"] = statistics.median(shares)
            found[name]["share_of_sam"] = statistics.mean(share for _, share in turns)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--blocks", type=int, default=7, help="times that each is made afresh")
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs in a block, on digits")
    parser.add_argument("--cifar-epochs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/lab_overhead.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = {"digits, digits-cnn": (digits, options.epochs)}
    plan["CIFAR, resnet20"] = (cifar_resnet20, options.cifar_epochs)
    results = {}
    for title, (make, epochs) in plan.items():
        results[title] = measure(make, epochs, options.blocks)
        print(title)
        for name, row in results[title].items():
            print(f"  {name:<11}" + "  ".join(f"{k} {v:.3f}" for k, v in row.items()))
    chosen = " ".join(f"--{k} {getattr(options, k)}" for k in ("blocks", "epochs"))
    chosen += f" --cifar-epochs {options.cifar_epochs}"
    command = f"python benchmarks/lab_overhead.py {chosen}"
    environment.write(options.out, command, ("accelerate",), targets=TARGETS, results=results)


if __name__ == "__main__":
    main()
