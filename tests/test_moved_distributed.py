"""Weights that a model's forward moves, on two processes: bare loops against one process."""

from contextlib import nullcontext

import pytest
import torch
from support.problems import Problem, mlp, weights
from support.processes import on_processes
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import aesam
from aesam.parts.policies import Adaptive
from aesam.parts.samples import SubBatch

pytestmark = pytest.mark.slow
STEPS, RANKS = 8, 2
DATA = Problem(mlp())


class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x, y):
        return (self.net(x) - y).square().sum(1).mean() / 2


class Around(nn.Module):
    """What Lightning hands to DDP is around the module that the optimizer knows."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, batch):
        return self.inner(*batch)


METHODS = {
    "msam": lambda base, model: aesam.MSAM(base, model, rho=0.2, elementwise=True),
    "stale-sam": lambda base, model: aesam.StaleSAM(base, model, rho=0.2),
    "sub-sam": lambda base, model: aesam.SubSAM(base, model, rho=0.2, share=0.5, replay=True),
    "adaptive": lambda base, model: aesam.SharpnessAware(
        base, model, policy=Adaptive(total_steps=STEPS), samples=SubBatch(0.5), rho=0.2,
        replay=True,
    ),
}  # fmt: skip


def new_optimizer(method, params, model):
    return METHODS[method](torch.optim.SGD(params, lr=0.1, momentum=0.9), model)


def one_process(method):
    model = WithLoss(mlp())
    opt = new_optimizer(method, model.net.parameters(), model)
    seen = []
    for t in range(STEPS):
        opt.zero_grad()
        model(DATA.x[t], DATA.y[t]).backward()
        opt.step()
        seen.append((opt.last_step.used_sam, opt.last_step.squared_norm))
    return weights(model.net), seen


def wrapped_by(kind, model):
    if kind.startswith("fsdp2"):
        for layer in (model.net[0], model.net[2]):
            fully_shard(layer)
        return fully_shard(model)
    return DistributedDataParallel(
        Around(model) if "around" in kind else model,
        gradient_as_bucket_view="bucket views" in kind,
        static_graph="static" in kind,
        find_unused_parameters="static" not in kind,
    )


def unsynchronised(kind, model, last):
    if kind.startswith("fsdp2"):
        model.set_requires_gradient_sync(last)
        return nullcontext()
    return nullcontext() if last else model.no_sync()


def train(rank, kind, method):
    raw = WithLoss(mlp())
    model = wrapped_by(kind, raw)
    given = raw if "raw" in kind or "around" in kind else model
    opt = new_optimizer(method, raw.net.parameters(), given)
    seen = []
    for t in range(STEPS):
        x, y = (rows[t].chunk(RANKS)[rank] for rows in (DATA.x, DATA.y))
        count = 2 if "accumulation" in kind else 1
        for i, batch in enumerate(zip(x.chunk(count), y.chunk(count), strict=True)):
            with unsynchronised(kind, model, last=i == count - 1):
                loss = model(batch) if "around" in kind else model(*batch)
                (loss / count).backward()
        opt.step()
        opt.zero_grad()
        seen.append((opt.last_step.used_sam, opt.last_step.squared_norm))
    trained = weights(raw.net)
    whole = [w.full_tensor() if hasattr(w, "full_tensor") else w for w in trained]
    return [w.numpy() for w in whole], seen


def refused(rank):
    """Accumulation with a sub-batch: all processes say so, and none waits for another."""
    said = []
    for kind in ("ddp", "fsdp2"):
        raw = WithLoss(mlp())
        model = wrapped_by(kind, raw)
        opt = new_optimizer("sub-sam", raw.net.parameters(), model)
        x, y = (rows[0].chunk(RANKS)[rank] for rows in (DATA.x, DATA.y))
        with unsynchronised(kind, model, last=False):
            with pytest.raises(RuntimeError, match="of\nseveral") as error:
                model(x, y)
        with unsynchronised(kind, model, last=True):
            model(x, y).backward()
        opt.step()
        said.append(str(error.value))
    return said


CASES = [
    ("ddp", "msam"),
    ("ddp, accumulation, bucket views", "msam"),
    ("ddp, the raw module given", "stale-sam"),
    ("fsdp2, accumulation", "msam"),
    ("fsdp2", "stale-sam"),
    ("ddp", "sub-sam"),
    ("ddp, bucket views, the raw module given", "adaptive"),
    ("ddp, a module around the given one", "sub-sam"),
    ("ddp, static graph", "adaptive"),
    ("fsdp2", "adaptive"),
    ("fsdp2", "sub-sam"),
]
USES = {"adaptive": "sub-batch ascent", "sub-sam": "sub-batch ascent", "stale-sam": "stale ascent"}


def everything(rank):
    return {case: train(rank, *case) for case in CASES} | {"refused": refused(rank)}


@pytest.fixture(scope="module")
def two_processes():
    return on_processes(everything, world=RANKS)


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_two_processes_equal_one_on_the_whole_batch(kind, method, two_processes, matrix):
    expected, seen = one_process(method)
    for ends, found in (of_rank[kind, method] for of_rank in two_processes):
        assert [used for used, _ in found] == [used for used, _ in seen]
        assert [n for _, n in found] == pytest.approx([n for _, n in seen], rel=1e-9)
        for left, right in zip(ends, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(left), right, rtol=0, atol=1e-10)
    stack, _, more = kind.partition(", ")
    use = f"bare step(), {USES.get(method, 'MSAM')}" + (f", {more}" if more else "")
    matrix.right(stack.upper(), use, within=1e-10)


def test_a_sub_batch_under_no_sync_is_refused(two_processes, matrix):
    for of_rank in two_processes:
        under_ddp, under_fsdp2 = of_rank["refused"]
        matrix.refused("DDP", "bare step(), sub-batch ascent, no_sync()", under_ddp)
        use = "bare step(), sub-batch ascent, set_requires_gradient_sync(False)"
        matrix.refused("FSDP2", use, under_fsdp2)
