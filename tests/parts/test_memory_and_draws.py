"""Every part may remember, and every part with a seed draws from a generator of its own."""

import copy
from dataclasses import dataclass

import pytest
import torch
from support.problems import Problem, mlp, same, weights
from support.saved import ours

import aesam
from aesam import Between, Combine, Memory, Samples
from aesam.parts.policies import Always, Never, Periodic


@dataclass(frozen=True)
class RandomHalf(Samples):
    """Half of the rows, drawn; remembers how often it was asked."""

    seed: int = 0
    selects_rows = True
    remembers = ("count",)
    keeps_tensors = False

    def observe(self, gradient, memory):
        return Memory({"count": memory.number("count") + 1})

    def rows(self, before, after, memory, generator):
        return torch.randperm(len(before), generator=generator)[: len(before) // 2]


@dataclass(frozen=True)
class WithMomentum(Combine):
    """Adds half of the last direction, which it remembers."""

    needs_first_gradient = False

    def learn(self, first, params, second, memory, workspace):
        kept = workspace.take(params, second)
        for buffer, g_s in zip(kept, second, strict=True):
            buffer.copy_(g_s)
        return Memory({}, dict(zip(params, kept, strict=True)))

    def combine(self, first, params, second, memory, generator):
        for p, g_s in zip(params, second, strict=True):
            if p in memory.tensors:
                g_s.add_(memory.tensors[p], alpha=0.5)


@dataclass(frozen=True)
class Noisy(Between):
    """Noise of its own on the cheap steps."""

    seed: int = 3

    def adjust(self, gradient, memory, generator):
        for g in gradient.values:
            g.add_(torch.randn(g.shape, generator=generator, dtype=g.dtype), alpha=0.1)


@dataclass(frozen=True)
class NoisyCombine(Combine):
    """Noise of its own on the steps with two gradients."""

    seed: int = 4

    def combine(self, first, params, second, memory, generator):
        for g in second:
            g.add_(torch.randn(g.shape, generator=generator, dtype=g.dtype), alpha=0.1)


PARTS = [
    {"samples": RandomHalf(seed=1)},
    {"combine": WithMomentum()},
    {"combine": NoisyCombine()},
    {"between": Noisy(), "policy": Periodic(2)},
    {"samples": RandomHalf(2), "combine": WithMomentum(), "policy": Periodic(3)},
]


def assembled(parts):
    model = mlp()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    chosen = {"policy": Always(), **parts}
    return model, Problem(model), aesam.SharpnessAware(base, model, rho=0.1, **chosen)


@pytest.mark.parametrize(
    "parts", PARTS, ids=lambda p: "+".join(type(v).__name__ for v in p.values())
)
def test_going_on_from_a_checkpoint_is_not_stopping(parts):
    model, problem, opt = assembled(parts)
    problem.train(opt, 7)
    kept = copy.deepcopy({"model": model.state_dict(), "opt": opt.state_dict()})
    problem.train(opt, 5, start=7)
    other_model, other_problem, other = assembled(parts)
    other_model.load_state_dict(kept["model"])
    other.load_state_dict(kept["opt"])
    other_problem.train(other, 5, start=7)
    assert same(weights(model), weights(other_model))


def test_draws_leave_the_model_s_random_stream_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for parts in PARTS:
        _, problem, opt = assembled(parts)
        torch.set_rng_state(before)
        problem.train(opt, 3)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_combination_sees_what_it_learned_on_the_step_before():
    w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = aesam.SharpnessAware(
        torch.optim.SGD([w], lr=1.0), policy=Always(), combine=WithMomentum()
    )
    directions = []
    for g_s in (2.0, 4.0, 8.0):
        w.grad = torch.ones(1).double()
        opt.needs_second_pass()
        with opt.perturbed():
            w.grad = torch.full((1,), g_s).double()
        directions.append(w.grad.item())
        opt.step()
    assert directions == [2.0, 4.0 + 1.0, 8.0 + 2.0]


def test_a_discarded_step_leaves_memory_and_draws_as_they_were():
    _, problem, opt = assembled({"samples": RandomHalf(seed=1), "combine": WithMomentum()})
    problem.train(opt, 3)
    kept = copy.deepcopy(ours(opt.state_dict()))
    problem.losses(3).mean().backward()
    assert opt.needs_second_pass(losses=problem.losses(3))
    with pytest.raises(ZeroDivisionError), opt.perturbed() as at:
        _ = at.rows(lambda: problem.losses(3)).numel() / 0
    now = ours(opt.state_dict())
    assert (
        now["samples"] == kept["samples"] == {"settings": {}, "values": {"count": 3}, "tensors": {}}
    )
    assert now["generators"]["samples"] == kept["generators"]["samples"]
    assert all(
        map(torch.equal, now["combine"]["tensors"].values(), kept["combine"]["tensors"].values())
    )


def test_a_damaged_memory_is_refused_and_nothing_changes():
    model, problem, opt = assembled({"combine": WithMomentum()})
    problem.train(opt, 2)
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][0]["aesam.combine"] = torch.zeros(1)
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises(ValueError, match=r"damaged at combine\['tensors'\]\[0\]"):
        opt.load_state_dict(saved)
    assert repr(opt.state_dict()) == repr(before)


def test_only_parts_that_may_remember_tensors_have_a_place_for_them():
    model, problem, opt = assembled({"samples": RandomHalf(), "combine": WithMomentum()})
    assert set(opt.state_dict()["state"][0]) == {"aesam.combine", "aesam.combine.formed"}
    _, problem, opt = assembled({"samples": RandomHalf()})
    problem.train(opt, 2)
    assert all(not any("aesam" in name for name in e) for e in opt.state_dict()["state"].values())


def test_a_memory_that_could_not_be_read_again_is_not_saved():
    class Forgetful(WithMomentum):
        keeps_tensors = False

    class Unnamed(RandomHalf):
        remembers = ()

    for part, why in (
        ({"combine": Forgetful()}, "keeps_tensors"),
        ({"samples": Unnamed()}, "name"),
    ):
        _, problem, opt = assembled(part)
        problem.train(opt, 1)
        with pytest.raises(TypeError, match=why):
            opt.state_dict()


def test_a_number_that_is_not_yet_remembered_is_saved_as_zero():
    class Both(Between):
        remembers = ("seen", "learned")

        def observe(self, gradient, memory):
            return Memory({**memory.values, "seen": memory.number("seen") + 1})

    model = mlp()
    make = lambda: aesam.SharpnessAware(  # noqa: E731
        torch.optim.SGD(model.parameters(), lr=0.1), policy=Never(), between=Both()
    )
    opt, other = make(), make()
    assert ours(opt.state_dict())["between"]["values"] == {}
    Problem(model).train(opt, 3)
    other.load_state_dict(opt.state_dict())
    assert ours(other.state_dict())["between"]["values"] == {"seen": 3.0, "learned": 0.0}


def test_what_is_observed_on_a_step_is_there_when_it_learns():
    class Both(Between):
        remembers = ("seen", "learned")

        def observe(self, gradient, memory):
            return Memory({**memory.values, "seen": memory.number("seen") + 1})

        def learn(self, first, params, second, memory, workspace):
            return Memory({**memory.values, "learned": memory.number("learned") + 1})

    model = mlp()
    opt = aesam.SharpnessAware(
        torch.optim.SGD(model.parameters(), lr=0.1), policy=Periodic(2), between=Both()
    )
    Problem(model).train(opt, 6)
    assert ours(opt.state_dict())["between"]["values"] == {"seen": 6.0, "learned": 3.0}
