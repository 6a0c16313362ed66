"""What a user of torch.optim expects of an optimizer."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from support.problems import BASES, FOR_ANY_MODEL, METHODS, VARIANTS, Problem, mlp, same, weights
from support.saved import ours
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import aesam
from aesam.parts.policies import Always, Never

# Construction -----------------------------------------------------------------------------------


def test_a_base_that_is_no_optimizer_is_refused_with_what_to_pass():
    model = mlp()
    with pytest.raises(TypeError, match=r"got the class SGD: pass SGD\(model.parameters"):
        aesam.SAM(torch.optim.SGD)
    with pytest.raises(TypeError, match="must be a torch.optim.Optimizer instance.*got str"):
        aesam.SAM("sgd")
    with pytest.raises(TypeError, match="LBFGS"):
        aesam.SAM(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(TypeError, match="sharpness-aware already"):
        aesam.SAM(aesam.SAM(BASES["sgd"](model.parameters())))


def test_a_model_that_is_no_module_is_refused():
    model = mlp()
    with pytest.raises(TypeError, match="model must be the torch.nn.Module.*got list"):
        aesam.SAM(BASES["sgd"](model.parameters()), list(model.parameters()))


@pytest.mark.parametrize(
    ("make", "options", "named"),
    [
        (aesam.SAM, {"rho": -0.1}, "rho"),
        (aesam.SAM, {"rho": float("nan")}, "rho"),
        (aesam.SAM, {"rho": float("inf")}, "rho"),
        (aesam.SAM, {"rho": "0.05"}, "rho"),
        (aesam.SAM, {"rho": True}, "rho"),
        (aesam.SAM, {"normalize": 1}, "normalize"),
        (aesam.SSSAM, {"p": 1.5}, "p"),
        (aesam.SSSAM, {"p": -0.5}, "p"),
        (aesam.SSSAM, {"seed": 0.5}, "seed"),
        (aesam.LookSAM, {"k": 0}, "k"),
        (aesam.LookSAM, {"k": 2.0}, "k"),
        (aesam.LookSAM, {"alpha": float("nan")}, "alpha"),
        (aesam.AESAM, {"total_steps": 0}, "total_steps"),
        (aesam.AESAM, {"total_steps": 2.5}, "total_steps"),
        (aesam.AESAM, {"total_steps": 9, "lambda1": 1.0, "lambda2": 0.0}, "lambda1"),
        (aesam.AESAM, {"total_steps": 9, "lambda1": float("-inf")}, "lambda1"),
        (aesam.AESAM, {"total_steps": 9, "lambda2": float("nan")}, "lambda2"),
        (aesam.AESAM, {"total_steps": 9, "delta": 1.0}, "delta"),
        (aesam.AESAM, {"total_steps": 9, "delta": 0.0}, "delta"),
        (aesam.AESAM, {"total_steps": 9, "initial_variance": 0.0}, "initial_variance"),
        (aesam.ESAM, {"beta": 0.0}, "beta"),
        (aesam.ESAM, {"gamma": 1.1}, "gamma"),
    ],
)
def test_an_impossible_argument_is_named_in_the_error(make, options, named):
    with pytest.raises((ValueError, TypeError), match=named):
        make(BASES["sgd"](mlp().parameters()), **options)


def test_hyper_parameters_are_keyword_only_and_unknown_ones_refused():
    base = BASES["sgd"](mlp().parameters())
    with pytest.raises(TypeError):
        aesam.SAM(base, None, 0.1)
    with pytest.raises(TypeError, match="k"):
        aesam.SAM(base, k=3)


def test_a_part_of_the_wrong_kind_is_refused():
    base = BASES["sgd"](mlp().parameters())
    with pytest.raises(TypeError, match="policy must be an instance, got the class Always"):
        aesam.SharpnessAware(base, policy=Always)
    with pytest.raises(TypeError, match="ascent must be a Ascent"):
        aesam.SharpnessAware(base, policy=Always(), ascent=Always())


def test_the_paper_s_defaults():
    base = BASES["sgd"](mlp().parameters())
    ae, look = aesam.AESAM(base, total_steps=9), aesam.AELookSAM(base, total_steps=9)
    assert (ae.policy.lambda1, ae.policy.lambda2, ae.policy.delta) == (-1, 1, 0.9)
    assert (look.policy.lambda1, look.policy.lambda2) == (0, 2)
    assert look.parts.between.alpha == 0.5
    assert ae.policy.initial_variance == pytest.approx(4.5399929762e-5)
    assert aesam.LookSAM(base).policy.k == 5
    assert aesam.SSSAM(base).policy.p == 0.5
    assert base.param_groups[0]["rho"] == 0.05


# Sharing with the base --------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_groups_state_and_defaults_are_the_base_s_own_also_after_loading(method):
    model = mlp()
    opt = METHODS[method](BASES["adam"](model.parameters()), model)
    Problem(model).train(opt, 2)
    for _ in range(2):
        assert opt.param_groups is opt.base.param_groups
        assert opt.state is opt.base.state
        assert opt.defaults is opt.base.defaults
        opt.load_state_dict(opt.state_dict())
    assert isinstance(opt, torch.optim.Optimizer)
    assert set(next(iter(opt.state.values()))) == {"step", "exp_avg", "exp_avg_sq"}


SCHEDULERS = {
    "cosine": lambda opt: CosineAnnealingLR(opt, 10),
    "one cycle": lambda opt: OneCycleLR(opt, max_lr=0.3, total_steps=10),
    "sequential": lambda opt: SequentialLR(
        opt, [LinearLR(opt, 0.1, total_iters=3), CosineAnnealingLR(opt, 7)], [3]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in")
@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("reload", [False, True])
def test_schedulers_drive_the_base_optimizer(schedule, reload):
    rates = []
    for wrapped in (False, True):
        model = mlp()
        problem = Problem(model)
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        opt = aesam.AESAM(base, model, total_steps=10) if wrapped else base
        scheduler, seen = SCHEDULERS[schedule](opt), []
        for t in range(9):
            if wrapped:
                problem.step(opt, t)
                if reload and t == 4:
                    opt.load_state_dict(opt.state_dict())
            else:
                base.step()
            scheduler.step()
            seen.append((base.param_groups[0]["lr"], base.param_groups[0]["momentum"]))
        rates.append(seen)
    assert rates[0] == rates[1]


def test_reduce_on_plateau_accepts_the_wrapper():
    opt = aesam.SAM(BASES["sgd"](mlp().parameters()))
    scheduler = ReduceLROnPlateau(opt, patience=0, factor=0.5)
    scheduler.step(1.0)
    scheduler.step(2.0)
    assert opt.base.param_groups[0]["lr"] == 0.05


# Step -------------------------------------------------------------------------------------------


def test_step_with_nothing_decided_names_the_closure():
    model = mlp()
    for policy in (Always(), Never()):
        opt = aesam.SharpnessAware(BASES["sgd"](model.parameters()), policy=policy)
        Problem(model).losses(0).mean().backward()
        before = weights(model)
        with pytest.raises(RuntimeError, match=r"opt\.step\(closure\)"):
            opt.step()
        assert same(before, weights(model))


def test_step_returns_the_loss_at_the_old_weights():
    model = mlp()
    problem = Problem(model)
    expected = problem.losses(0).mean().item()
    for method in METHODS.values():
        torch.manual_seed(0)
        model.load_state_dict(mlp().state_dict())
        opt = method(BASES["sgd"](model.parameters()), model)
        assert problem.step(opt, 0).item() == expected


def test_the_closure_may_be_given_by_name_and_needs_no_gradient_mode():
    model = mlp()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    with torch.no_grad():
        opt.step(closure=problem.closure(opt, 0))
    assert opt.sam_fraction == 1.0
    with pytest.raises(TypeError, match="step.*takes a function"):
        opt.step(problem.losses(0).mean())


def test_a_plain_closure_for_a_row_selecting_method_shows_the_protocol():
    model = mlp()
    problem = Problem(model)
    opt = aesam.ESAM(BASES["sgd"](model.parameters()), model)
    with pytest.raises(TypeError, match=r"def losses\(rows=None\)"):
        opt.step(problem.closure(opt, 0))
    with pytest.raises(TypeError, match="one loss per sample.*shape"):
        opt.step(lambda rows=None: problem.losses(0).mean())
    problem.losses(0).mean().backward()
    with pytest.raises(TypeError, match="needs_second_pass\\(losses"):
        opt.needs_second_pass()


@pytest.mark.parametrize("method", METHODS)
def test_per_sample_losses_work_for_every_method(method):
    model = mlp()
    problem = Problem(model)
    opt = METHODS[method](BASES["sgd"](model.parameters()), model)
    loss = opt.step(lambda rows=None: problem.losses(0, rows))
    assert loss.shape == ()
    assert not loss.requires_grad


def test_rows_may_be_keyword_only_or_of_another_name():
    model = mlp()
    problem = Problem(model)
    opt = aesam.ESAM(BASES["sgd"](model.parameters()), model)
    opt.step(lambda *, rows=None: problem.losses(0, rows))
    opt.step(lambda index=None: problem.losses(0, index))
    assert opt.last_step.index == 1


def test_losses_of_other_samples_are_refused():
    model = mlp()
    problem = Problem(model)
    opt = aesam.ESAM(BASES["sgd"](model.parameters()), model)
    losses = problem.losses(0)
    losses.mean().backward()
    before = weights(model)
    assert opt.needs_second_pass(losses=losses)
    with pytest.raises(ValueError, match="of the samples"), opt.perturbed() as at:
        at.rows(problem.losses(0, slice(0, 3)))
    assert same(before, weights(model))


def test_record_of_the_last_step():
    model = mlp()
    problem = Problem(model)
    opt = aesam.AESAM(BASES["sgd"](model.parameters()), model, total_steps=9)
    assert opt.last_step is None
    assert opt.sam_fraction == 0.0
    problem.step(opt, 0)
    record = opt.last_step
    assert (record.index, record.used_sam) == (0, record.squared_norm >= record.threshold)
    assert record.threshold == pytest.approx(record.mean + 1.0 * record.std)
    with pytest.raises(AttributeError):
        record.index = 4
    plain = aesam.SAM(BASES["sgd"](model.parameters()), model)
    problem.step(plain, 0)
    last = plain.last_step
    assert (last.mean, last.std, last.threshold) == (None, None, None)
    assert last.squared_norm > 0


# Hooks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["erm", "sam", "looksam"])
def test_step_hooks_run_around_the_update_with_the_direction_in_grad(method):
    model = mlp()
    problem = Problem(model)
    opt = METHODS[method](torch.optim.SGD(model.parameters(), lr=1.0), model)
    order = []

    def clip(optimizer, args, kwargs):
        assert optimizer is opt
        order.append("pre")
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    opt.register_step_pre_hook(clip)
    opt.register_step_post_hook(lambda *_: order.append("post"))
    opt.base.register_step_pre_hook(lambda *_: order.append("base"))
    before = weights(model)
    problem.step(opt, 0)
    assert order == ["pre", "base", "post"]
    moved = torch.cat([(a - b).flatten() for a, b in zip(weights(model), before, strict=True)])
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_global_hooks_run_once_a_step():
    model = mlp()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    calls = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("pre")),
        register_optimizer_step_post_hook(lambda *_: calls.append("post")),
    ]
    problem.step(opt, 0)
    for handle in handles:
        handle.remove()
    assert calls == ["pre", "post"]


def test_state_dict_hooks_run():
    opt = aesam.SAM(BASES["sgd"](mlp().parameters()))
    calls = []
    opt.register_state_dict_pre_hook(lambda o: calls.append("before saving"))
    opt.register_state_dict_post_hook(lambda o, s: {**s, "note": 1})
    opt.register_load_state_dict_pre_hook(lambda o, s: {k: s[k] for k in s if k != "note"})
    opt.register_load_state_dict_post_hook(lambda o: calls.append("after loading"))
    saved = opt.state_dict()
    assert saved["note"] == 1
    opt.load_state_dict(saved)
    assert calls == ["before saving", "after loading"]
    assert saved["note"] == 1


# Copies -----------------------------------------------------------------------------------------


def by_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


def by_torch_save(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, by_pickle, by_torch_save])
@pytest.mark.parametrize("method", METHODS)
def test_copies_continue_like_the_original_with_a_scheduler_attached(method, duplicate):
    model = mlp()
    problem = Problem(model)
    opt = METHODS[method](BASES["sgd"](model.parameters()), model)
    scheduler = CosineAnnealingLR(opt, 100)
    for t in range(5):
        problem.step(opt, t)
        scheduler.step()
    other_model, other = duplicate((model, opt))
    assert other is not opt
    assert type(other) is type(opt)
    other_problem = Problem(other_model)
    for t in range(5, 12):
        problem.step(opt, t)
        other_problem.step(other, t)
    assert same(weights(model), weights(other_model))
    assert opt.sam_fraction == other.sam_fraction
    assert other.param_groups is other.base.param_groups


def test_repr_shows_the_parts_and_the_base():
    opt = aesam.AELookSAM(BASES["sgd"](mlp().parameters()), total_steps=100, rho=0.2)
    shown = repr(opt)
    for text in ("AELookSAM (", "Adaptive(lambda1=0.0", "total_steps=100", "Reuse(alpha=0.5)"):
        assert text in shown
    assert "SGD (" in shown
    assert "rho: 0.2" in shown


def test_zero_grad_clears_or_zeroes():
    model = mlp()
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    Problem(model).losses(0).mean().backward()
    opt.zero_grad(set_to_none=False)
    assert all(not p.grad.any() for p in model.parameters())
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_user_s_subclass_may_override_step_without_doubling_hooks():
    calls = []

    class Mine(aesam.SAM):
        def step(self, closure=None, *, scaler=None):
            return super().step(closure, scaler=scaler)

    model = mlp()
    problem = Problem(model)
    opt = Mine(BASES["sgd"](model.parameters()), model)
    opt.register_step_pre_hook(lambda *_: calls.append(1))
    problem.step(opt, 0)
    assert calls == [1]


def test_the_base_s_own_foreach_fused_and_capturable_choices_are_left_alone():
    ends = []
    for options in ({"foreach": True}, {"foreach": False}, {"fused": True}):
        model = mlp()
        opt = aesam.SAM(torch.optim.AdamW(model.parameters(), lr=0.01, **options), model)
        Problem(model).train(opt, 5)
        ends.append(torch.cat([w.flatten() for w in weights(model)]))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(ends[0], ends[2], rtol=0, atol=1e-12)


def test_past_total_steps_it_says_so_once():
    model = mlp()
    problem = Problem(model)
    opt = aesam.AESAM(BASES["sgd"](model.parameters()), model, total_steps=2)
    problem.train(opt, 2)
    with pytest.warns(UserWarning, match="past total_steps=2") as caught:
        problem.train(opt, 3, start=2)
    assert len(caught) == 1
    assert caught[0].filename.endswith("problems.py")  # the user's line, not ours
    assert opt.policy.threshold_factor(2) == opt.policy.threshold_factor(10**9) == -1.0


def test_a_base_with_a_rho_of_its_own_is_refused():
    with pytest.raises(TypeError, match="Adadelta has a setting rho of its own"):
        aesam.SAM(torch.optim.Adadelta([nn.Parameter(torch.zeros(1))]))


@pytest.mark.parametrize("stale", [False, True])
def test_a_closure_without_backward_is_an_error(stale):
    model = mlp()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    if stale:  # gradients of before, which nobody cleared
        problem.step(opt, 0)
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"ran no backward\(\)"):
        opt.step(lambda: problem.losses(0).mean())
    assert same(before, weights(model))
    problem.step(opt, 1)
    assert opt.last_step.index == stale


def test_a_model_that_is_not_the_one_trained_is_noticed():
    with pytest.warns(UserWarning, match="none of the optimizer's parameters"):
        aesam.SAM(BASES["sgd"](mlp().parameters()), mlp())


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
    with pytest.raises(TypeError, match="ascent must be"):
        aesam.SharpnessAware(base, policy=Always(), ascent=0)


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
            type(v) in (int, float, bool, type(None))
            for v in ours(saved)[section]["settings"].values()
        )


def test_every_method_that_is_a_class_is_in_the_tests_table():
    made = {name: aesam.method_record(name).make for name in FOR_ANY_MODEL}
    assert set(METHODS | VARIANTS) == {
        name for name, make in made.items() if isinstance(make, type)
    }
