"""Every part works with every other, and a new one is a small class."""

import copy
import itertools
from dataclasses import dataclass

import pytest
import torch
from support.problems import BASES, Problem, mlp, same, stochastic_net, weights
from support.saved import ours
from torch import nn

import aesam
from aesam._core import tensors
from aesam.parts import averaged_ascents
from aesam.parts.ascents import AlongGradient, Ascent, RandomSubset
from aesam.parts.averaged_ascents import AwayFromAverage
from aesam.parts.between import Plain, Reuse
from aesam.parts.budget import Budget
from aesam.parts.chosen_ascents import Named, NormLayers
from aesam.parts.combine import Combine, Mix, Replace, SurrogateGap, WeightedSharpness
from aesam.parts.composed import Warmup
from aesam.parts.noise import AnticorrelatedNoise
from aesam.parts.part import Direction, Gradient, Memory, radius
from aesam.parts.policies import (
    Adaptive,
    Always,
    Bernoulli,
    Decision,
    Never,
    Periodic,
    Policy,
    Scheduled,
)
from aesam.parts.radii import FollowingRate, WithinRise
from aesam.parts.samples import KeptOutputGradients, LargestRise, WholeBatch
from aesam.parts.scaled_ascents import WithFisher, WithWeights

pytestmark = pytest.mark.slow

# New parts, as a user would write them ------------------------------------------------------------


@dataclass(frozen=True)
class Capped(Policy):
    """A policy with a state of its own: at most a share of the steps so far."""

    share: float = 0.3

    def start(self):
        return {"spent": 0.0}

    def decide(self, now, state):
        fire = state["spent"] < self.share * (now.step + 1)
        return Decision(fire), {"spent": state["spent"] + fire}


@dataclass(frozen=True)
class AlongAverage(Ascent):
    """An ascent that keeps an EMA of the gradient, updated on every step."""

    keep: float = 0.5

    def observe(self, gradient: Gradient, memory: Memory) -> Memory:
        return Memory({}, dict(zip(gradient.params, self._mixed(gradient, memory), strict=True)))

    def direction(self, gradient, memory, generator):
        m = self._mixed(gradient, memory)
        return Direction(gradient.params, m, gradient.radii, tensors.norm_on_host(m))

    def _mixed(self, gradient, memory):
        pairs = zip(gradient.params, gradient.values, strict=True)
        true = [(p, g / gradient.scale) for p, g in pairs]
        return [self.keep * memory.tensors.get(p, g) + (1 - self.keep) * g for p, g in true]


@dataclass(frozen=True)
class AgainstMomentum(Ascent):
    """Moves the weights before the first pass, as MSAM does; needs no second gradient."""

    def before_pass(self, base, memory, generator):
        moved = [
            (p, -base.state[p]["momentum_buffer"], radius(group, 0.0))
            for group in base.param_groups
            for p in group["params"]
            if base.state[p].get("momentum_buffer") is not None
        ]
        params, vectors, radii = ([m[i] for m in moved] for i in range(3))
        return Direction(params, vectors, radii, tensors.norm_on_host(vectors))

    def direction(self, gradient, memory, generator):
        return Direction([], [], [], 0.0)


@dataclass(frozen=True)
class Decoupled(Combine):
    """The base steps on g; the rest is applied after it, as WSAM does."""

    weight: float = 0.5
    needs_first_gradient = True

    def combine(self, first, params, second, memory, generator):
        rest = [s - g for s, g in zip(second, first.values, strict=True)]
        tensors.assign(second, first.values)
        tensors.scale(rest, 1.0 / first.scale)
        return list(zip(params, rest, strict=True))

    def after_base_step(self, base, carried):
        rates = {id(p): group["lr"] for group in base.param_groups for p in group["params"]}
        for p, rest in carried or ():
            p.add_(rest, alpha=-self.weight * rates[id(p)])


POLICIES = [
    Always(),
    Never(),
    Bernoulli(0.5, 1),
    Periodic(2),
    Adaptive(total_steps=40),
    Budget(0.5),
    Scheduled(lambda t: t / 20, 2),
    Warmup(Bernoulli(0.7, 3) | ~Bernoulli(0.5, 4), 2),
    Capped(),
]
ASCENTS = [AlongGradient(), RandomSubset(0.5, 4), AlongAverage(), AgainstMomentum()]
SAMPLES = [WholeBatch(), LargestRise(0.5)]
BETWEEN = [Plain(), Reuse(0.3)]
COMBINE = [Replace(), Mix(0.7), Decoupled()]
#: Each of these with every policy, and with one other of each question.
VARIANTS = [
    *(
        {"ascent": ascent}
        for ascent in (
            WithWeights(), WithFisher(), AwayFromAverage(), averaged_ascents.AlongAverage(),
            NormLayers(), Named("*.weight"), FollowingRate(0.01), WithinRise(),
        )
    ),
    {"combine": SurrogateGap()},
    {"combine": WeightedSharpness(0.5)},
    {"combine": AnticorrelatedNoise()},
    {"samples": KeptOutputGradients()},
]  # fmt: skip
ALL = list(itertools.product(POLICIES, ASCENTS, SAMPLES, BETWEEN, COMBINE))


def assembled(parts, net=stochastic_net, base="sgd", **options):
    model = net()
    names = ("policy", "ascent", "samples", "between", "combine")
    chosen = dict(zip(names, parts, strict=True))
    opt = aesam.SharpnessAware(BASES[base](model.parameters()), model, **chosen, **options)
    return model, Problem(model), opt


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("ascent", ASCENTS, ids=lambda a: type(a).__name__)
def test_every_part_works_with_every_other(policy, ascent):
    for parts in itertools.product([policy], [ascent], SAMPLES, BETWEEN, COMBINE):
        check_trains_and_resumes(parts)


@pytest.mark.parametrize("part", VARIANTS, ids=lambda v: type(next(iter(v.values()))).__name__)
def test_every_part_of_a_variant_works_with_every_policy_and_with_others(part):
    others = {"ascent": RandomSubset(0.5, 4), "combine": Mix(0.7)}
    for policy in POLICIES:
        chosen = {**others, "samples": LargestRise(0.5), "between": Reuse(0.3), **part}
        names = ("ascent", "samples", "between", "combine")
        check_trains_and_resumes((policy, *(chosen[name] for name in names)))


def check_trains_and_resumes(parts):
    model, problem, opt = assembled(parts)
    before = weights(model)
    problem.train(opt, 8)
    assert not same(before, weights(model))
    assert all(torch.isfinite(w).all() for w in weights(model)), parts
    assert model[1].num_batches_tracked == 8

    kept = copy.deepcopy({"model": model.state_dict(), "opt": opt.state_dict()})
    rng = torch.get_rng_state()
    problem.train(opt, 4, start=8)
    other_model, other_problem, other = assembled(parts)
    other_model.load_state_dict(kept["model"])
    other.load_state_dict(kept["opt"])
    torch.set_rng_state(rng)
    other_problem.train(other, 4, start=8)
    assert same(weights(model), weights(other_model)), f"{parts} does not resume"


def test_mixing_nothing_and_all_of_the_second_gradient():
    ends = {}
    for name, combine, policy in [
        ("all", Mix(1.0), Always()),
        ("sam", Replace(), Always()),
        ("none", Mix(0.0), Always()),
        ("erm", Replace(), Never()),
    ]:
        model, problem, opt = assembled(
            (policy, AlongGradient(), WholeBatch(), Plain(), combine), mlp
        )
        problem.train(opt, 10)
        ends[name] = weights(model)
    assert same(ends["all"], ends["sam"])
    assert same(ends["none"], ends["erm"])


def test_mix_is_its_formula():
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = aesam.SharpnessAware(torch.optim.SGD([w], lr=1.0), policy=Always(), combine=Mix(0.7))
    w.grad = torch.tensor([1.0, 0.0]).double()
    assert opt.needs_second_pass()
    with opt.perturbed():
        w.grad = torch.tensor([0.0, 1.0]).double()
    torch.testing.assert_close(w.grad, torch.tensor([0.3, 0.7]).double())


def test_before_pass_moves_the_weights_for_the_first_gradient_only():
    w = nn.Parameter(torch.tensor([1.0, 0.0], dtype=torch.float64))
    base = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    opt = aesam.SharpnessAware(base, policy=Never(), ascent=AgainstMomentum(), rho=0.5)
    seen = []

    def closure():
        opt.zero_grad()
        seen.append(w.detach().clone())
        loss = w.square().sum() / 2
        loss.backward()
        return loss

    opt.step(closure)
    assert torch.equal(seen[0], torch.tensor([1.0, 0.0]).double())  # no momentum yet
    before = w.detach().clone()
    momentum = base.state[w]["momentum_buffer"].clone()
    opt.step(closure)
    torch.testing.assert_close(seen[1], before - 0.5 * momentum / momentum.norm())
    torch.testing.assert_close(w.detach(), before - 0.1 * (0.9 * momentum + seen[1]))


def test_before_pass_needs_first_pass_in_the_second_form():
    _, problem, opt = assembled((Always(), AgainstMomentum(), WholeBatch(), Plain(), Replace()))
    problem.losses(0).mean().backward()
    with pytest.raises(RuntimeError, match=r"opt\.first_pass"):
        opt.needs_second_pass()


def test_after_base_step_follows_the_update():
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = aesam.SharpnessAware(
        torch.optim.SGD([w], lr=0.1), policy=Always(), combine=Decoupled(weight=2.0)
    )
    w.grad = torch.ones(1).double()
    opt.needs_second_pass()
    with opt.perturbed():
        w.grad = torch.full((1,), 4.0).double()
    opt.step()
    assert w.item() == pytest.approx(-0.1 * 1 - 2.0 * 0.1 * (4 - 1))


def test_an_ascent_s_average_is_updated_on_cheap_steps_too():
    _, problem, opt = assembled((Never(), AlongAverage(), WholeBatch(), Plain(), Replace()), mlp)
    problem.step(opt, 0)
    one = copy.deepcopy(ours(opt.state_dict())["ascent"]["tensors"])
    problem.step(opt, 1)
    two = ours(opt.state_dict())["ascent"]["tensors"]
    assert set(one) == set(two) == {0, 1, 2, 3}
    assert not torch.equal(one[0], two[0])


def test_a_part_without_its_method_says_which():
    class Lazy(Policy):
        pass

    _, problem, opt = assembled((Lazy(), AlongGradient(), WholeBatch(), Plain(), Replace()))
    with pytest.raises(TypeError, match=r"Lazy must define decide\(now, state\)"):
        problem.step(opt, 0)
