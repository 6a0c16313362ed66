"""Several optimizers as one, alone and inside a method."""

import copy
import io
import math
import pickle

import pytest
import pytorch_optimizer
import schedulefree
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.problems import BASES, METHODS, Problem, mlp, same, weights
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.optimizer import register_optimizer_step_pre_hook

import aesam
from aesam import Together

STEPS = 12


def pair(model):
    """torch's Muon for the matrices, AdamW for the rest."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    muon = torch.optim.Muon(matrices, lr=0.05, weight_decay=0.01)
    return muon, torch.optim.AdamW(rest, lr=0.02, weight_decay=0.1)


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# One norm, one decision -------------------------------------------------------------------------


def by_hand(steps, total_steps, rho):
    """AE-SAM around two optimizers that know nothing of each other, line by line."""
    problem = Problem(mlp())
    params = list(problem.model.parameters())
    optimizers = pair(problem.model)
    mean, variance, decisions = 0.0, math.exp(-10), []
    for t in range(steps):
        g = torch.autograd.grad(problem.losses(t).mean(), params)
        x = sum(v.square().sum().item() for v in g)
        mean = 0.9 * mean + 0.1 * x
        variance = 0.9 * variance + 0.1 * (x - mean) ** 2
        c = t / total_steps * -1.0 + (1 - t / total_steps) * 1.0
        decisions.append(x >= mean + c * math.sqrt(variance))
        d = g
        if decisions[-1]:
            before = weights(problem.model)
            with torch.no_grad():
                for p, v in zip(params, g, strict=True):
                    p.add_(v, alpha=rho / math.sqrt(x))
            d = torch.autograd.grad(problem.losses(t).mean(), params)
            with torch.no_grad():
                for p, w in zip(params, before, strict=True):
                    p.copy_(w)
        for p, v in zip(params, d, strict=True):
            p.grad = v
        for optimizer in optimizers:
            optimizer.step()
    return weights(problem.model), decisions


def test_ae_sam_around_muon_and_adamw_is_both_stepped_by_hand(matrix):
    expected, decisions = by_hand(STEPS, STEPS, rho=0.3)
    problem = Problem(mlp())
    together = Together(*pair(problem.model))
    opt = aesam.AESAM(together, problem.model, total_steps=STEPS, rho=0.3)
    found = []
    for t in range(STEPS):
        problem.step(opt, t)
        found.append(opt.last_step.used_sam)
    assert found == decisions
    assert 0 < sum(found) < STEPS
    for left, right in zip(expected, weights(problem.model), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
    matrix.right("Bases", "aesam.Together(muon, adamw)", within=1e-10)


def split_sgd(model, members=2):
    params = list(model.parameters())
    return [BASES["sgd"](params[i::members]) for i in range(members)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("members", [1, 2, 3])
def test_an_optimizer_cut_in_pieces_trains_as_in_one(method, members):
    ends = []
    for cut in (False, True):
        problem = Problem(mlp())
        params = list(problem.model.parameters())
        in_order = [p for i in range(members) for p in params[i::members]]
        base = Together(*split_sgd(problem.model, members)) if cut else BASES["sgd"](in_order)
        opt = METHODS[method](base, problem.model)
        problem.train(opt, STEPS)
        ends.append(weights(problem.model))
    for left, right in zip(*ends, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["sam", "ae-looksam"])
def test_it_is_saved_and_resumed_to_the_bit(method):
    problem = Problem(mlp())
    opt = METHODS[method](Together(*pair(problem.model)), problem.model)
    problem.train(opt, 6)
    saved = saved_and_loaded([problem.model.state_dict(), opt.state_dict()])
    problem.train(opt, 6, start=6)
    again = Problem(mlp(seed=1))
    other = METHODS[method](Together(*pair(again.model)), again.model)
    again.model.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    again.train(other, 6, start=6)
    assert same(weights(problem.model), weights(again.model))


def test_what_is_missing_in_a_group_is_noticed_by_its_member_s_settings():
    problem = Problem(mlp())
    opt = aesam.SAM(Together(*pair(problem.model)), problem.model)
    saved = opt.state_dict()
    for i, key in ((0, "ns_coefficients"), (1, "betas")):
        damaged = copy.deepcopy(saved)
        del damaged["param_groups"][i][key]
        with pytest.raises(ValueError, match=rf"param_groups\[{i}\].*{key}"):
            opt.load_state_dict(damaged)
    opt.load_state_dict(saved)


def test_the_radius_is_in_every_member_s_groups():
    model = mlp()
    muon, adamw = pair(model)
    adamw.param_groups[0]["rho"] = 0.7
    opt = aesam.SAM(Together(muon, adamw), model, rho=0.2)
    assert [g["rho"] for g in opt.param_groups] == [0.2, 0.7]
    muon.load_state_dict(pair(mlp())[0].state_dict())  # a checkpoint from before
    assert [g["rho"] for g in opt.param_groups] == [0.2, 0.7]


def test_a_member_with_a_radius_of_its_own_is_refused_as_base():
    a, b = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    together = Together(torch.optim.SGD([a], lr=0.1), torch.optim.Adadelta([b]))
    with pytest.raises(TypeError, match="Adadelta has a setting rho of its own"):
        aesam.SAM(together)


def test_accelerate_s_round_trip_keeps_members_and_groups_together():
    problem = Problem(mlp())
    muon, adamw = pair(problem.model)
    opt = aesam.SAM(Together(muon, adamw), problem.model)
    problem.train(opt, 2)
    prepared = Accelerator(cpu=True).prepare(opt)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    prepared.param_groups[1]["lr"] = 0.5
    assert adamw.param_groups[0]["lr"] == 0.5
    assert len(opt.state) == 4


# An optimizer of torch --------------------------------------------------------------------------


def train(optimizer, problem, steps, start=0):
    for t in range(start, start + steps):
        optimizer.zero_grad()
        problem.losses(t).mean().backward()
        optimizer.step()


def test_schedulers_reach_the_members():
    model = mlp()
    muon, adamw = pair(model)
    together = Together(muon, adamw)
    scheduler = torch.optim.lr_scheduler.StepLR(together, 1, gamma=0.5)
    train(together, Problem(model), 1)
    scheduler.step()
    assert [muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"]] == [0.025, 0.01]
    with pytest.raises(ValueError, match="momentum"):  # Muon has it, AdamW has not
        torch.optim.lr_scheduler.OneCycleLR(together, 0.1, total_steps=9)
    torch.optim.lr_scheduler.OneCycleLR(together, 0.1, total_steps=9, cycle_momentum=False)


def test_a_step_calls_the_closure_once_and_every_member():
    problem = Problem(mlp())
    together = Together(*pair(problem.model))
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        together.zero_grad()
        loss = problem.losses(0).mean()
        loss.backward()
        return loss

    before = weights(problem.model)
    assert together.step(closure).item() > 0
    assert calls == [True]
    moved = [not torch.equal(a, b) for a, b in zip(before, weights(problem.model), strict=True)]
    assert all(moved)


def test_state_is_that_of_the_members():
    problem = Problem(mlp())
    muon, adamw = pair(problem.model)
    together = Together(muon, adamw)
    matrix, bias, *_ = problem.model.parameters()
    assert len(together.state) == 0
    train(together, problem, 1)
    assert set(together.state) == set(problem.model.parameters())
    assert together.state[bias] is adamw.state[bias]
    together.state[matrix]["mine"] = 1
    assert muon.state[matrix]["mine"] == 1
    del together.state[bias]
    assert bias not in adamw.state
    assert together.state[bias] == {}  # made when asked for, as torch's
    assert bias in adamw.state
    with pytest.raises(KeyError):
        together.state[torch.ones(1)]
    together.state = {bias: {"a": 1}, matrix: {"b": 2}}
    assert (dict(muon.state), dict(adamw.state)) == ({matrix: {"b": 2}}, {bias: {"a": 1}})
    with pytest.raises(KeyError):
        together.state = {torch.ones(1): {}}


def test_its_state_dict_is_one_of_torch_s():
    problem = Problem(mlp())
    muon, adamw = pair(problem.model)
    together = Together(muon, adamw)
    train(together, problem, 3)
    saved = saved_and_loaded(together.state_dict())
    assert set(saved) == {"state", "param_groups"}
    assert list(saved["state"]) == [0, 1, 2, 3]
    assert [g["params"] for g in saved["param_groups"]] == [[0, 1], [2, 3]]
    again = Problem(mlp())
    other = Together(*pair(again.model))
    again.model.load_state_dict(problem.model.state_dict())
    other.load_state_dict(saved)
    train(together, problem, 3, start=3)
    train(other, again, 3, start=3)
    assert same(weights(problem.model), weights(again.model))


def test_a_member_that_refuses_its_part_leaves_all_as_before():
    problem = Problem(mlp())
    together = Together(*pair(problem.model))
    train(together, problem, 2)
    held = [(member.state, member.param_groups) for member in together.members]
    saved = together.state_dict()
    saved["param_groups"][1]["params"] = [2]
    with pytest.raises(ValueError, match="doesn't match the size"):
        together.load_state_dict(saved)
    for member, (state, groups) in zip(together.members, held, strict=True):
        assert member.state is state
        assert member.param_groups is groups
    with pytest.raises(ValueError, match="1 parameter groups were given, and the members have 2"):
        together.load_state_dict({"state": {}, "param_groups": [{"params": []}]})


def test_what_a_member_keeps_for_no_parameter_is_saved_too():
    ends = []
    for interrupted in (False, True):
        problem = Problem(mlp())
        first, second = problem.model[0].parameters(), problem.model[2].parameters()
        together = Together(pytorch_optimizer.MADGRAD(first), pytorch_optimizer.MADGRAD(second))
        train(together, problem, 3)
        if interrupted:  # MADGRAD counts its steps in state["k"]
            saved = saved_and_loaded(together.state_dict())
            first, second = problem.model[0].parameters(), problem.model[2].parameters()
            together = Together(pytorch_optimizer.MADGRAD(first), pytorch_optimizer.MADGRAD(second))
            together.load_state_dict(saved)
            assert together.members[1].state["k"] == 3
        train(together, problem, 3, start=3)
        ends.append(weights(problem.model))
    assert same(*ends)


@pytest.mark.parametrize("fresh", [True, False])
def test_dcp_keeps_it_by_parameter_name(fresh):
    problem = Problem(mlp())
    together = Together(*pair(problem.model))
    train(together, problem, 0 if fresh else 3)
    saved = get_optimizer_state_dict(problem.model, together)
    assert set(saved["state"]) == {name for name, _ in problem.model.named_parameters()}
    again = Problem(mlp())
    other = Together(*pair(again.model))
    again.model.load_state_dict(problem.model.state_dict())
    set_optimizer_state_dict(again.model, other, copy.deepcopy(saved))
    train(together, problem, 3, start=3)
    train(other, again, 3, start=3)
    assert same(weights(problem.model), weights(again.model))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("inside", [False, True])
def test_a_copy_goes_on_by_itself(copied, inside):
    problem = Problem(mlp())
    optimizer = Together(*pair(problem.model))
    scheduled = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    if inside:
        optimizer = aesam.SAM(optimizer, problem.model)
        problem.train(optimizer, 2)
    else:
        train(optimizer, problem, 2)
    scheduled.step()
    model, again = copied((problem.model, optimizer))
    assert [g["lr"] for g in again.param_groups] == [g["lr"] for g in optimizer.param_groups]
    for one, net in ((optimizer, problem.model), (again, model)):
        twin = Problem(net)
        if inside:
            twin.train(one, 3, start=2)
        else:
            train(one, twin, 3, start=2)
    assert same(weights(problem.model), weights(model))


def test_groups_that_come_later_are_last_and_schedulers_find_theirs():
    model = mlp()
    muon, adamw = pair(model)
    together = Together(muon, adamw)
    late = torch.nn.Parameter(torch.ones(2, 2).double())
    with pytest.raises(TypeError, match=r"together\.members\[0\]\.add_param_group"):
        together.add_param_group({"params": [late]})
    muon.add_param_group({"params": [late], "lr": 0.9})
    assert [g["lr"] for g in together.param_groups] == [0.05, 0.02, 0.9]
    late.grad = torch.ones(2, 2).double()
    together.step()
    saved = together.state_dict()
    assert [g["params"] for g in saved["param_groups"]] == [[0, 1], [2, 3], [4]]
    assert list(saved["state"]) == [4]
    together.load_state_dict(saved)
    assert late in muon.state
    together.param_groups = together.param_groups
    assert [g["lr"] for g in muon.param_groups] == [0.05, 0.9]
    only = Together(BASES["sgd"](model.parameters()))
    only.add_param_group({"params": [late]})
    assert len(only.param_groups) == 2
    muon.add_param_group({"params": [extra := torch.nn.Parameter(torch.ones(2, 2).double())]})
    adamw.add_param_group({"params": [extra]})
    with pytest.raises(ValueError, match="in two members"):
        together.step()


def test_hooks_run_around_all_and_global_ones_for_each_member():
    problem = Problem(mlp())
    together = Together(*pair(problem.model))
    seen = []
    together.register_step_pre_hook(lambda *_: seen.append("before"))
    together.register_step_post_hook(lambda *_: seen.append("after"))
    for member in together.members:
        member.register_step_pre_hook(lambda o, *_: seen.append(type(o).__name__))
    every = register_optimizer_step_pre_hook(lambda o, *_: seen.append(f"any {type(o).__name__}"))
    try:
        train(together, problem, 1)
    finally:
        every.remove()
    assert seen == ["before", "any Muon", "Muon", "any AdamW", "AdamW", "after"]
    told = []
    together.register_state_dict_pre_hook(lambda _: told.append("state_dict"))
    together.register_state_dict_post_hook(lambda _, saved: {**saved, "note": 1})
    together.register_load_state_dict_pre_hook(lambda _, saved: told.append(saved["note"]))
    together.register_load_state_dict_post_hook(lambda _: told.append("loaded"))
    together.load_state_dict(together.state_dict())
    assert told == ["state_dict", 1, "loaded"]


@pytest.mark.parametrize("inside", [False, True])
def test_train_and_eval_reach_all_members(inside):
    model = mlp()
    first, second = model[0], model[2]
    members = (
        schedulefree.SGDScheduleFree(first.parameters(), lr=0.1),
        torch.optim.SGD(second.parameters(), lr=0.1),
    )
    opt = Together(*members)
    opt = aesam.SAM(opt) if inside else opt
    opt.train()
    assert members[0].param_groups[0]["train_mode"]
    opt.eval()
    assert not members[0].param_groups[0]["train_mode"]


def test_a_scaler_unscales_all_members_once():
    problem, plain = Problem(mlp()), Problem(mlp())
    together, alone = Together(*pair(problem.model)), Together(*pair(plain.model))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for t in range(3):
        together.zero_grad()
        scaler.scale(problem.losses(t).mean()).backward()
        scaler.step(together)
        scaler.update()
    train(alone, plain, 3)
    assert same(weights(problem.model), weights(plain.model))


def test_a_wrapper_goes_around_it():
    problem = Problem(mlp())
    muon, adamw = pair(problem.model)
    opt = aesam.SAM(pytorch_optimizer.Lookahead(Together(muon, adamw), k=2), problem.model, rho=0.1)
    problem.train(opt, 4)
    saved = saved_and_loaded([problem.model.state_dict(), opt.state_dict()])
    problem.train(opt, 3, start=4)
    again = Problem(mlp(seed=1))
    other = pytorch_optimizer.Lookahead(Together(*pair(again.model)), k=2)
    other = aesam.SAM(other, again.model, rho=0.1)
    again.model.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    again.train(other, 3, start=4)
    assert same(weights(problem.model), weights(again.model))


def test_a_list_of_optimizers_points_to_it():
    with pytest.raises(TypeError, match=r"got several: aesam\.Together\(first, second\)"):
        aesam.SAM(list(pair(mlp())))


def test_it_shows_its_members():
    shown = repr(aesam.SAM(Together(*pair(mlp()))))
    assert "Together (" in shown
    assert "Muon (" in shown
    assert "AdamW (" in shown


def sgd(*params):
    return torch.optim.SGD(params or [torch.nn.Parameter(torch.ones(1))], lr=0.1)


SHARED = torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("members", "kind", "error"),
    [
        (lambda: (), TypeError, "at least one optimizer"),
        (lambda: ([sgd()],), TypeError, "takes optimizers that are made already.*got a list"),
        (lambda: (torch.optim.SGD,), TypeError, "takes optimizers that are made already"),
        (lambda: (aesam.SAM(sgd()), sgd()), TypeError, r"sharpness-aware already \(SAM\)"),
        (lambda: (sgd(SHARED), sgd(SHARED)), ValueError, r"shape \(3,\) is in two members"),
        (lambda: (one := sgd(), one), ValueError, "in two members, SGD and SGD"),
        (lambda: (torch.optim.LBFGS([SHARED]), sgd()), TypeError, "LBFGS takes gradients of its"),
        (
            lambda: (pytorch_optimizer.StableSPAM([SHARED]), sgd()),
            TypeError,
            "StableSPAM has total_step in its state dict",
        ),
        (
            lambda: (pytorch_optimizer.Lookahead(sgd()), sgd()),
            TypeError,
            "Lookahead is wrapped around another optimizer.*put it around Together",
        ),
    ],
)
def test_what_cannot_go_together_is_refused(members, kind, error):
    with pytest.raises(kind, match=error):
        Together(*members())
