"""A process that dies in the second pass: the others fail soon, and the checkpoint goes on."""

import os

import pytest
import torch
from support.problems import METHODS, Problem, mlp, weights
from support.processes import on_processes
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.slow

SAVED_AT, DIES_AT, STEPS = 6, 9, 14  # LookSAM with k = 3 takes its second gradient at 9
TIMEOUT = 20.0  # of the process group, in seconds


def new_optimizer(model):
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return METHODS["looksam"](base, model, rho=0.2)


def save(model, opt, path):
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, path)


def train_until_one_dies(rank, path):
    model = DistributedDataParallel(net := mlp())
    opt, problem = new_optimizer(model), Problem(model)
    problem.x, problem.y = problem.x[:, rank::2], problem.y[:, rank::2]
    for t in range(DIES_AT):
        if t == SAVED_AT and rank == 0:
            save(net, opt, path)
        problem.step(opt, t)
    before, moved = weights(net), []

    def closure():
        opt.zero_grad()
        if opt._ledger.block == "opt.perturbed()":
            moved.append(not torch.equal(weights(net)[0], before[0]))
            if rank == 1:
                os._exit(1)
        loss = problem.losses(DIES_AT).mean()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError) as caught:
        opt.step(closure)
    assert moved == [True]
    assert all(map(torch.equal, weights(net), before))
    assert all(p.grad is None for p in net.parameters())
    assert opt.skipped_steps == 1
    assert opt.last_step.index == DIES_AT - 1
    return str(caught.value)


def test_the_others_fail_at_w_and_one_process_goes_on_from_the_checkpoint(tmp_path, matrix):
    path = tmp_path / "last.pt"
    (said,) = on_processes(train_until_one_dies, path, hear=1, seconds=TIMEOUT)
    assert "closed" in said or "imed out" in said or "reset" in said

    model, whole = mlp(1), mlp()
    opt, all_along = new_optimizer(model), new_optimizer(whole)
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    Problem(model).train(opt, STEPS - SAVED_AT, start=SAVED_AT)
    Problem(whole).train(all_along, STEPS)
    for left, right in zip(weights(model), weights(whole), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
    assert opt.last_step.index == all_along.last_step.index == STEPS - 1
    matrix.right("DDP", "a process dies in pass 2, one goes on from the checkpoint", within=1e-10)
