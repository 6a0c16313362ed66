"""Under DDP and FSDP2 too, what a pass writes without gradient is written once."""

import copy

import pytest
import torch
import torchmetrics
from support.copies import Copies
from support.problems import Problem
from support.processes import on_processes
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import aesam

pytestmark = pytest.mark.slow
WIDTH = 128


class Net(nn.Module):
    """Frozen statistics, a metric, BatchNorm, and a large frozen matrix beside a trained one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(3, WIDTH).double()
        self.frozen = nn.Linear(WIDTH, WIDTH).double().requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDTH).double()
        self.head = nn.Linear(WIDTH, 2).double()
        self.mean = nn.Parameter(torch.zeros(5, dtype=torch.float64), requires_grad=False)
        self.metric, self.all = torchmetrics.MeanMetric(), torchmetrics.CatMetric()

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean())
        self.metric.update(x.mean())
        self.all.update(x[0])
        return self.head(torch.tanh(self.norm(self.frozen(self.wide(x)))))


def wrapped(kind, net):
    if kind == "ddp":
        return DistributedDataParallel(net, forward_sync_buffers=False)
    # A sharded statistic is a copy that FSDP2 throws away: statistics stay whole.
    gathered = kind != "fsdp2"
    fully_shard(net.frozen, reshard_after_forward=not gathered)
    fully_shard(net, ignored_params={net.mean}, reshard_after_forward=not gathered)
    if gathered:
        net.set_reshard_after_backward(False)
    return net


def held(net):
    buffers = [b for n, b in net.named_buffers() if "metric" not in n]
    return [net.mean.detach(), *buffers, net.metric.compute(), net.all.compute()]


def train(rank, kind, form):
    model = wrapped(kind, net := Net())
    single = Net()
    single.load_state_dict(copy.deepcopy(Net().state_dict()))
    trained = [p for p in model.parameters() if p.requires_grad]
    replay = form == "a bare step"
    opt = aesam.SAM(torch.optim.SGD(trained, lr=0.0), model, rho=0.5, replay=replay)
    problem = Problem(model)
    problem.x, problem.y = problem.x[:, rank::2], problem.y[:, rank::2]
    sizes = set()
    for t in range(4):
        with Copies() as made:
            if replay:
                problem.losses(t).mean().backward()
                opt.step()
                opt.zero_grad()
            else:
                problem.step(opt, t)
        sizes |= made.sizes
        single(problem.x[t])
        for layer in model.modules():
            getattr(layer, "reshard", bool)()
    torch.testing.assert_close(held(net), held(single), rtol=0, atol=1e-15)
    assert net.norm.num_batches_tracked == 4
    assert opt.sam_fraction == 1.0
    frozen = net.frozen.weight
    whole = frozen.numel() if kind == "ddp" else frozen.to_local().numel()
    assert not {whole, frozen.numel()} & sizes
    return True


KINDS = ["ddp", "fsdp2", "fsdp2 that keeps its weights gathered"]
FORMS = ["closure", "a bare step"]


def train_all(rank):
    return {(kind, form): train(rank, kind, form) for kind in KINDS for form in FORMS}


def test_statistics_and_metrics_count_once_and_frozen_weights_are_not_copied():
    for found in on_processes(train_all):
        assert all(found.values())
