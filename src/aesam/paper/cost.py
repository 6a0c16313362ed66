"""What each method costs as a multiple of ERM, alone and with two data-parallel processes.

Each process that takes the time runs this very module (see :func:`take_turns`):

    python -m torch.distributed.run --nproc-per-node 2 -m aesam.paper.cost PLAN OUT
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aesam.lab import validation
from aesam.lab.config import Run, as_dict, from_dict
from aesam.lab.data import Batches, samples_of
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import companion_of, methods_of
from aesam.lab.show import label_of
from aesam.lab.show.table import Line, Sheet
from aesam.lab.training.engine import Engine, accelerator_for, leave_processes
from aesam.lab.training.passes import Passes
from aesam.paper import setups
from aesam.paper.outcome import Result
from aesam.paper.plan import only_seed
from aesam.paper.setups import Options, Setup

Times = Mapping[str, Mapping[str, Sequence[float]]]
TURNS = 8
COLUMNS = (
    "method", "1 process: × ERM", "2 processes: × ERM", "faster with two", "% SAM",
    "gradients per step",
)  # fmt: skip
NOTE = (
    "Time of all turns divided by ERM's; a turn is an epoch of each method. The adaptive threshold "
    "falls over the turns as in a whole training. One thread for each process, the whole batch the "
    "same size. “Faster with two” is one process's time over two processes'."
)


def cost(options: Options, tell: Callable[[int, int], None]) -> Result:
    """Both timings of every method on one network."""
    setup, seed = setups.timed(options), only_seed(options)
    runs = [setup.run(name, seed) for name in methods_of("paper")]
    turns = TURNS if options.epochs is None else options.epochs
    if turns < 1:
        raise UsageError(f"epochs must be at least 1 to time anything, got {turns}")
    validation.check(runs[0])
    validation.check_with_data(runs[0])
    times: list[Times] = []
    for done, processes in enumerate((1, 2)):
        tell(done, 2)
        times.append(measure(runs, processes, turns))
    tell(2, 2)
    return result_of(setup, times[0], times[1], turns)


def measure(runs: Sequence[Run], processes: int, turns: int) -> Times:
    """Start the processes, let them take turns, and read what the first of them wrote."""
    with tempfile.TemporaryDirectory() as folder:
        plan, out = Path(folder) / "plan.json", Path(folder) / "times.json"
        plan.write_text(json.dumps({"runs": [as_dict(run) for run in runs], "turns": turns}))
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command = [sys.executable, *launcher, str(processes), "-m", "aesam.paper.cost"]
        code, told = _launched([*command, str(plan), str(out)])
        if code:
            raise RuntimeError(f"timing with {processes} processes failed:\n{told[-2000:]}")
        found = json.loads(out.read_text())
        if found["processes"] != processes:
            raise RuntimeError(f"timed {found['processes']} processes instead of {processes}")
        return found["times"]


def _launched(command: list[str]) -> tuple[int, str]:
    """Exit code and errors of a launcher, which is asked to end its processes if we must end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, **quiet) as launcher:
        try:
            _, told = launcher.communicate()
        except BaseException:
            launcher.terminate()  # killed, it would leave them behind
            raise
        return launcher.returncode, told


def take_turns(runs: Sequence[Run], turns: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each epoch of each method, and the share of its steps that used SAM.

    In turns by epoch, so that a slow moment of the machine hits all methods, after one to warm up.
    """
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
    batches = Batches(
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
    companion = companion_of(run.method)
    engine = Engine(whole, samples.data_set, len(batches), accelerator, companion)
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


def result_of(setup: Setup, alone: Times, two: Times, turns: int) -> Result:
    rows = {name: _row(name, alone, two) for name in alone}
    lines = tuple(_line(name, row) for name, row in rows.items())
    return Result(
        sheets=[Sheet(f"Cost: {setup.title}", COLUMNS, (lines,), _note(alone, two, turns))],
        findings=_findings(rows),
        data={
            "turns": turns,
            "load": os.getloadavg()[0],
            "rows": rows,
            "seconds": {"alone": alone, "two": two},
        },
    )


def _note(alone: Times, two: Times, turns: int) -> str:
    spread = [variation(times["erm"]["seconds"]) for times in (alone, two)]
    return (
        f"{NOTE} {turns} turns; ERM's differ by {100 * spread[0]:.0f} % alone and "
        f"{100 * spread[1]:.0f} % with two (standard deviation), which is how well anything is "
        "known here."
    )


def variation(seconds: Sequence[float]) -> float:
    """The standard deviation as a share of the mean."""
    return statistics.stdev(seconds) / statistics.mean(seconds) if len(seconds) > 1 else 0.0


def ratio(times: Times, name: str, other: str = "erm") -> float:
    """One method's time over another's, all turns together: the share of SAM changes by turn."""
    return sum(times[name]["seconds"]) / sum(times[other]["seconds"])


def _row(name: str, alone: Times, two: Times) -> dict[str, float]:
    share = statistics.mean(alone[name]["share_of_sam"])
    speedup = sum(alone[name]["seconds"]) / sum(two[name]["seconds"])
    return {
        "alone": ratio(alone, name),
        "two": ratio(two, name),
        "speedup": speedup,
        "percent_sam": 100.0 * share,
        "gradients_per_step": 1.0 + share,
    }


def _line(name: str, row: Mapping[str, Any]) -> Line:
    return Line(
        (
            label_of(name),
            f"{row['alone']:.2f}×",
            f"{row['two']:.2f}×",
            f"{row['speedup']:.2f}×",
            f"{row['percent_sam']:.1f}",
            f"{row['gradients_per_step']:.2f}",
        )
    )


def _saved(percent: float) -> str:
    return f"{abs(percent):.0f} % {'less' if percent >= 0 else 'more'}"


def _findings(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    esam, sam, adaptive = rows["esam"], rows["sam"], rows["ae-sam"]
    saved = {kind: 100.0 * (1.0 - esam[kind] / sam[kind]) for kind in ("alone", "two")}
    doubled = (
        f"“SAM doubles the cost”: {sam['alone']:.2f}× alone, {sam['two']:.2f}× with two processes; "
        f"AE-SAM {adaptive['alone']:.2f}× with {adaptive['percent_sam']:.0f} % SAM."
    )
    parallel = (
        "“ESAM may not always accelerate SAM, particularly in parallel training”: here ESAM takes "
        f"{_saved(saved['alone'])} time than SAM alone and {_saved(saved['two'])} in parallel."
    )
    return [parallel, doubled]


def main() -> None:
    """One process of however many there are; the first of them writes what was found."""
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
