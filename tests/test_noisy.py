"""Noise on the weights is its rule, written out slowly; all of it goes on from checkpoints."""

import copy
import io
import math

import pytest
import torch
from support.problems import BASES, Problem, mlp, same, stochastic_net, weights
from torch import nn

import aesam
from aesam.parts.noise import AnticorrelatedNoise, FilterNoise
from aesam.parts.policies import Always, Never, Periodic
from aesam.parts.samples import Splits

STEPS = 6


def two_groups(model, kind="sgd"):
    first, *rest = model.parameters()
    groups = [{"params": [first], "rho": 0.02}, {"params": rest}]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-3)
    return torch.optim.AdamW(groups, lr=0.01)


def normals(params, own):
    """Standard normal numbers as they are drawn: a seed from the part's generator, then by it."""
    draw = torch.Generator().manual_seed(int(torch.randint(2**62, (1,), generator=own)))
    return [torch.empty_like(p).normal_(generator=draw) for p in params]


def bare(problem, opt, t):
    opt.zero_grad()
    problem.losses(t).mean().backward()
    opt.step()


FORMS = {
    "closure": lambda problem, opt, t: problem.step(opt, t),
    "own passes": lambda problem, opt, t: problem.own_passes(opt, t),
    "bare": bare,
}


def close(left, right, atol=1e-12):
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


# LPF-SGD ------------------------------------------------------------------------------------------


def filter_norms(p):
    """The norm of each number's filter, number by number."""
    if p.ndim < 2:
        return torch.full_like(p, math.sqrt(sum(float(v) ** 2 for v in p)))
    return torch.stack([torch.full_like(row, float((row * row).sum()) ** 0.5) for row in p])


def literal_lpf(kind, steps=STEPS, seed=0, splits=1, growth=0.0):
    """The mean over splits of ∇L(w + ξ), ξ ~ N(0, (γ‖filter‖)²), handed to a plain optimizer."""
    model = mlp()
    base, problem = two_groups(model, kind), Problem(model)
    own = torch.Generator().manual_seed(seed)
    params = list(model.parameters())
    for t in range(steps):
        grown = 1 + growth * (1 - math.cos(math.pi * t / steps)) / 2
        gamma = [0.02 * grown, *[0.05 * grown] * (len(params) - 1)]
        total = [torch.zeros_like(p) for p in params]
        for m in range(splits):
            home = weights(model)
            for p, s, z in zip(params, gamma, normals(params, own), strict=True):
                p.data = p.data + s * filter_norms(p.data) * z
            base.zero_grad()
            problem.losses(t, slice(m, None, splits)).mean().backward()
            total = [a + p.grad / splits for a, p in zip(total, params, strict=True)]
            for p, w in zip(params, home, strict=True):
                p.data = w
        for p, g in zip(params, total, strict=True):
            p.grad = g
        base.step()
    return weights(model)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("form", FORMS)
def test_lpf_sgd_is_the_literal_rule_in_every_form(form, kind):
    model = mlp()
    opt = aesam.LPFSGD(two_groups(model, kind), model, rho=0.05, seed=7)
    problem = Problem(model)
    for t in range(STEPS):
        FORMS[form](problem, opt, t)
    close(weights(model), literal_lpf(kind, seed=7))
    assert not same(weights(model), literal_lpf(kind, seed=8))


def by_losses(problem, opt, t):
    return opt.step(lambda rows=None: problem.losses(t, rows))


def by_micro_batches(problem, opt, t):
    opt.zero_grad()
    for m in range(4):
        (problem.losses(t, slice(m, None, 4)).mean() / 4).backward()
    opt.step()


def by_own_splits(problem, opt, t):
    opt.zero_grad()
    for m in range(4):
        with opt.first_pass():
            (problem.losses(t, slice(m, None, 4)).mean() / 4).backward()
    assert not opt.needs_second_pass()
    opt.step()


@pytest.mark.parametrize("by", [by_losses, by_micro_batches, by_own_splits])
def test_four_splits_have_noise_of_their_own_in_every_form(by):
    model = mlp()
    opt = aesam.LPFSGD(two_groups(model), model, rho=0.05, splits=4)
    for t in range(STEPS):
        by(Problem(model), opt, t)
    close(weights(model), literal_lpf("sgd", splits=4))


def test_step_of_losses_in_splits_returns_their_mean_where_each_was_taken():
    model = mlp()
    opt = aesam.LPFSGD(BASES["sgd"](model.parameters()), model, rho=0.0, splits=4)
    problem = Problem(model)
    expected = problem.losses(0).mean()
    torch.testing.assert_close(by_losses(problem, opt, 0), expected.detach())


def test_micro_batches_without_splits_have_noise_of_their_own_too():
    model = mlp()
    opt = aesam.LPFSGD(two_groups(model), model, rho=0.05)
    for t in range(STEPS):
        by_micro_batches(Problem(model), opt, t)
    close(weights(model), literal_lpf("sgd", splits=4))


def test_splits_under_a_loss_scaler_are_the_same():
    model = mlp()
    opt = aesam.LPFSGD(two_groups(model), model, rho=0.05, splits=4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    problem = Problem(model)
    for t in range(STEPS):
        opt.step(lambda rows=None, t=t: problem.losses(t, rows), scaler=scaler)
        scaler.update()
    close(weights(model), literal_lpf("sgd", splits=4))


def test_another_number_of_passes_than_splits_is_refused():
    model = mlp()
    opt = aesam.LPFSGD(two_groups(model), model, splits=4)
    problem = Problem(model)
    before = weights(model)
    with pytest.raises(RuntimeError, match="of 1 backward passes where it should be of 4 splits"):
        bare(problem, opt, 0)
    with pytest.raises(TypeError, match="LPFSGD takes the gradients of 4 splits, so it needs"):
        opt.step(problem.closure(opt, 0))
    problem.x, problem.y = problem.x[:, :3], problem.y[:, :3]
    with pytest.raises(
        TypeError, match=r"one loss per sample of one of 4 splits, got shape \(0,\)"
    ):
        by_losses(problem, opt, 0)
    assert same(weights(model), before)


def test_splits_go_with_weights_that_move_for_each():
    base = torch.optim.SGD(mlp().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="for a gradient at several places"):
        aesam.SharpnessAware(base, policy=Never(), samples=Splits(2))
    with pytest.raises(ValueError, match="takes no second gradient"):
        aesam.SharpnessAware(base, policy=Always(), ascent=FilterNoise())


@pytest.mark.parametrize("form", FORMS)
def test_the_noise_grows_along_half_a_cosine_also_from_a_checkpoint(form):
    model = mlp()
    opt = aesam.LPFSGD(two_groups(model), model, rho=0.05, growth=3.0, total_steps=STEPS)
    problem = Problem(model)
    for t in range(STEPS):
        FORMS[form](problem, opt, t)
        saved = through_a_file(opt.state_dict())
        opt = aesam.LPFSGD(two_groups(model), model, rho=0.05, growth=3.0, seed=4)
        opt.load_state_dict(saved)
    close(weights(model), literal_lpf("sgd", growth=3.0))
    assert opt.parts.ascent.factor(STEPS) == opt.parts.ascent.factor(STEPS + 5) == 4.0


def test_a_growth_needs_the_length_of_the_training():
    model = mlp()
    opt = aesam.LPFSGD(two_groups(model), model, growth=1.0)
    assert opt.needs_total_steps
    before = weights(model)
    with pytest.raises(RuntimeError, match="total_steps must be given before"):
        bare(Problem(model), opt, 0)
    assert same(weights(model), before)
    opt.set_total_steps(4)
    bare(Problem(model), opt, 0)


def test_a_forward_that_came_to_nothing_draws_nothing():
    models = [mlp(), mlp()]
    for model, spoiled in zip(models, (False, True), strict=True):
        opt, problem = aesam.LPFSGD(two_groups(model), model, rho=0.05), Problem(model)
        bare(problem, opt, 0)
        home = weights(model)
        if spoiled:
            problem.losses(1)
            assert not same(weights(model), home)
            model.state_dict()
            assert same(weights(model), home)
        for t in (1, 2):
            bare(problem, opt, t)
    assert same(*map(weights, models))


def test_filters_of_half_precision_have_norms_that_it_cannot_hold():
    w = nn.Parameter(torch.full((4, 10_000), 700.0, dtype=torch.float16))  # of norm 70,000
    opt = aesam.LPFSGD(torch.optim.SGD([w], lr=0.1), rho=1e-4)
    with opt.first_pass():
        moved = (w.detach().float() - 700).std().item()
    assert moved == pytest.approx(7.0, rel=0.05)


# Anti-PGD -----------------------------------------------------------------------------------------


def literal_anti_pgd(kind, steps=STEPS, seed=0, fires=lambda t: False, stop=math.inf):
    """w ← w − lr·d + (ξ_{t+1} − ξ_t), with d SAM's on the steps that fire; and the last ξ."""
    model = mlp()
    base, problem, own = (
        two_groups(model, kind),
        Problem(model),
        torch.Generator().manual_seed(seed),
    )
    params = list(model.parameters())
    sigma = [0.02, *[0.05] * (len(params) - 1)]
    last = [torch.zeros_like(p) for p in params]
    for t in range(steps):
        base.zero_grad()
        problem.losses(t).mean().backward()
        if fires(t):
            length = math.sqrt(sum(float(p.grad.square().sum()) for p in params))
            home = weights(model)
            for p, rho in zip(params, sigma, strict=True):
                p.data = p.data + rho * p.grad / length
            base.zero_grad()
            problem.losses(t).mean().backward()
            for p, w in zip(params, home, strict=True):
                p.data = w
        base.step()
        now = [torch.zeros_like(p) for p in params]
        if t < stop:
            now = [s * z for s, z in zip(sigma, normals(params, own), strict=True)]
        for p, new, old in zip(params, now, last, strict=True):
            p.data = p.data + (new - old)
        last = now
    return weights(model), last


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("form", FORMS)
def test_anti_pgd_is_the_literal_rule_in_every_form(form, kind):
    model = mlp()
    opt = aesam.AntiPGD(two_groups(model, kind), model, rho=0.05, seed=7)
    problem = Problem(model)
    for t in range(STEPS):
        FORMS[form](problem, opt, t)
    close(weights(model), literal_anti_pgd(kind, seed=7)[0])
    assert opt.sam_fraction == 0.0


@pytest.mark.parametrize(
    ("policy", "fires"),
    [(Always(), lambda t: True), (Periodic(2), lambda t: t % 2 == 0), (Never(), lambda t: False)],
    ids=["always", "every second", "never"],
)
def test_its_noise_goes_with_every_policy(policy, fires):
    model = mlp()
    opt = aesam.SharpnessAware(
        two_groups(model), model, policy=policy, combine=AnticorrelatedNoise(seed=3), rho=0.05
    )
    Problem(model).train(opt, STEPS)
    close(weights(model), literal_anti_pgd("sgd", seed=3, fires=fires)[0])


def test_without_the_model_a_bare_step_of_anti_pgd_works():
    models = [mlp(), mlp()]
    for model, given in zip(models, (None, models[1]), strict=True):
        opt, problem = aesam.AntiPGD(two_groups(model), given), Problem(model)
        for t in range(3):
            bare(problem, opt, t)
    assert same(*map(weights, models))


def test_without_noise_it_is_the_base_to_the_bit():
    model, reference = mlp(), mlp()
    opt = aesam.AntiPGD(BASES["adamw"](model.parameters()), model, rho=0.0)
    base, problem = BASES["adamw"](reference.parameters()), Problem(reference)
    Problem(model).train(opt, STEPS)
    for t in range(STEPS):
        base.zero_grad()
        problem.losses(t).mean().backward()
        base.step()
    assert same(weights(model), weights(reference))


def test_after_its_end_there_is_no_noise_in_the_weights():
    model = mlp()
    opt = aesam.AntiPGD(two_groups(model), model, rho=0.05, stop=0.5, total_steps=STEPS)
    problem = Problem(model)
    for t in range(STEPS):
        bare(problem, opt, t)
        formed = [e["aesam.combine.formed"].item() for e in opt.state_dict()["state"].values()]
        assert formed == [t < STEPS / 2] * 4
    close(weights(model), literal_anti_pgd("sgd", stop=STEPS // 2)[0])


def test_an_end_needs_the_length_of_the_training():
    model = mlp()
    opt = aesam.AntiPGD(two_groups(model), model, stop=0.5)
    assert opt.needs_total_steps
    before = weights(model)
    with pytest.raises(RuntimeError, match="total_steps must be given before"):
        bare(Problem(model), opt, 0)
    assert same(weights(model), before)
    opt.zero_grad()
    opt.set_total_steps(4)
    assert opt.parts.combine.total_steps == 4
    bare(Problem(model), opt, 0)
    other = aesam.AntiPGD(two_groups(mlp()), stop=0.5)
    other.load_state_dict(opt.state_dict())
    assert other.parts.combine.total_steps == 4
    assert not aesam.AntiPGD(two_groups(mlp())).needs_total_steps


def test_consecutive_changes_are_anticorrelated_by_one_half():
    w = nn.Parameter(torch.zeros(200_000))
    opt = aesam.AntiPGD(torch.optim.SGD([w], lr=0.0), rho=0.3)
    places = []
    for _ in range(4):
        w.grad = torch.ones_like(w)
        opt.step()
        places.append(w.detach().clone())
    assert all(place.std().item() == pytest.approx(0.3, rel=0.02) for place in places)
    one, two = places[2] - places[1], places[3] - places[2]
    assert (one @ two / one.square().sum()).item() == pytest.approx(-0.5, abs=0.02)


def test_only_what_is_trained_has_noise_and_a_shared_parameter_has_it_once():
    frozen, shared = nn.Parameter(torch.zeros(3), False), nn.Parameter(torch.zeros(100_000))
    base = torch.optim.SGD([frozen, shared], lr=0.0)
    base.param_groups.append({**base.param_groups[0], "params": [shared]})
    opt = aesam.AntiPGD(base, rho=0.1)
    shared.grad = torch.ones_like(shared)
    opt.step()
    assert not frozen.any()
    assert shared.std().item() == pytest.approx(0.1, rel=0.02)


def test_a_step_that_is_skipped_draws_nothing():
    models = [mlp(), mlp()]
    for model, spoiled in zip(models, (False, True), strict=True):
        opt, problem = aesam.AntiPGD(two_groups(model), model), Problem(model)
        problem.train(opt, 2)
        if spoiled:
            before = weights(model)
            (problem.losses(2).mean() * math.nan).backward()
            with pytest.warns(UserWarning, match="skipped"):
                opt.step()
            assert same(weights(model), before)
        problem.train(opt, 2, start=2)
    assert same(*map(weights, models))


def test_a_loss_scaler_changes_nothing_and_its_overflow_draws_nothing():
    model = mlp()
    opt, problem = aesam.AntiPGD(two_groups(model), model, rho=0.05), Problem(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for t in range(STEPS):
        for spoiled in (True, False) if t == 3 else (False,):
            opt.zero_grad()
            loss = problem.losses(t).mean() * (math.inf if spoiled else 1.0)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    close(weights(model), literal_anti_pgd("sgd")[0])


def through_a_file(saved):
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_going_on_from_a_checkpoint_takes_the_last_noise_away():
    model = stochastic_net()
    opt = aesam.AntiPGD(two_groups(model), model, rho=0.05)
    problem = Problem(model)
    torch.manual_seed(0)
    problem.train(opt, 3)
    random = torch.get_rng_state()
    saved = through_a_file((model.state_dict(), opt.state_dict()))
    problem.train(opt, 3, start=3)
    other_model = stochastic_net(seed=5)
    other = aesam.AntiPGD(two_groups(other_model), other_model, rho=0.05, seed=9)
    other_model.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    torch.set_rng_state(random)
    Problem(other_model).train(other, 3, start=3)
    assert same(weights(model), weights(other_model))


@pytest.mark.parametrize("method", ["anti-pgd", "lpf-sgd"])
def test_the_model_s_random_numbers_are_those_without_the_noise(method):
    seen = []
    for name in (method, "erm"):
        model = stochastic_net()
        opt = aesam.create(name, model, lr=0.1)
        torch.manual_seed(3)
        Problem(model).train(opt, 3)
        seen.append(torch.get_rng_state())
    assert same(*[[state] for state in seen])


def test_a_copy_goes_on_alike_and_no_buffer_is_lost():
    model = mlp()
    opt = aesam.AntiPGD(two_groups(model), model)
    problem = Problem(model)
    problem.train(opt, 3)
    held = len(opt._ledger.workspace.kept)
    problem.train(opt, 2, start=3)
    assert len(opt._ledger.workspace.kept) == held
    twin = copy.deepcopy((model, opt))
    for each, trained in ((model, opt), twin):
        Problem(each).train(trained, 2, start=5)
    assert same(weights(model), weights(twin[0]))


def test_noise_on_half_precision_weights_is_kept_in_it():
    w = nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16))
    opt = aesam.AntiPGD(torch.optim.SGD([w], lr=0.0), rho=0.5)
    w.grad = torch.ones_like(w)
    opt.step()
    assert w.std().item() == pytest.approx(0.5, rel=0.1)
    assert opt.state_dict()["state"][0]["aesam.combine"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("method", "wrong", "said"),
    [
        ("anti-pgd", {"rho": -1}, "rho must be a finite number >= 0"),
        ("anti-pgd", {"stop": 0.0}, "stop must be a number above 0 and at most 1"),
        ("anti-pgd", {"stop": 2}, "stop must be a number above 0 and at most 1"),
        ("anti-pgd", {"seed": -1}, "seed must be a whole number >= 0"),
        ("anti-pgd", {"total_steps": 0}, "total_steps must be a whole number >= 1"),
        ("lpf-sgd", {"rho": -1}, "rho must be a finite number >= 0"),
        ("lpf-sgd", {"growth": -1}, "growth must be a finite number >= 0"),
        ("lpf-sgd", {"splits": 0}, "splits must be a whole number >= 1"),
        ("lpf-sgd", {"seed": -1}, "seed must be a whole number >= 0"),
        ("lpf-sgd", {"total_steps": 0}, "total_steps must be a whole number >= 1"),
    ],
)
def test_impossible_settings_are_refused(method, wrong, said):
    with pytest.raises(ValueError, match=said):
        aesam.create(method, nn.Linear(1, 1), lr=0.1, **wrong)
