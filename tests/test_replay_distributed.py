"""A bare step() on two processes, against one process with the closure on the whole batch."""

from contextlib import nullcontext

import pytest
import torch
from support.problems import METHODS, mlp, weights
from support.processes import on_processes
from test_replay import DATA, WithLoss
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.slow
STEPS, RANKS, MICRO_BATCHES = 16, 2, 2


def new_optimizer(method, params, model, **options):
    base = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    return METHODS[method](base, model, rho=0.2, **options)


def one_process(method):
    model = WithLoss(mlp())
    opt = new_optimizer(method, model.parameters(), model)
    used = []
    for t in range(STEPS):

        def closure(t=t):
            opt.zero_grad()
            model(DATA.x[t], DATA.y[t]).backward()

        opt.step(closure)
        used.append(opt.last_step.used_sam)
    return weights(model), used


def wrapped_by(kind, model):
    if kind.startswith("fsdp2"):
        for layer in (model.net[0], model.net[2]):
            fully_shard(layer)
        return fully_shard(model)
    return DistributedDataParallel(
        model, gradient_as_bucket_view="bucket views" in kind, static_graph="static" in kind
    )


def unsynchronised(kind, model, last):
    if kind.startswith("fsdp2"):
        model.set_requires_gradient_sync(last)
        return nullcontext()
    return nullcontext() if last else model.no_sync()


def train(rank, kind, method):
    raw = WithLoss(mlp())
    model = wrapped_by(kind, raw)
    given = raw if "raw" in kind else model
    opt = new_optimizer(method, model.parameters(), given, replay=True)
    used = []
    for t in range(STEPS):
        x, y = (rows[t].chunk(RANKS)[rank] for rows in (DATA.x, DATA.y))
        count = MICRO_BATCHES if "accumulation" in kind else 1
        for i, (inputs, targets) in enumerate(zip(x.chunk(count), y.chunk(count), strict=True)):
            with unsynchronised(kind, model, last=i == count - 1):
                (model(inputs, targets) / count).backward()
        opt.step()
        opt.zero_grad()
        used.append(opt.last_step.used_sam)
    whole = [w.full_tensor() if hasattr(w, "full_tensor") else w for w in weights(model)]
    return [w.numpy() for w in whole], used


def refused(rank, kind):
    """A penalty outside: each process sees it at the same step, and none waits for another."""
    raw = WithLoss(mlp())
    model = wrapped_by(kind, raw)
    opt = new_optimizer("sam", model.parameters(), model, replay=True)
    x, y = (rows[0].chunk(RANKS)[rank] for rows in (DATA.x, DATA.y))
    penalty = sum(p.square().sum() for p in raw.parameters()) if kind == "ddp" else None
    loss = model(x, y)
    if penalty is None:
        nn.utils.clip_grad_norm_(loss.backward() or model.parameters(), 0.1)
    else:
        (loss + penalty).backward()
    with pytest.raises(RuntimeError, match="replay=True cannot make|pass max_norm="):
        opt.step()


def counted(rank, kind):
    """Four micro-batches of FSDP2 without synchronisation are four, not one."""
    model = wrapped_by(kind, WithLoss(mlp()))
    opt = new_optimizer("sam", model.parameters(), model)
    x, y = (rows[0].chunk(RANKS)[rank] for rows in (DATA.x, DATA.y))
    for i in range(4):
        model.set_requires_gradient_sync(i == 3)
        model(x[i : i + 1], y[i : i + 1]).backward()
    if not opt.needs_second_pass():
        pytest.fail("SAM always takes a second pass")
    with pytest.raises(RuntimeError, match="ran 1 backward passes where .* had 4"):
        with opt.perturbed():
            model(x[3:4], y[3:4]).backward()


CASES = [
    ("ddp", "ae-sam"),
    ("ddp, bucket views", "ae-looksam"),
    ("ddp, the raw module given", "looksam"),
    ("ddp, static graph", "sam"),
    ("ddp, accumulation", "ae-sam"),
    ("ddp, accumulation, bucket views, the raw module given", "ae-looksam"),
    ("fsdp2", "ae-looksam"),
    ("fsdp2, accumulation", "ae-sam"),
]


def everything(rank):
    """All of it by the same two processes: starting them takes longer than what they do."""
    for kind in ("ddp", "fsdp2"):
        refused(rank, kind)
    counted(rank, "fsdp2")
    return [train(rank, kind, method) for kind, method in CASES]


@pytest.fixture(scope="module")
def found():
    return on_processes(everything)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{k}, {m}" for k, m in CASES])
def test_a_bare_step_on_two_processes_is_one_process_on_the_whole_batch(case, found, matrix):
    kind, method = CASES[case]
    expected, decisions = one_process(method)
    for of_rank in found:
        ends, used = of_rank[case]
        assert used == decisions
        for left, right in zip(ends, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(left), right, rtol=0, atol=1e-10)
    stack, _, use = kind.partition(", ")
    matrix.right({"ddp": "DDP", "fsdp2": "FSDP2"}[stack], f"replay=True{use and ', ' + use}", 1e-10)


def test_what_bypasses_the_recording_is_refused_on_all_processes(found, matrix):
    """Asserted in the processes, where a penalty, clipping and other micro-batches are tried."""
    assert len(found) == RANKS
    use = "one of four unsynchronised micro-batches in pass 2"
    matrix.refused("FSDP2", use, "the second pass ran 1 backward passes, the first had 4")
