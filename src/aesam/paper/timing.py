"""Seconds per epoch of each method, taking turns, in one process of however many there are.

    python -m torch.distributed.run --nproc-per-node 2 -m aesam.paper.timing PLAN OUT

Turns by epoch, so that a slow moment of the machine hits all methods, after one to warm up.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aesam.lab import data
from aesam.lab.config import Run, from_dict
from aesam.lab.data.run_samples import samples_of
from aesam.lab.training.engine import Engine, accelerator_for, leave_processes
from aesam.lab.training.passes import Passes


def take_turns(runs: Sequence[Run], turns: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each epoch of each method, and the share of its steps that used SAM."""
    accelerator = accelerator_for(runs[0].training)
    for run in runs:
        next(_epochs(run, accelerator, 1))
    methods = {run.method.name: _epochs(run, accelerator, turns) for run in runs}
    found: dict[str, dict[str, list[float]]] = {
        name: {"seconds": [], "share_of_sam": []} for name in methods
    }
    for _ in range(turns):
        for name, epochs in methods.items():
            accelerator.wait_for_everyone()
            seconds, share = next(epochs)
            found[name]["seconds"].append(seconds)
            found[name]["share_of_sam"].append(share)
    return found


def _epochs(run: Run, accelerator: Any, total: int) -> Iterator[tuple[float, float]]:
    """Epochs of a training of so many: the adaptive threshold falls from λ2 to λ1 within them."""
    samples = samples_of(run)
    batches = data.Batches(
        samples.train,
        samples.data_set,
        run.training.batch_size,
        run.seed,
        augment=run.data.augment,
        device=accelerator.device,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        channels_last=run.training.channels_last,
        workers=run.training.workers,
    )
    whole = replace(run, training=replace(run.training, epochs=total))
    engine = Engine(whole, samples.data_set, len(batches), accelerator)
    passes, epoch = Passes(engine, run.training), 0
    while True:
        begin, used = time.perf_counter(), 0
        for images, labels in batches.epoch(epoch):
            passes.step(images, labels)
            record = engine.opt.last_step
            used += bool(record is not None and record.used_sam)
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        yield time.perf_counter() - begin, used / len(batches)
        epoch += 1


def main() -> None:
    plan, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)  # one core each, alone too: the processes are what is compared
    found = take_turns([from_dict(run) for run in plan["runs"]], plan["turns"])
    many = torch.distributed.is_initialized()
    if not many or torch.distributed.get_rank() == 0:
        processes = torch.distributed.get_world_size() if many else 1
        out.write_text(json.dumps({"processes": processes, "times": found}))
    leave_processes()


if __name__ == "__main__":
    main()
