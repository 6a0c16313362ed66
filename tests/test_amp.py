"""Under a loss scaler the step is the step without one, and an overflow leaves no trace."""

import copy

import pytest
import torch
from support.problems import BASES, METHODS, Problem, mlp, same, weights
from support.saved import ours
from torch import nn
from torch.nn import functional as F

import aesam


def scaler(scale=2.0**10):
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)


def scaled_closure(problem, opt, scaling, t):
    if opt.parts.samples.selects_rows:
        return lambda rows=None: problem.losses(t, rows)

    def closure():
        opt.zero_grad()
        loss = problem.losses(t).mean()
        scaling.scale(loss).backward()
        return loss

    return closure


def own_passes(problem, opt, scaling, t):
    with opt.first_pass():
        losses = problem.losses(t)
        scaling.scale(losses.mean()).backward()
    if opt.needs_second_pass(grad_scale=scaling.get_scale(), losses=losses):
        with opt.perturbed() as at:
            rows = at.rows(lambda: problem.losses(t))
            scaling.scale(problem.losses(t, rows).mean()).backward()
    scaling.step(opt)
    opt.zero_grad()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("form", ["closure", "own passes"])
@pytest.mark.parametrize("method", METHODS)
def test_a_scaler_changes_nothing(method, form, normalize, matrix):
    ends, records = [], []
    for scaling in (None, scaler()):
        model = mlp()
        problem = Problem(model)
        opt = METHODS[method](BASES["sgd"](model.parameters()), model, normalize=normalize)
        for t in range(40):
            if scaling is None:
                problem.step(opt, t)
            elif form == "closure":
                opt.step(scaled_closure(problem, opt, scaling, t), scaler=scaling)
                scaling.update()
            else:
                own_passes(problem, opt, scaling, t)
                scaling.update()
        ends.append(torch.cat([w.flatten() for w in weights(model)]))
        records.append(opt.last_step)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)
    assert records[0].used_sam == records[1].used_sam
    assert records[0].squared_norm == pytest.approx(records[1].squared_norm)
    matrix.right("plain PyTorch", f"GradScaler on the CPU, {form}", within=1e-12)


#: AE-LookSAM so that its fourth step takes a second gradient.
EARLY = {"lambda1": -9.0, "lambda2": 2.0, "total_steps": 4}


class OverflowsIn:
    """A model's losses, infinite in the n-th pass of the next step."""

    def __init__(self, problem, opt, scaling, broken_pass):
        self.passes, self.broken = 0, broken_pass
        self.problem, self.opt, self.scaling = problem, opt, scaling

    def __call__(self):
        self.passes += 1
        self.opt.zero_grad()
        loss = self.problem.losses(3).mean()
        factor = float("inf") if self.passes == self.broken else 1.0
        self.scaling.scale(loss * factor).backward()
        return loss


@pytest.mark.parametrize("form", ["closure", "own passes"])
@pytest.mark.parametrize("broken_pass", [1, 2])
@pytest.mark.parametrize("method", ["sam", "ss-sam", "looksam", "ae-sam", "ae-looksam"])
def test_an_overflow_in_either_pass_leaves_no_trace(method, broken_pass, form, matrix):
    model = mlp()
    problem, scaling = Problem(model), scaler()
    options = EARLY if method == "ae-looksam" else {}
    opt = METHODS[method](BASES["sgd"](model.parameters()), model, **options)
    for t in range(3):
        opt.step(scaled_closure(problem, opt, scaling, t), scaler=scaling)
        scaling.update()
    before, kept = weights(model), copy.deepcopy(opt.state_dict())
    step = OverflowsIn(problem, opt, scaling, broken_pass)
    if form == "closure":
        opt.step(step, scaler=scaling)
    else:
        step()
        if opt.needs_second_pass(grad_scale=scaling.get_scale()):
            with opt.perturbed():
                step()
        scaling.step(opt)
    if step.passes < broken_pass:
        pytest.fail(f"{method} took no second pass: choose a step where it does")
    assert same(before, weights(model))
    scaling.update()
    assert scaling.get_scale() == 2.0**9
    opt.step(scaled_closure(problem, opt, scaling, 3), scaler=scaling)
    assert opt.skipped_steps == ours(kept)["counts"]["skipped"] + 1

    twin_model = mlp()
    twin_problem = Problem(twin_model)
    other = METHODS[method](BASES["sgd"](twin_model.parameters()), twin_model, **options)
    twin_problem.train(other, 4)
    for found, wanted in zip(weights(model), weights(twin_model), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert opt.last_step.index == 3
    matrix.right("plain PyTorch", "GradScaler on the CPU, overflow in either pass", within=1e-12)


def test_scaler_step_with_a_closure_is_refused_with_the_way_that_works(matrix):
    model = mlp()
    problem, scaling = Problem(model), scaler()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    before = weights(model)
    scaling.scale(problem.losses(0).mean()).backward()
    with pytest.raises(RuntimeError, match=r"opt\.step\(closure, scaler=scaler\)") as told:
        scaling.step(opt, scaled_closure(problem, opt, scaling, 0))
    assert same(before, weights(model))
    matrix.refused("plain PyTorch", "scaler.step(opt, closure)", told.value)


def test_unscaling_between_the_passes_is_refused(matrix):
    model = mlp()
    problem, scaling = Problem(model), scaler()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    scaling.scale(problem.losses(0).mean()).backward()
    assert opt.needs_second_pass(grad_scale=scaling.get_scale())
    scaling.unscale_(opt)
    before = weights(model)
    with pytest.raises(RuntimeError, match="Unscale and clip after") as told, opt.perturbed():
        scaling.scale(problem.losses(0).mean()).backward()
    assert same(before, weights(model))
    matrix.refused("plain PyTorch", "unscale_ or clipping between the passes", told.value)


def test_clipping_between_the_passes_is_refused():
    model = mlp()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    Problem(model).losses(0).mean().backward()
    assert opt.needs_second_pass()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(RuntimeError, match="Unscale and clip after"), opt.perturbed():
        pass


def test_a_disabled_scaler_is_no_scaler():
    ends = []
    for scaling in (None, torch.amp.GradScaler("cpu", enabled=False)):
        model = mlp()
        problem = Problem(model)
        opt = aesam.LookSAM(BASES["sgd"](model.parameters()), model)
        for t in range(6):
            opt.step(problem.closure(opt, t), scaler=scaling)
        ends.append(weights(model))
    assert same(*ends)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_grad_scale_is_refused(scale):
    model = mlp()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    Problem(model).losses(0).mean().backward()
    with pytest.raises(ValueError, match="grad_scale"):
        opt.needs_second_pass(grad_scale=scale)


def test_the_direction_can_be_clipped_after_unscaling():
    model = mlp()
    problem, scaling = Problem(model), scaler()
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=1.0), model)
    before = weights(model)
    scaling.scale(100 * problem.losses(0).mean()).backward()
    assert opt.needs_second_pass(grad_scale=scaling.get_scale())
    with opt.perturbed():
        scaling.scale(100 * problem.losses(0).mean()).backward()
    scaling.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaling.step(opt)
    moved = [a - b for a, b in zip(weights(model), before, strict=True)]
    assert torch.cat([m.flatten() for m in moved]).norm().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("form", ["closure", "own passes"])
def test_autocast_in_bfloat16_is_sam_by_hand(form, matrix):
    torch.manual_seed(0)
    x, y = torch.randn(16, 3), torch.randn(16, 2)
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), model, rho=0.5)

    def backward(net):
        with torch.autocast("cpu", torch.bfloat16):
            loss = (net(x) - y).square().mean()
        loss.backward()
        return loss

    def closure():
        opt.zero_grad()
        return backward(model)

    for _ in range(20):
        if form == "closure":
            opt.step(closure)
        else:
            closure()
            assert opt.needs_second_pass()
            with opt.perturbed():
                backward(model)
            opt.step()
        twin.zero_grad()
        backward(twin)
        gradients = [p.grad.clone() for p in twin.parameters()]
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        before = weights(twin)
        with torch.no_grad():
            for p, g in zip(twin.parameters(), gradients, strict=True):
                p.add_(0.5 * g / norm)
        twin.zero_grad()
        backward(twin)
        with torch.no_grad():
            for p, w in zip(twin.parameters(), before, strict=True):
                p.copy_(w - 0.1 * p.grad)
    for left, right in zip(weights(model), weights(twin), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-4)
    matrix.right("plain PyTorch", f"bfloat16 autocast, {form}", within=1e-4)


def test_autocast_in_bfloat16_trains():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    opt = aesam.AELookSAM(torch.optim.SGD(model.parameters(), lr=0.1), model, total_steps=20)
    x, y = torch.randn(16, 3), torch.randn(16, 2)

    def closure():
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    first = opt.step(closure).item()
    for _ in range(19):
        last = opt.step(closure).item()
    assert last < first


@pytest.mark.parametrize("form", ["closure", "own passes"])
def test_an_autocast_region_around_both_passes_sees_the_moved_weights(form):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), model, rho=1.0)
    seen = []

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        seen.append(loss.item())
        return loss

    with torch.autocast("cpu", torch.bfloat16):
        if form == "closure":
            opt.step(closure)
        else:
            closure()
            assert opt.needs_second_pass()
            with opt.perturbed():
                closure()
            opt.step()
        at_new_weights = F.cross_entropy(model(x), y).item()
    assert seen[1] > seen[0] + 0.1
    assert at_new_weights not in seen


@pytest.mark.parametrize("factor", [1e-30, 1e-25, 1e15])
def test_a_scaler_s_check_is_silent_where_nothing_was_changed(factor):
    w = nn.Parameter(torch.ones(2))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.0))
    scaling = torch.amp.GradScaler("cpu")

    def closure():
        opt.zero_grad()
        loss = (w * w).sum() * factor
        scaling.scale(loss).backward()
        return loss

    opt.step(closure, scaler=scaling)
    assert opt.last_step.index == 0


def scaled(scaling, problem, t=0):
    scaling.scale(problem.losses(t).mean()).backward()


def test_unscaling_before_the_decision_is_refused_by_it():
    model = mlp()
    problem, scaling = Problem(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    scaled(scaling, problem)
    scaling.unscale_(opt)
    with pytest.raises(RuntimeError, match="unscaled between backward"):
        opt.needs_second_pass(grad_scale=scaling.get_scale())


def test_unscaling_before_a_decision_without_the_scale_is_refused_too():
    model = mlp()
    problem, scaling = Problem(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    scaled(scaling, problem)
    scaling.unscale_(opt)
    with pytest.raises(RuntimeError, match="the gradients were changed"):
        opt.needs_second_pass()


def test_a_scale_that_was_not_given_is_noticed():
    model = mlp()
    problem, scaling = Problem(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = aesam.AESAM(BASES["sgd"](model.parameters()), model, total_steps=9, lambda1=1, lambda2=9)
    scaled(scaling, problem)
    assert not opt.needs_second_pass()
    with pytest.raises(RuntimeError, match=r"grad_scale=scaler\.get_scale\(\)"):
        scaling.step(opt)


def test_a_disabled_scaler_may_be_given_a_closure():
    model = mlp()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    torch.amp.GradScaler("cpu", enabled=False).step(opt, problem.closure(opt, 0))
    assert opt.last_step.index == 0


def test_a_scale_of_one_needs_no_word():
    model = mlp()
    opt, problem = aesam.SAM(BASES["sgd"](model.parameters()), model), Problem(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(problem.losses(0).mean()).backward()
    assert opt.needs_second_pass()
    with opt.perturbed():
        scaler.scale(problem.losses(0).mean()).backward()
    scaler.step(opt)
    assert opt.last_step.index == 0
