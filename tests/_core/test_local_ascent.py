"""Each process ascends along its own gradient: two on gloo against both shards in one process."""

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from support.problems import BASES, METHODS, TOTAL_STEPS, Problem, mlp, same, weights
from support.processes import on_processes
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import aesam
from aesam.parts.ascents import AlongGradient, RandomSubset
from aesam.parts.policies import Always

STEPS, RHO, ALPHA, K, BETA, SEED = 16, 0.3, 0.5, 3, 0.6, 5


class Forked(nn.Module):
    """One layer is used twice, one on process 0 only and one on process 1 only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.twice, self.rank = nn.Linear(3, 3).double(), 0
        self.own = nn.ModuleList([nn.Linear(3, 2).double() for _ in range(2)])

    def forward(self, x):
        return self.own[self.rank](self.twice(torch.tanh(self.twice(x))))


@dataclass(frozen=True)
class Case:
    """A way to train; gradients arrive at parameters in all of these."""

    method: str
    views: bool = False
    form: str = "closure"
    micro: int = 1
    synchronise: str = "last"
    model: type = mlp
    set_to_none: bool = True
    normalize: bool = True


CASES = {
    "sam": Case("sam"),
    "ae-sam": Case("ae-sam", views=True, form="own passes"),
    "looksam": Case("looksam"),
    "ae-looksam": Case("ae-looksam", views=True, set_to_none=False),
    "random tensors": Case("subset"),
    "micro-batches under no_sync": Case("sam", form="own passes", micro=2),
    "micro-batches under no_sync, views": Case("ae-sam", views=True, micro=2),
    "micro-batches that all synchronise": Case("looksam", micro=2, synchronise="each"),
    "a scaler": Case("ae-looksam", form="scaler", micro=2),
    "unused, shared and hooked parameters": Case("sam", views=True, model=Forked),
    "a bare step, replayed": Case("ae-looksam", form="replay", micro=2),
    "a bare step under a scaler": Case("sam", form="replay, scaler", normalize=False),
    "cleared by the model": Case("looksam", form="own passes, cleared by the model"),
}


def rows_of(rank, part, case):
    size = 4 // case.micro
    return slice(4 * rank + part * size, 4 * rank + (part + 1) * size)


def loss_of(problem, rank, t, part, case):
    return problem.losses(t, rows_of(rank, part, case)).mean() / case.micro


# By hand, in one process ------------------------------------------------------------------------


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors])


class ByHand:
    """Both shards' gradients, both epsilons, and the average of the second gradients."""

    def __init__(self, case):
        self.case, self.model = case, case.model()
        self.problem = Problem(self.model)
        self.params = list(self.model.parameters())
        self.base = torch.optim.SGD(self.params, lr=0.1, momentum=0.9)
        self.draw = torch.Generator().manual_seed(SEED)
        self.averages = [[0.0, math.exp(-10)] for _ in range(3)]  # of x, and of each process's own
        self.reused = None

    def gradient(self, rank, t):
        """The process's own, over its micro-batches, as one vector; zeros where it has none."""
        self.model.rank = rank
        parts = range(self.case.micro)
        loss = sum(loss_of(self.problem, rank, t, part, self.case) for part in parts)
        found = torch.autograd.grad(loss, self.params, allow_unused=True)
        hooked = 2.0 if self.case.model is Forked else 1.0
        pairs = zip(found, self.params, strict=True)
        return flat([torch.zeros_like(p) if g is None else hooked * g for g, p in pairs])

    def fires(self, t, x, averages):
        if self.case.method in ("sam", "subset"):
            return True
        if self.case.method == "looksam":
            return t % K == 0
        mean, variance = averages
        averages[0] = mean = 0.9 * mean + 0.1 * x
        averages[1] = variance = 0.9 * variance + 0.1 * (x - mean) ** 2
        start, end = (1.0, -1.0) if self.case.method == "ae-sam" else (2.0, 0.0)
        c = t / TOTAL_STEPS * end + (1 - t / TOTAL_STEPS) * start
        return x >= mean + c * math.sqrt(variance)

    def epsilon(self, own, chosen):
        masked = torch.where(chosen, own, 0.0)
        gain = 1.0 / BETA if self.case.method == "subset" else 1.0
        if not self.case.normalize:
            return RHO * gain * masked
        return RHO * gain * masked / masked.norm() if masked.norm() > 0 else masked

    def chosen(self):
        """The numbers that take part in the ascent: of all tensors, or of those that are drawn."""
        if self.case.method != "subset":
            return flat([torch.ones_like(p) for p in self.params]).bool()
        draws = torch.rand(len(self.params), generator=self.draw, dtype=torch.float64)
        pairs = zip(draws.tolist(), self.params, strict=True)
        return flat([torch.full_like(p, draw < BETA) for draw, p in pairs]).bool()

    def at(self, vector):
        with torch.no_grad():
            ends = torch.tensor([p.numel() for p in self.params]).cumsum(0)[:-1]
            for p, part in zip(self.params, vector.tensor_split(ends), strict=True):
                p.copy_(part.view_as(p))

    def step(self, t):
        w = flat(weights(self.model))
        own = [self.gradient(rank, t) for rank in range(2)]
        g = (own[0] + own[1]) / 2
        squares = [v.square().sum().item() for v in (g, *own)]
        asked = [
            self.fires(t, x, averages) for x, averages in zip(squares, self.averages, strict=True)
        ]
        d = self.second(t, w, g, own) if asked[0] else self.between(g)
        self.at(w)
        for p, part in zip(self.params, self.split(d), strict=True):
            p.grad = part.view_as(p).clone()
        self.base.step()
        return asked

    def split(self, vector):
        return vector.split([p.numel() for p in self.params])

    def second(self, t, w, g, own):
        chosen, second = self.chosen(), []
        for rank in range(2):
            self.at(w + self.epsilon(own[rank], chosen))
            second.append(self.gradient(rank, t))
        d = (second[0] + second[1]) / 2
        self.reused = d - (g @ d) / (g @ g) * g
        return d

    def between(self, g):
        if "look" not in self.case.method or self.reused is None:
            return g
        return g + ALPHA * g.norm() / self.reused.norm() * self.reused


# The library, in two processes ------------------------------------------------------------------


def new_optimizer(case, model, local=True):
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if case.method == "subset":
        ascent = RandomSubset(BETA, SEED)
        return aesam.SharpnessAware(
            base, model, policy=Always(), ascent=ascent, rho=RHO, local_ascent=local
        )
    replay = "replay" in case.form
    return METHODS[case.method](
        base, model, rho=RHO, normalize=case.normalize, replay=replay, local_ascent=local
    )


class LossInside(nn.Module):
    """A model that returns the loss, so that replaying it is SAM itself."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return (self.net(x) - y).square().sum(1).mean() / 2


def take_step(case, opt, model, backward, scaler):
    """One step in the case's form; ``backward`` runs all micro-batches."""
    if case.form == "closure":

        def closure():
            opt.zero_grad(case.set_to_none)
            backward()
            return torch.zeros(())

        opt.step(closure)
        return
    backward()
    if "replay" not in case.form and opt.needs_second_pass(grad_scale=scaler.get_scale()):
        opt.zero_grad()  # which is allowed here
        with opt.perturbed():
            backward()
    scaler.step(opt)
    scaler.update()
    (model if "model" in case.form else opt).zero_grad()


def train(rank, case, local):
    net = case.model()
    net.rank = rank
    unused = case.model is Forked
    model = DistributedDataParallel(
        LossInside(net) if "replay" in case.form else net,
        gradient_as_bucket_view=case.views,
        find_unused_parameters=unused,
    )
    opt = new_optimizer(case, model, local)
    if unused:
        for p in net.parameters():
            p.register_hook(lambda g: 2.0 * g)  # after the optimizer was made
    problem, used = Problem(model), []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in case.form)

    def loss(t, part):
        if "replay" not in case.form:
            return loss_of(problem, rank, t, part, case)
        rows = rows_of(rank, part, case)
        return model(problem.x[t][rows], problem.y[t][rows]) / case.micro

    def run(t):
        for part in range(case.micro):
            last = case.synchronise == "each" or part == case.micro - 1
            with nullcontext() if last else model.no_sync():
                scaler.scale(loss(t, part)).backward()
        if "replay" in case.form:
            return
        # A gradient that is nobody's to keep: it does not reach p.grad.
        aside = loss_of(Problem(net), rank, t, 0, case)
        torch.autograd.grad(aside, list(net.parameters()), allow_unused=True)

    for t in range(STEPS):
        take_step(case, opt, model, lambda t=t: run(t), scaler)
        used.append(opt.last_step.used_sam)
    assert not opt._ledger.local._decided
    return [w.numpy() for w in weights(net)], used, opt.last_step.squared_norm


def train_all(rank):
    found = {name: train(rank, case, local=True) for name, case in CASES.items()}
    found["without"] = train(rank, CASES["sam"], local=False)
    found["words"] = [words(rank, sparse) for sparse in (False, True)]
    found["refused"] = refused()
    return found


@pytest.fixture(scope="module")
def two_processes():
    return on_processes(train_all)


def difference(found, expected):
    pairs = zip(map(torch.from_numpy, found), expected, strict=True)
    return max((left - right).abs().max().item() for left, right in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_ascent_is_along_each_process_s_own_gradient(name, two_processes, matrix):
    by_hand = ByHand(CASES[name])
    asked = [by_hand.step(t) for t in range(STEPS)]
    for ends, used, _ in (each[name] for each in two_processes):
        assert used == [whole for whole, _, _ in asked]
        assert difference(ends, weights(by_hand.model)) < 1e-10
    matrix.right("DDP", f"local_ascent=True: {name}", within=1e-10)


@pytest.mark.slow
def test_local_ascent_is_another_method_than_without(two_processes):
    by_hand = ByHand(CASES["sam"])
    for t in range(STEPS):
        by_hand.step(t)
    for each in two_processes:
        assert difference(each["without"][0], weights(by_hand.model)) > 1e-3


@pytest.mark.slow
def test_processes_whose_own_norms_disagree_decide_alike(two_processes):
    by_hand = ByHand(CASES["ae-sam"])
    asked = [by_hand.step(t) for t in range(STEPS)]
    assert [a for _, a, _ in asked] != [b for _, _, b in asked]  # they would wait for ever
    (_, left, x), (_, right, y) = (each["ae-sam"] for each in two_processes)
    assert left == right
    assert x == y


def words(rank, sparse):
    """An embedding that sees other words on each process, in two micro-batches."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(6, 3, sparse=sparse), nn.Linear(3, 2)).double()
    model = DistributedDataParallel(net)
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), model, rho=RHO, local_ascent=True)

    def closure():
        opt.zero_grad()
        for part in range(2):
            with model.no_sync() if part == 0 else nullcontext():
                model(torch.tensor([rank, 2 + rank + part])).square().sum().backward()
        return torch.zeros(())

    for _ in range(4):
        opt.step(closure)
    return [w.numpy() for w in weights(net)]


@pytest.mark.slow
def test_sparse_gradients_are_kept_like_dense_ones(two_processes):
    for dense, sparse in (each["words"] for each in two_processes):
        assert difference(sparse, map(torch.from_numpy, dense)) < 1e-12


def refused():
    said = {}
    torch.manual_seed(0)
    model = fully_shard(mlp())
    with pytest.raises(ValueError, match="local_ascent=True needs each process") as caught:
        new_optimizer(CASES["sam"], model)
    said["fsdp2"] = str(caught.value)

    model = DistributedDataParallel(mlp())
    opt, problem = new_optimizer(CASES["sam"], model), Problem(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="has not heard") as caught:
        opt.needs_second_pass()
    said["unheard"] = str(caught.value)
    opt.zero_grad()
    problem.step(opt, 0)

    # A copy hears its own parameters, and a later group and a changed dtype are heard too.
    net, other = copy.deepcopy((model.module, opt))
    late = nn.Parameter(torch.ones(2, dtype=torch.float64))
    other.add_param_group({"params": [late]})
    net.float()
    x = torch.ones(4, 3)

    def closure():
        other.zero_grad()
        loss = (net(x) * late.float()).square().sum()
        loss.backward()
        return loss

    other.step(closure)
    assert other.last_step.used_sam
    return said


@pytest.mark.slow
def test_what_cannot_be_right_is_refused_in_words(two_processes, matrix):
    for said in (each["refused"] for each in two_processes):
        assert "FSDP" in said["fsdp2"]
        assert "first_pass" in said["unheard"]
    matrix.refused("FSDP2", "local_ascent=True", said["fsdp2"])


def test_an_ascent_that_remembers_is_refused():
    class Smoothed(AlongGradient):
        def observe(self, gradient, memory):
            return memory

    base = BASES["sgd"](mlp().parameters())
    with pytest.raises(ValueError, match="cannot be used with Smoothed, which remembers"):
        aesam.SharpnessAware(base, policy=Always(), ascent=Smoothed(), local_ascent=True)
    with pytest.raises(TypeError, match="local_ascent must be"):
        aesam.SAM(base, local_ascent=1)


@pytest.mark.parametrize("group", ["no process group", "a process group of one"])
@pytest.mark.parametrize("method", [*METHODS, "erm by its class"])
def test_of_one_process_both_are_the_same_to_the_bit(method, group):
    make = METHODS.get(method, aesam.ERM)
    if group != "no process group":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ends = []
        for local in (False, True):
            model = mlp()
            opt = make(BASES["sgd"](model.parameters()), model, local_ascent=local)
            Problem(model).train(opt, 10)
            ends.append(weights(model))
            assert ("local_ascent" in repr(opt)) == local
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    assert same(*ends)
