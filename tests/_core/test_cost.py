"""Memory and host synchronisations, counted, not timed."""

import gc
from collections import Counter

import pytest
import torch
from support.host_waits import HostReads, waits
from support.problems import BASES, METHODS, AboveAverageLoss, Problem, mlp
from support.saved import ours
from torch import distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

import aesam
from aesam._core import tensors

SIZE = 1 << 18
COPIES = {"sam": 1.0, "ss-sam": 1.0, "ae-sam": 1.0, "esam": 1.0, "looksam": 3.0, "ae-looksam": 3.0}


def peak_bytes(step):
    """The highest sum of allocations less deallocations while ``step`` runs."""
    gc.collect()  # what an earlier optimizer held must not be let go of meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = recorded.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    level = peak = 0
    for _, change in changes:
        level += change
        peak = max(peak, level)
    return peak


def backward(params):
    for p in params:
        p.grad = torch.rand_like(p)


def steps_of(opt, params):
    """Three steps, each with a second gradient wherever the method takes one."""

    def run():
        for _ in range(3):
            backward(params)
            if opt.needs_second_pass(losses=torch.ones(2)):
                with opt.perturbed():
                    backward(params)
            opt.step()
            opt.zero_grad()

    return run


def base_steps(base, params):
    def run():
        for _ in range(3):
            backward(params)
            base.step()
            base.zero_grad()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("method", COPIES)
def test_extra_peak_memory_is_within_its_number_of_copies(method):
    def params():
        torch.manual_seed(0)
        return [nn.Parameter(torch.randn(SIZE // 4)) for _ in range(4)]

    plain = params()
    base = peak_bytes(base_steps(torch.optim.SGD(plain, lr=0.1, momentum=0.9), plain))
    own = params()
    always = {"k": 1} if method == "looksam" else {}
    if method.startswith("ae"):
        always = {"lambda1": -9.0, "lambda2": -9.0}
    opt = METHODS[method](torch.optim.SGD(own, lr=0.1, momentum=0.9), **always)
    extra = (peak_bytes(steps_of(opt, own)) - base) / (4 * SIZE)
    assert ours(opt.state_dict())["counts"]["sam"] > 0
    assert COPIES[method] - 0.5 < extra <= COPIES[method] + 0.01


@pytest.mark.parametrize("method", ["erm", "sam", "looksam", "ae-sam", "ae-looksam"])
def test_one_host_synchronisation_a_step_and_one_more_with_a_second_gradient(method, monkeypatch):
    """At most: where there is a device to wait for, some wait once (``test_waiting``)."""
    model = mlp()
    problem = Problem(model)
    opt = METHODS[method](torch.optim.SGD(model.parameters(), lr=0.1), model)
    transfers, to_host, seen = [], tensors.to_host, Counter()
    monkeypatch.setattr(tensors, "to_host", lambda v: transfers.append(1) or to_host(v))
    for t in range(40):
        waited, needed = waits(opt, problem, t, transfers)
        assert waited == 1 + needed
        seen[needed] += 1
    assert set(seen) == {"erm": {False}, "sam": {True}}.get(method, {True, False})


def test_a_loss_averaged_over_processes_comes_in_the_norm_s_own_transfer(monkeypatch):
    transfers, to_host = [], tensors.to_host
    monkeypatch.setattr(tensors, "to_host", lambda v: transfers.append(len(v)) or to_host(v))
    reduced, all_reduce = [], dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", lambda t, **o: reduced.append(1) or all_reduce(t, **o))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = mlp()
        base = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = aesam.SharpnessAware(base, model, policy=AboveAverageLoss())
        loss = Problem(model).losses(0).mean()
        loss.backward()
        with HostReads() as other:
            opt.needs_second_pass(loss=loss)
    finally:
        dist.destroy_process_group()
    # The norm, the loss, and whether gradients were changed after the backward.
    assert (reduced, transfers, other.count) == ([1], [3], 0)


def test_buffers_are_used_again_from_step_to_step():
    model = mlp()
    problem = Problem(model)
    opt = METHODS["sam"](BASES["sgd"](model.parameters()), model)
    problem.train(opt, 2)
    kept = set(map(id, opt._ledger.workspace.kept))
    problem.train(opt, 3, start=2)
    assert kept
    assert set(map(id, opt._ledger.workspace.kept)) == kept
