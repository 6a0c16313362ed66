"""Accelerate and Fabric on two processes equal one process on the whole batch."""

import lightning as L
import pytest
import torch
from support.in_stacks import (
    STACKS,
    STEPS,
    InFabric,
    WithLoss,
    accelerate_s_loop,
    fabric_s_loop,
    in_accelerate,
    rows,
)
from support.plain_loops import PlainLoop, micro_batches, new_optimizer
from support.problems import Problem, mlp, weights
from support.processes import on_processes
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import aesam
from aesam.integrations import accelerate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
]

#: The optimizer is made before the model is wrapped or after it, and ``step`` is given the model or
#: not; with the rows of each micro-batch of each rank.
ORDERS = [
    ("before", True, ((2, 2), (2, 2))),
    ("before", False, ((2, 2), (2, 2))),
    ("after", False, ((3, 2), (1, 2))),
]


NOT_PREPARED = "no model that was prepared has the optimizer's parameters"


def train_rank(rank, stack):
    """All of it in the same two processes: starting them takes longer than what they do."""
    options = {"devices": 2, "strategy": "ddp"} if stack == "Fabric" else {}
    trainer = STACKS[stack](**options)
    if stack == "Accelerate":
        refuse_a_model_that_was_not_prepared(trainer.engine)
    with_helper = [train_share(rank, trainer, *order) for order in ORDERS]
    return with_helper, in_its_own_loop(rank, stack)


def in_its_own_loop(rank, stack):
    ours = rows(2, first=4 * rank, last=4 * rank + 4)
    if stack == "Accelerate":
        accelerator, model, opt, scheduler = in_accelerate("ae-looksam", 2, mlp)
        accelerate_s_loop(accelerator, model, opt, scheduler, ours)
    else:
        fabric = L.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        net = WithLoss(mlp())
        model, opt = fabric.setup(net, new_optimizer("ae-looksam", net, replay=True))
        fabric_s_loop(fabric, model, opt, ours, 2)
    assert any(isinstance(m, nn.parallel.DistributedDataParallel) for m in model.modules())
    return [w.numpy() for w in weights(model)], aesam.unwrap(opt).sam_fraction


def refuse_a_model_that_was_not_prepared(engine):
    net = mlp()
    opt = engine.prepare(new_optimizer("sam", net))
    with pytest.raises(RuntimeError, match=NOT_PREPARED):
        accelerate.step(engine, opt, [None], lambda _: net(torch.ones(1, 3).double()).sum())


def train_share(rank, trainer, order, given, sizes):
    net = mlp()
    problem = Problem(net)
    if order == "after":
        opt = setup_one_by_one(trainer, net)
    else:
        opt = new_optimizer("ae-looksam", net)
        trainer.setup(net, opt)
    travels = count_travels(trainer.model)
    first, own = sum(sizes[0]) * rank, list(sizes[rank])
    options = ({} if given else {"model": None}) | ({"weights": own} if order == "after" else {})
    used, losses = [], []
    for t in range(STEPS):
        x, y = (b[t % 50][first : first + sum(own)] for b in (problem.x, problem.y))
        batches = list(zip(x.split(own), y.split(own), strict=True))
        loss = trainer.step(batches, max_norm=0.5, **options)
        losses.append(loss.item())
        used.append(opt.last_step.used_sam)
    passes = len(used) + sum(used)
    assert len(travels) == (passes if given or order == "after" else 2 * passes)
    return [w.numpy() for w in weights(net)], used, losses


def count_travels(model):
    """A list that grows whenever gradients go from process to process."""
    travels = []
    (ddp,) = (m for m in model.modules() if isinstance(m, nn.parallel.DistributedDataParallel))

    def hook(_, bucket):
        travels.append(bucket.index())
        return default_hooks.allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, hook)
    return travels


def setup_one_by_one(trainer, net):
    in_fabric = isinstance(trainer, InFabric)
    engine = trainer.engine
    trainer.model = engine.setup_module(net) if in_fabric else engine.prepare(net)
    opt = new_optimizer("ae-looksam", trainer.model)
    trainer.opt = engine.setup_optimizers(opt) if in_fabric else engine.prepare(opt)
    return opt


def plain_loop(max_norm=None):
    loop = PlainLoop("ae-looksam", mlp(), max_norm)
    problem = Problem(loop.model)
    for t in range(STEPS):
        loop.step(micro_batches(problem, t, [8]))
    assert 0 < loop.opt.sam_fraction < 1
    return loop


def assert_close(ends, model):
    for left, right in zip(ends, weights(model), strict=True):
        torch.testing.assert_close(torch.from_numpy(left), right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stack", STACKS)
def test_two_processes_equal_one_on_the_whole_batch(stack, matrix):
    with_helper, in_own_loop = zip(*on_processes(train_rank, stack, seconds=0), strict=True)

    expected = plain_loop(max_norm=0.5)
    for of_ranks in zip(*with_helper, strict=True):  # of each order
        for ends, used, _ in of_ranks:
            assert used == expected.used_sam
            assert_close(ends, expected.model)
        mean = [(a + b) / 2 for a, b in zip(*(losses for *_, losses in of_ranks), strict=True)]
        assert mean == pytest.approx(expected.losses, abs=1e-10)
    matrix.right(stack, "DDP × 2: step(…) over micro-batches, max_norm, weights", within=1e-10)
    if stack == "Accelerate":
        matrix.refused(stack, "DDP × 2: step(…), model not prepared", NOT_PREPARED)

    expected = plain_loop()
    for ends, share in in_own_loop:
        assert share == expected.opt.sam_fraction
        assert_close(ends, expected.model)
    matrix.right(stack, "DDP × 2: its own loop, replay=True, accumulation over 2", within=1e-10)
