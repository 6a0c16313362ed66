"""Facts that are easily lost: each was wrong once."""

import copy
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.problems import BASES, METHODS, Problem, mlp, same, weights
from torch import nn
from torch.nn import functional as F

import aesam
from aesam.parts.policies import Always, Decision, Never, Policy


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


def step_along(opt, w, *gradients):
    w.grad = gradients[0].clone()
    if opt.needs_second_pass():
        with opt.perturbed():
            w.grad = gradients[1].clone()
    opt.step()


@pytest.mark.parametrize("size", [1e-30, 1e-22, 1e18, 1e22])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_looksam_makes_no_nan_of_finite_gradients(size, dtype):
    w = nn.Parameter(torch.zeros(2, dtype=dtype))
    opt = aesam.LookSAM(torch.optim.SGD([w], lr=1e-3), k=2)
    first, second = (torch.tensor(g).to(dtype) * size for g in ([3.0, 4.0], [4.0, 3.0]))
    step_along(opt, w, first, second)
    step_along(opt, w, first)
    assert torch.isfinite(w).all()
    assert opt.skipped_steps == 0


@pytest.mark.parametrize("size", [300.0, 1.0, 1e-3])
def test_looksam_s_products_of_half_precision_have_room(size):
    w = nn.Parameter(torch.ones(2, dtype=torch.float16))
    opt = aesam.LookSAM(torch.optim.SGD([w], lr=1e-4), k=2)
    step_along(
        opt, w, torch.tensor([3.0, 4.0]).half() * size, torch.tensor([4.0, 3.0]).half() * size
    )
    kept = opt.state_dict()["aesam"]["between"]["tensors"][0]
    expected = size * torch.tensor([4 - 0.96 * 3, 3 - 0.96 * 4])
    torch.testing.assert_close(kept.float(), expected, rtol=5e-3, atol=2e-3 * size)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 1e-5), (torch.float32, 1e-40)])
def test_a_radius_over_a_tiny_norm_may_exceed_the_dtype(dtype, size):
    w = nn.Parameter(torch.zeros(2, dtype=dtype))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.0), rho=2.0)
    w.grad = torch.tensor([size, 0.0]).to(dtype)
    assert opt.needs_second_pass()
    with opt.perturbed():
        torch.testing.assert_close(w.detach().float(), torch.tensor([2.0, 0.0]), rtol=0.1, atol=0)


def test_a_base_with_a_rho_of_its_own_is_refused():
    with pytest.raises(TypeError, match="Adadelta has a setting rho of its own"):
        aesam.SAM(torch.optim.Adadelta([nn.Parameter(torch.zeros(1))]))


def test_numpy_s_numbers_are_numbers():
    model = mlp()
    problem = Problem(model)
    options = {"total_steps": np.int64(10), "lambda1": np.float64(-1), "delta": np.float32(0.9)}
    opt = aesam.AELookSAM(BASES["sgd"](model.parameters()), model, alpha=np.float64(0.5), **options)
    problem.train(opt, 4)
    saved = opt.state_dict()
    opt.load_state_dict(saved)
    for section in ("policy", "between", "ascent"):
        assert all(
            type(v) in (int, float, bool) for v in saved["aesam"][section]["settings"].values()
        )


def test_radii_of_groups_survive_a_plain_checkpoint_in_the_base():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    plain = torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.7)
    opt = aesam.SAM(
        torch.optim.SGD([{"params": [a], "rho": 0.0}, {"params": [b]}], lr=0.1), rho=0.2
    )
    for twin in (opt, copy.deepcopy(opt)):
        twin.base.load_state_dict(plain.state_dict())
        assert [g["rho"] for g in twin.param_groups] == [0.0, 0.2]
        assert twin.param_groups[0]["lr"] == 0.7
        twin.load_state_dict(twin.state_dict())


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


def test_the_state_of_another_base_optimizer_is_refused():
    model = mlp()
    problem = Problem(model)
    made = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW(model.parameters()),
        "rmsprop": lambda: torch.optim.RMSprop(model.parameters()),
    }
    for name, base in made.items():
        opt = aesam.SAM(base())
        problem.train(opt, 1)
        for other in set(made) - {name}:
            target = aesam.SAM(made[other]())
            before = repr(target.state_dict())
            with pytest.raises(ValueError, match="missing keys"):
                target.load_state_dict(opt.state_dict())
            assert repr(target.state_dict()) == before


def test_an_expanded_buffer_is_no_obstacle():
    model = mlp()
    model.register_buffer("mask", torch.zeros(1, 8).expand(4, 8))
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    Problem(model).train(opt, 2)
    assert opt.last_step.index == 1


def scaled(scaling, problem, t=0):
    scaling.scale(problem.losses(t).mean()).backward()


@pytest.mark.parametrize("with_scale", [True, False])
def test_unscaling_before_the_decision_is_refused_before_anything_is_applied(with_scale):
    model = mlp()
    problem, scaling = Problem(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    before = weights(model)
    scaled(scaling, problem)
    scaling.unscale_(opt)
    assert opt.needs_second_pass(grad_scale=scaling.get_scale() if with_scale else 1.0)
    with opt.perturbed():
        scaled(scaling, problem)
    with pytest.raises(RuntimeError, match="scale"):
        scaling.step(opt)
    assert same(before, weights(model))


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


def test_a_missing_backward_is_said_once():
    model = mlp()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    with pytest.warns(UserWarning, match="does the closure call backward"):
        opt.step(lambda: problem.losses(0).mean())
    opt.step(lambda: problem.losses(0).mean())
    assert opt.last_step.index == 1


def test_a_model_that_is_not_the_one_trained_is_noticed():
    with pytest.warns(UserWarning, match="none of the optimizer's parameters"):
        aesam.SAM(BASES["sgd"](mlp().parameters()), mlp())


@pytest.mark.parametrize(
    "answer", [True, (True, {}), (Decision(True), {"n": True}), (Decision(True), {})]
)
def test_a_policy_s_answer_that_could_not_be_saved_is_refused_at_once(answer):
    @dataclass(frozen=True)
    class Odd(Policy):
        def start(self):
            return {"n": 0.0}

        def decide(self, now, state):
            return answer

    model = mlp()
    opt = aesam.SharpnessAware(BASES["sgd"](model.parameters()), policy=Odd())
    with pytest.raises(TypeError, match="Odd.decide must return"):
        Problem(model).step(opt, 0)


def test_a_policy_may_answer_with_numpy_s_bool():
    class Odd(Policy):
        def decide(self, now, state):
            return Decision(np.bool_(True)), state

    model = mlp()
    opt = aesam.SharpnessAware(BASES["sgd"](model.parameters()), policy=Odd())
    Problem(model).step(opt, 0)
    assert type(opt.state_dict()["aesam"]["counts"]["sam"]) is int
    assert opt.last_step.used_sam is True


def test_settings_of_every_part_are_compared_on_load_but_not_seeds():
    model = mlp()
    opt = aesam.ESAM(BASES["sgd"](model.parameters()), model, gamma=0.5, seed=1)
    other = aesam.ESAM(BASES["sgd"](model.parameters()), model, gamma=0.7, seed=2)
    with pytest.warns(UserWarning, match="samples.gamma=0.5") as caught:
        other.load_state_dict(opt.state_dict())
    assert len(caught) == 1


def test_gradients_put_in_place_of_those_decided_on_are_noticed():
    model = mlp()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    Problem(model).losses(0).mean().backward()
    assert opt.needs_second_pass()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match="gradients were changed"), opt.perturbed():
        pass


def test_an_error_in_a_hook_or_in_the_base_counts_as_a_skipped_step():
    model = mlp()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)

    def refuse(*_):
        raise ZeroDivisionError

    handle = opt.register_step_pre_hook(refuse)
    with pytest.raises(ZeroDivisionError):
        problem.step(opt, 0)
    handle.remove()
    assert opt.skipped_steps == 1
    problem.step(opt, 0)
    assert opt.last_step.index == 0


def test_an_abandoned_first_pass_does_not_lend_its_masks():
    model = mlp()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    with opt.first_pass():
        torch.rand(3)
    model.zero_grad()
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    with opt.first_pass():
        Problem(model).losses(0).mean().backward()
    assert opt.needs_second_pass()
    with opt.perturbed():
        assert torch.equal(torch.rand(3), expected)


def test_messages_name_the_call_and_the_argument():
    model = mlp()
    base = BASES["sgd"](model.parameters())
    opt = aesam.SAM(base, model)
    with opt.first_pass(), pytest.raises(RuntimeError, match=r"step\(\) inside"):
        opt.step(lambda: 0.0)
    with pytest.raises(TypeError, match="grad_scale"):
        opt.needs_second_pass(grad_scale=None)
    with pytest.raises(ValueError, match="seed"):
        aesam.SSSAM(base, seed=2**70)
    with pytest.raises(TypeError, match="total_steps must be given"):
        aesam.AESAM(base)
    with pytest.raises(TypeError, match="ascent must be"):
        aesam.SharpnessAware(base, policy=Always(), ascent=0)


def test_a_refused_constructor_leaves_the_groups_alone():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    base = torch.optim.SGD([{"params": [a]}, {"params": [b], "rho": -1.0}], lr=0.1)
    with pytest.raises(ValueError, match="rho of a parameter group"):
        aesam.SAM(base)
    assert "rho" not in base.param_groups[0]


def test_buffers_of_replaced_parameters_are_let_go():
    opt = aesam.SAM(torch.optim.SGD([nn.Parameter(torch.zeros(3)) for _ in range(2)], lr=0.1))
    for _ in range(20):
        fresh = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
        opt.param_groups[0]["params"] = fresh
        opt.step(lambda rows=None, fresh=fresh: (fresh[0] + fresh[1]).square() + fresh[0])
    assert len(opt._ledger.workspace._free) <= 6


@pytest.mark.parametrize(
    "optimizer", ["Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
)
def test_every_torch_optimizer_is_itself_under_never(optimizer):
    ends = []
    for wrapped in (False, True):
        model = mlp()
        problem = Problem(model)
        base = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
        opt = aesam.SharpnessAware(base, model, policy=Never())
        for t in range(5):
            if wrapped:
                problem.step(opt, t)
            else:
                base.zero_grad()
                problem.losses(t).mean().backward()
                base.step()
        ends.append(weights(model))
    assert same(*ends)


def test_methods_named_here_are_those_of_the_table():
    assert set(METHODS) == {"erm", "sam", "ss-sam", "looksam", "ae-sam", "ae-looksam", "esam"}
    assert math.isclose(
        aesam.AESAM(BASES["sgd"](mlp().parameters()), total_steps=1).policy.delta, 0.9
    )
