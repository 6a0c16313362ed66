"""A process that dies in either pass: the others fail soon, and the checkpoint goes on."""

import os

import pytest
import torch
from support.fixtures_faults import WHOLE
from support.problems import METHODS, Problem, mlp, weights
from support.processes import on_processes
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.slow

SAVED_AT, DIES_AT, STEPS = 6, 9, 14
#: Settings with a second gradient at the step at which one dies; LookSAM's is every third.
ALL_STEPS = {"rho": 0.2, "lambda1": -99.0, "lambda2": -99.0}
FIRES_AT_9 = {
    "erm": {},
    "ss-sam": {"rho": 0.2, "p": 1.0},
    "ae-sam": ALL_STEPS,
    "ae-looksam": ALL_STEPS,
}
TIMEOUT = 20.0  # of the process group, in seconds
SHORT = [("looksam", 2, 1)]
#: Method, the pass in which a process dies, and which of the two; ESAM's losses are no closure.
ALL = [
    (method, which, dying)
    for method in METHODS
    if method != "esam"
    for which in (1, 2)
    for dying in (0, 1)
    if (method, which) != ("erm", 2)
]


def new_optimizer(method, model):
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return METHODS[method](base, model, **FIRES_AT_9.get(method, {"rho": 0.2}))


def save(model, opt, path):
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, path)


def train_until_one_dies(rank, method, which, dying, path):
    model = DistributedDataParallel(net := mlp())
    opt, problem = new_optimizer(method, model), Problem(model)
    problem.x, problem.y = problem.x[:, rank::2], problem.y[:, rank::2]
    for t in range(DIES_AT):
        if t == SAVED_AT and rank == 0:
            save(net, opt, path)
        problem.step(opt, t)
    before, moved = weights(net), []

    def closure():
        opt.zero_grad()
        moved.append(not torch.equal(weights(net)[0], before[0]))
        if rank == dying and len(moved) == which:
            os._exit(1)
        loss = problem.losses(DIES_AT).mean()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError) as caught:
        opt.step(closure)
    assert moved == [False, True][:which]
    assert all(map(torch.equal, weights(net), before))
    if which == 2:
        assert all(p.grad is None for p in net.parameters())
        assert opt.skipped_steps == 1
    assert opt.last_step.index == DIES_AT - 1
    return str(caught.value)


@pytest.mark.parametrize(("method", "which", "dying"), ALL if WHOLE else SHORT)
def test_the_others_fail_at_w_and_one_process_goes_on_from_the_checkpoint(
    method, which, dying, tmp_path, matrix, faults
):
    path = tmp_path / "last.pt"
    (said,) = on_processes(
        train_until_one_dies, method, which, dying, path, hear=1, seconds=TIMEOUT
    )
    assert "closed" in said or "imed out" in said or "reset" in said

    model, whole = mlp(1), mlp()
    opt, all_along = new_optimizer(method, model), new_optimizer(method, whole)
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    Problem(model).train(opt, STEPS - SAVED_AT, start=SAVED_AT)
    Problem(whole).train(all_along, STEPS)
    for left, right in zip(weights(model), weights(whole), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
    assert opt.last_step.index == all_along.last_step.index == STEPS - 1
    faults.held("a dying rank", 1, "the other fails soon, at w; one goes on from the checkpoint")
    if (method, which, dying) in SHORT:
        right = "a process dies in pass 2, one goes on from the checkpoint"
        matrix.right("DDP", right, within=1e-10)
