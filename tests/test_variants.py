"""Every variant is its rule, written out slowly, with every policy; it goes on from checkpoints."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from support import twin
from support.problems import BASES, VARIANTS, Problem, mlp, normed_mlp, same, weights
from support.variant_twin import (
    AdaptiveTwin,
    AlwaysTwin,
    ASAMRule,
    FisherRule,
    FSAMRule,
    GNPRule,
    GSAMRule,
    LESAMRule,
    PeriodicTwin,
    SubsetRule,
    VariantTwin,
    VaSSORule,
    WSAMRule,
)

import aesam
from aesam.parts.averaged_ascents import AlongAverage, AwayFromAverage
from aesam.parts.chosen_ascents import Named, NormLayers
from aesam.parts.combine import Mix, SurrogateGap, WeightedSharpness
from aesam.parts.part import places_of
from aesam.parts.policies import Adaptive, Always, Periodic
from aesam.parts.radii import FollowingRate, WithinRise
from aesam.parts.scaled_ascents import WithFisher, WithWeights

STEPS = 14

#: A rule: its parts, and its twin.
RULES = {
    "asam": ({"ascent": WithWeights(0.05)}, lambda: ASAMRule(0.05)),
    "asam, all": ({"ascent": WithWeights(adapt_all=True)}, lambda: ASAMRule(adapt_all=True)),
    "fisher-sam": ({"ascent": WithFisher(3.0)}, lambda: FisherRule(3.0)),
    "gnp": ({"combine": Mix(0.7)}, lambda: GNPRule(0.7)),
    "gsam": (
        {"ascent": FollowingRate(0.05, 0.005, 0.12), "combine": SurrogateGap(0.4)},
        lambda: GSAMRule(0.4, 0.05, 0.005, 0.12),
    ),
    "wsam": ({"combine": WeightedSharpness(0.7)}, lambda: WSAMRule(0.7)),
    "chosen by name": ({"ascent": Named("0.weight, 2.*")}, lambda: SubsetRule("w1", "w2", "b2")),
    "le-sam": ({"ascent": WithinRise(0.3)}, lambda: LESAMRule(0.3)),
    "le-sam, bounded": ({"ascent": WithinRise(3.0)}, lambda: LESAMRule(3.0)),
    "f-sam": ({"ascent": AwayFromAverage(0.8, 0.6)}, lambda: FSAMRule(0.8, 0.6)),
    "vasso": ({"ascent": AlongAverage(0.3)}, lambda: VaSSORule(0.3)),
}
POLICIES = {
    "always": (Always(), AlwaysTwin),
    "every second": (Periodic(2), lambda: PeriodicTwin(2)),
    "adaptive": (Adaptive(total_steps=STEPS), lambda: AdaptiveTwin(STEPS)),
}
TWIN_BASES = {
    "sgd": lambda lr=0.1: twin.SGD(lr=lr, momentum=0.9, weight_decay=1e-4),
    "adamw": lambda lr=0.01: twin.Adam(lr=lr, weight_decay=0.1, decoupled=True),
}
RATES = {"sgd": 0.1, "adamw": 0.01}


def flat(model):
    """The model's weights in the twin's layout (x W, not W x)."""
    return np.concatenate([p.detach().numpy().T.ravel() for p in model.parameters()])


def compare(problem, opt, oracle, steps=STEPS, form="closure", scale=1.0):
    """Step by step the same decisions and weights."""
    for t in range(steps):
        if form == "closure":
            problem.step(opt, t)
        else:
            own_passes(problem, opt, t, scale)
        oracle.step(problem.x[t].numpy(), problem.y[t].numpy())
        assert opt.last_step.used_sam == oracle.decisions[-1]
        np.testing.assert_allclose(flat(problem.model), oracle.w, rtol=0, atol=1e-12)


def own_passes(problem, opt, t, scale):
    """A step with gradients that carry a loss scaler's factor until they are applied."""
    opt.zero_grad()
    (problem.losses(t).mean() * scale).backward()
    if opt.needs_second_pass(grad_scale=scale):
        with opt.perturbed():
            (problem.losses(t).mean() * scale).backward()
    for p in problem.model.parameters():
        p.grad /= scale
    opt.step()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("base", TWIN_BASES)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_its_literal_twin_with_every_policy(rule, base, policy):
    (parts, rule_twin), (when, when_twin) = RULES[rule], POLICIES[policy]
    model = mlp()
    opt = aesam.SharpnessAware(
        BASES[base](model.parameters()), model, policy=when, rho=0.3, **parts
    )
    oracle = VariantTwin(
        flat(model), TWIN_BASES[base](), when_twin(), rule_twin(), 0.3, RATES[base]
    )
    compare(Problem(model), opt, oracle)
    assert any(oracle.decisions)
    assert policy == "always" or not all(oracle.decisions)


@pytest.mark.parametrize("rule", RULES)
def test_two_groups_have_radii_and_rates_of_their_own(rule):
    parts, rule_twin = RULES[rule]
    model = mlp()
    first, second = list(model[0].parameters()), list(model[2].parameters())
    groups = [{"params": first, "lr": 0.1, "rho": 0.4}, {"params": second, "lr": 0.02}]
    base = torch.optim.SGD(groups, momentum=0.9, weight_decay=1e-4)
    opt = aesam.SharpnessAware(base, model, policy=Always(), rho=0.2, **parts)
    size = sum(p.numel() for p in first)
    of_first = np.arange(len(flat(model))) < size
    rho, lr = np.where(of_first, 0.4, 0.2), np.where(of_first, 0.1, 0.02)
    oracle = VariantTwin(flat(model), TWIN_BASES["sgd"](lr), AlwaysTwin(), rule_twin(), rho, lr)
    compare(Problem(model), opt, oracle)


class Upside(Problem):
    """The loss with the other sign, to be maximised."""

    def losses(self, t, rows=None):
        return -super().losses(t, rows)


@pytest.mark.parametrize("rule", RULES)
def test_maximizing_goes_downhill_and_back(rule):
    parts, rule_twin = RULES[rule]
    model = mlp()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, maximize=True)
    opt = aesam.SharpnessAware(base, model, policy=Periodic(2), rho=0.3, **parts)
    oracle = VariantTwin(
        flat(model), twin.SGD(lr=0.1, momentum=0.9), PeriodicTwin(2), rule_twin(), 0.3, 0.1, True
    )
    compare(Upside(model), opt, oracle)


@pytest.mark.parametrize("rule", RULES)
def test_the_factor_of_a_loss_scaler_changes_nothing(rule):
    parts, rule_twin = RULES[rule]
    model = mlp()
    opt = aesam.SharpnessAware(
        BASES["sgd"](model.parameters()), model, policy=Periodic(2), rho=0.3, **parts
    )
    oracle = VariantTwin(flat(model), TWIN_BASES["sgd"](), PeriodicTwin(2), rule_twin(), 0.3, 0.1)
    compare(Problem(model), opt, oracle, form="own passes", scale=1024.0)


@pytest.mark.parametrize("rule", ["asam", "asam, all", "fisher-sam"])
def test_the_length_is_left_out_where_nothing_is_normalised(rule):
    parts, _ = RULES[rule]
    w = torch.nn.Parameter(torch.tensor([[2.0, -1.0]], dtype=torch.float64))
    opt = aesam.SharpnessAware(
        torch.optim.SGD([w], lr=0.1), policy=Always(), normalize=False, rho=0.5, **parts
    )
    w.grad = torch.tensor([[1.0, 3.0]]).double()
    t = 1 / (1 + 3.0 * w.grad**2) if rule == "fisher-sam" else (w.detach().abs() + 0.05) ** 2
    if rule == "asam, all":
        t = (w.detach().abs() + 0.01) ** 2
    expected = w.detach() + 0.5 * t * w.grad
    assert opt.needs_second_pass()
    with opt.perturbed():
        torch.testing.assert_close(w.detach(), expected, rtol=0, atol=1e-14)
        w.grad = torch.ones(1, 2).double()


@pytest.mark.parametrize("rule", ["asam", "fisher-sam"])
@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_gradients_whose_squares_no_float32_holds_have_a_direction(rule, size):
    parts, _ = RULES[rule]
    moved = []
    for dtype in (torch.float32, torch.float64):
        w = torch.nn.Parameter(torch.tensor([[2.0, -1.0]], dtype=dtype))
        opt = aesam.SharpnessAware(torch.optim.SGD([w], lr=0.1), policy=Always(), rho=0.5, **parts)
        w.grad = torch.tensor([[1.0, 3.0]], dtype=dtype) * size
        opt.needs_second_pass()
        with opt.perturbed():
            moved.append(w.detach().double().clone())
            w.grad = torch.ones(1, 2, dtype=dtype)
    torch.testing.assert_close(*moved, rtol=1e-6, atol=0)


def test_large_tensors_are_the_same_in_pieces():
    torch.manual_seed(0)
    shapes = [(300, 400), (7,), (90, 1000), (5, 5), (3, 70_000)]
    params = [torch.nn.Parameter(torch.randn(s, dtype=torch.float64)) for s in shapes]
    params[2] = torch.nn.Parameter(torch.randn(1000, 90, dtype=torch.float64).t())
    gradients = [torch.randn_like(p) for p in params]
    opt = aesam.ASAM(torch.optim.SGD(params, lr=0.1))
    for p, g in zip(params, gradients, strict=True):
        p.grad = g.clone()
    t = [p.detach().abs() + 0.01 if p.ndim > 1 else torch.ones_like(p) for p in params]
    length = sum((a * g).square().sum() for a, g in zip(t, gradients, strict=True)).sqrt()
    expected = [
        p.detach() + 0.5 * a**2 * g / length for p, a, g in zip(params, t, gradients, strict=True)
    ]
    opt.needs_second_pass()
    with opt.perturbed():
        for p, e, g in zip(params, expected, gradients, strict=True):
            torch.testing.assert_close(p.detach(), e, rtol=0, atol=1e-13)
            p.grad = g


def test_asam_of_biases_alone_is_sam():
    ends = []
    for make in (aesam.ASAM, aesam.SAM):
        w = torch.nn.Parameter(torch.tensor([2.0, -1.0]))
        opt = make(torch.optim.SGD([w], lr=0.1), rho=0.5)
        w.grad = torch.tensor([3.0, 4.0])
        opt.needs_second_pass()
        with opt.perturbed():
            ends.append([w.detach().clone()])
            w.grad = torch.ones(2)
    assert same(*ends)


def test_a_gradient_of_zero_goes_nowhere():
    for make in (aesam.ASAM, aesam.FisherSAM):
        w = torch.nn.Parameter(torch.tensor([[2.0, -1.0]]))
        opt = make(torch.optim.SGD([w], lr=0.1))
        w.grad = torch.zeros(1, 2)
        opt.needs_second_pass()
        with opt.perturbed():
            assert torch.equal(w, torch.tensor([[2.0, -1.0]]))
            w.grad = torch.ones(1, 2)


@pytest.mark.parametrize("make", [aesam.ASAM, aesam.FisherSAM, aesam.FSAM, aesam.VaSSO])
def test_sparse_gradients_are_refused_in_words(make):
    net = torch.nn.Embedding(4, 2, sparse=True)
    opt = make(torch.optim.SGD(net.parameters(), lr=0.1))

    def closure():
        opt.zero_grad()
        loss = net(torch.tensor([1, 2])).square().sum()
        loss.backward()
        return loss

    before = weights(net)
    with pytest.raises(TypeError, match="needs dense gradients .* sparse=False"):
        opt.step(closure)
    assert same(weights(net), before)


@pytest.mark.parametrize("make", [aesam.FSAM, aesam.VaSSO])
def test_an_average_is_of_the_steps_that_were_taken(make):
    """A second pass that fails leaves the average of before, to the bit; memory does not grow."""
    model = mlp()
    problem = Problem(model)
    opt = make(BASES["sgd"](model.parameters()), model, rho=0.2)
    problem.train(opt, 3)
    kept = copy.deepcopy(opt.state_dict()["state"])
    problem.losses(3).mean().backward()
    assert opt.needs_second_pass()
    with pytest.raises(ZeroDivisionError), opt.perturbed():
        _ = 1 / 0
    now = opt.state_dict()["state"]
    assert all(torch.equal(now[i]["aesam.ascent"], kept[i]["aesam.ascent"]) for i in range(4))
    problem.train(opt, 3, start=3)
    held = len(opt._ledger.workspace.kept)
    problem.train(opt, 3, start=6)
    assert len(opt._ledger.workspace.kept) == held


def test_a_parameter_without_a_gradient_keeps_its_average():
    a, b = (torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    opt = aesam.VaSSO(torch.optim.SGD([a, b], lr=0.0), theta=0.5, rho=1.0)
    for first in ({a: 1.0, b: 4.0}, {a: 3.0}, {a: 0.0, b: 0.0}):
        opt.zero_grad()
        for p, value in first.items():
            p.grad = torch.full((2,), value).double()
        opt.needs_second_pass()
        with opt.perturbed():
            at = [p.detach().clone() for p in (a, b)]
            a.grad = torch.ones(2).double()
        opt.step()
    length = (2 * 1.0**2 + 2 * 2.0**2) ** 0.5  # averages of 1 (of 2 and 0) and 2 (of 4 and 0)
    torch.testing.assert_close(at[0], 1 + torch.full((2,), 1.0 / length).double())
    torch.testing.assert_close(at[1], 1 + torch.full((2,), 2.0 / length).double())


def test_friendly_sam_goes_nowhere_where_only_rounding_is_left():
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    opt = aesam.FSAM(torch.optim.SGD([w], lr=0.0), rho=1.0)
    for t in range(4):
        w.grad = torch.tensor([0.1, 0.7])
        opt.needs_second_pass()
        with opt.perturbed():
            assert torch.equal(w, torch.tensor([1.0, 2.0])) == (t > 0)
            w.grad = torch.ones(2)
        opt.step()


@pytest.mark.parametrize("as_tensor", [False, True], ids=["a number", "a tensor"])
def test_the_radius_of_gsam_follows_the_learning_rate(as_tensor):
    model = mlp()
    rate = torch.tensor(0.1, dtype=torch.float64) if as_tensor else 0.1
    base = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, foreach=False)
    opt = aesam.GSAM(base, model, rho=0.3, rho_min=0.1, lr_min=0.02, alpha=0.4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS, eta_min=0.02)
    oracle = VariantTwin(
        flat(model), twin.SGD(0.1, 0.9), AlwaysTwin(), GSAMRule(0.4, 0.1, 0.02, 0.1), 0.3, 0.1
    )
    problem = Problem(model)
    for t in range(STEPS):
        oracle.lr = oracle.base.lr = 0.02 + 0.08 * (1 + math.cos(math.pi * t / STEPS)) / 2
        problem.step(opt, t)
        oracle.step(problem.x[t].numpy(), problem.y[t].numpy())
        np.testing.assert_allclose(flat(model), oracle.w, rtol=0, atol=1e-11)
        scheduler.step()


def test_the_highest_rate_is_what_the_scheduler_noted():
    ascent, g = FollowingRate(rho_min=0.1), [torch.ones(1)]
    for group, radius in [
        ({"lr": 0.1}, 0.5),
        ({"lr": 0.1, "initial_lr": 0.2}, 0.3),
        ({"lr": 0.1, "initial_lr": 0.01, "max_lr": 0.4}, 0.2),
        ({"lr": 0.3, "initial_lr": 0.2}, 0.5),
        ({"lr": 0.0}, 0.5),
        ({"lr": 0.0, "initial_lr": 0.2}, 0.1),
    ]:
        for sign in (1, -1):
            seen = aesam.Gradient(g, g, [sign * 0.5], 1.0, groups=[group])
            found = ascent.direction(seen, aesam.Memory(), None).radii
            assert found == [pytest.approx(sign * radius)], group


def test_a_lowest_radius_above_the_highest_is_refused():
    w = torch.nn.Parameter(torch.ones(2))
    base = torch.optim.SGD([w], lr=0.1)
    with pytest.raises(ValueError, match="rho_min must be at most rho = 0.1, got 0.2"):
        aesam.GSAM(base, rho=0.1, rho_min=0.2)
    opt = aesam.GSAM(base, rho=0.3, rho_min=0.2)
    base.param_groups[0]["rho"] = 0.1
    w.grad = torch.ones(2)
    opt.needs_second_pass()
    with pytest.raises(ValueError, match="rho of a parameter group is 0.1, below rho_min = 0.2"):
        with opt.perturbed():
            pass


@pytest.mark.parametrize("combine", [Mix(0.7), SurrogateGap(0.4)], ids=lambda c: type(c).__name__)
def test_a_gradient_in_one_pass_only_counts_as_zero_in_the_other(combine):
    a, b, c = (torch.nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(3))
    opt = aesam.SharpnessAware(torch.optim.SGD([a, b, c], lr=0.1), policy=Always(), combine=combine)
    a.grad, b.grad = torch.tensor([2.0]).double(), torch.tensor([1.0]).double()
    opt.needs_second_pass()
    with opt.perturbed():
        a.grad, c.grad = torch.tensor([3.0]).double(), torch.tensor([5.0]).double()
    if isinstance(combine, Mix):
        expected = [0.3 * 2 + 0.7 * 3, 0.7 * 5]
    else:
        share = (2 * 3) / (3**2 + 5**2)
        expected = [3 - 0.4 * (2 - share * 3), 5 - 0.4 * (0 - share * 5)]
    assert [a.grad.item(), c.grad.item()] == pytest.approx(expected)
    assert b.grad is None


def test_a_gradient_in_one_pass_only_has_its_part_of_the_sharpness():
    a, b, c = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(3))
    base = torch.optim.SGD([{"params": [a, b]}, {"params": [c], "lr": 0.2}], lr=0.1)
    opt = aesam.WSAM(base, gamma=0.5)
    a.grad, b.grad = torch.tensor([2.0]).double(), torch.tensor([1.0]).double()
    opt.needs_second_pass()
    with opt.perturbed():
        a.grad, c.grad = torch.tensor([3.0]).double(), torch.tensor([5.0]).double()
    opt.step()
    assert [a.item(), b.item(), c.item()] == pytest.approx([-0.1 * 2 - 0.1 * (3 - 2), 0, -0.2 * 5])


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_second_gradient_that_is_not_finite_leaves_no_sharpness(poison):
    """Also where a loss scaler looks: what it sees in ``p.grad`` is not finite then."""
    w = torch.nn.Parameter(torch.tensor([[1.0, 2.0]]))
    opt = aesam.WSAM(torch.optim.SGD([w], lr=0.1))
    w.grad = torch.ones(1, 2)
    opt.needs_second_pass()
    with opt.perturbed():
        w.grad = torch.tensor([[1.0, poison]])
    assert not w.grad.isfinite().all()
    with pytest.warns(UserWarning, match="skipped"):
        opt.step()
    assert torch.equal(w, torch.tensor([[1.0, 2.0]]))
    assert opt.skipped_steps == 1


def test_the_base_of_wsam_steps_along_the_first_gradient_to_the_bit():
    seen = []
    model = mlp()
    problem = Problem(model)
    opt = aesam.WSAM(BASES["sgd"](model.parameters()), model, rho=0.5)
    opt.register_step_pre_hook(lambda *_: seen.append([p.grad.clone() for p in model.parameters()]))
    for t in range(3):
        problem.losses(t).mean().backward()
        first = [p.grad.clone() for p in model.parameters()]
        opt.zero_grad()
        problem.step(opt, t)
        opt.zero_grad()
        assert same(seen[-1], first)


@pytest.mark.parametrize(
    "combine", [Mix(0.7), SurrogateGap(0.4), WeightedSharpness(0.4)], ids=lambda c: type(c).__name__
)
def test_combining_takes_sparse_gradients(combine):
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Embedding(5, 2, sparse=sparse, dtype=torch.float64)
        base = torch.optim.SGD(net.parameters(), lr=0.1)
        opt = aesam.SharpnessAware(base, net, policy=Always(), combine=combine, rho=0.3)

        def closure(net=net, opt=opt):
            opt.zero_grad()
            loss = (net(torch.tensor([1, 2, 2])) ** 4).sum()
            loss.backward()
            return loss

        for _ in range(3):
            opt.step(closure)
        ends.append(weights(net))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=0)


class OddlyNamed(torch.nn.LayerNorm):
    """A layer whose own name says nothing."""


class TinyRMSNorm(torch.nn.Module):
    """A layer that is no torch's."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.scale * x


class NormalNoise(torch.nn.Module):
    """No normalisation."""

    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return x + self.shift


def test_sam_on_moves_the_normalisation_layers_only():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), OddlyNamed(4),
        TinyRMSNorm(), NormalNoise(), torch.nn.GroupNorm(2, 4), torch.nn.RMSNorm(4),
        torch.nn.Linear(4, 2),
    ).double()  # fmt: skip
    chosen = {"1.weight", "1.bias", "3.weight", "3.bias", "4.scale", "6.weight", "6.bias"}
    chosen |= {"7.weight"}
    opt = aesam.SAMON(torch.optim.SGD(model.parameters(), lr=0.1), model, rho=0.3)
    problem = Problem(model)
    problem.losses(0).mean().backward()
    named = dict(model.named_parameters())
    length = math.sqrt(sum(named[n].grad.square().sum().item() for n in chosen))
    expected = {
        n: p.detach() + (0.3 * p.grad / length if n in chosen else 0.0) for n, p in named.items()
    }
    assert opt.needs_second_pass()
    with opt.perturbed():
        for name, p in named.items():
            torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=1e-14)
            assert torch.equal(p, expected[name]) or name in chosen
        problem.losses(0).mean().backward()
    assert all(p.grad is not None for p in named.values())
    opt.step()


def test_what_is_chosen_is_looked_up_on_every_step():
    """Parameters may be others by then: Accelerate's FSDP2 puts shards in their places."""
    model = normed_mlp()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = aesam.SAMON(base, model, rho=0.3)
    problem = Problem(model)
    problem.step(opt, 0)
    replaced = torch.nn.Parameter(model[1].weight.detach().clone())
    group = base.param_groups[0]
    group["params"] = [replaced if p is model[1].weight else p for p in group["params"]]
    model[1].weight = replaced
    opt.zero_grad()
    problem.losses(1).mean().backward()
    assert opt.needs_second_pass()
    before = replaced.detach().clone()
    with opt.perturbed():
        assert not torch.equal(replaced, before)
        problem.losses(1).mean().backward()
    opt.step()


def test_names_are_those_without_a_wrapper_and_a_shared_parameter_has_several():
    model = mlp()
    model[2].extra = model[0].bias
    ascent = Named("2.extra")
    compiled = torch.compile(model, backend="eager")
    places = places_of([model[0].bias, model[2].bias, torch.zeros(1)], compiled)
    assert [[place.name for place in each] for each in places] == [
        ["0.bias", "2.extra"], ["2.bias"], [],
    ]  # fmt: skip
    assert any(map(ascent.takes, places[0]))


@pytest.mark.parametrize(
    ("ascent", "model", "said"),
    [
        (NormLayers(), mlp(), "no trained parameter in a normalisation layer"),
        (NormLayers(), None, "pass it as model"),
        (Named("0.*"), None, "pass it as model"),
        (Named("3.*"), mlp(), "'3.*' matches no trained parameter of the model. Near: "),
    ],
)
def test_an_ascent_that_finds_nothing_is_refused_where_it_is_made(ascent, model, said):
    params = (model or mlp()).parameters()
    with pytest.raises(ValueError, match=said):
        aesam.SharpnessAware(torch.optim.SGD(params, lr=0.1), model, policy=Always(), ascent=ascent)


def test_a_chosen_layer_that_is_not_trained_does_not_count():
    model = normed_mlp()
    with pytest.raises(ValueError, match="no trained parameter"):
        aesam.SAMON(torch.optim.SGD(model[0].parameters(), lr=0.1), model)
    with pytest.raises(TypeError, match="pattern must be a pattern of parameters' names, got 3"):
        Named(3)


# Named methods ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", VARIANTS)
def test_a_variant_that_was_stopped_goes_on_to_the_bit(method):
    make = functools.partial(VARIANTS[method], rho=0.2)
    model = normed_mlp()
    problem, opt = Problem(model), make(BASES["sgd"](model.parameters()), model)
    problem.train(opt, 5)
    kept = copy.deepcopy({"model": model.state_dict(), "opt": opt.state_dict()})
    problem.train(opt, 5, start=5)
    other = normed_mlp(seed=3)
    resumed = make(BASES["sgd"](other.parameters()), other)
    other.load_state_dict(kept["model"])
    resumed.load_state_dict(kept["opt"])
    Problem(other).train(resumed, 5, start=5)
    assert same(weights(model), weights(other))


@pytest.mark.parametrize("method", VARIANTS)
def test_both_forms_of_a_step_are_the_same(method):
    ends = []
    for form in ("step", "own_passes"):
        model = normed_mlp()
        problem, opt = Problem(model), VARIANTS[method](BASES["adamw"](model.parameters()), model)
        for t in range(4):
            getattr(problem, form)(opt, t)
        ends.append(weights(model))
    assert same(*ends)
