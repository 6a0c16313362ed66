"""A radius that makes up for the steps without a second gradient, against a literal loop."""

import copy
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support import twin
from support.problems import BASES, FOR_ANY_MODEL, METHODS, Problem, mlp, normed_mlp, same, weights
from support.saved import ours

import aesam
from aesam.parts.budget import Budget
from aesam.parts.policies import Late, Never, Periodic

STEPS = 60
OPTIONS = {
    "sam": {},
    "ss-sam": {"p": 0.3, "seed": 3},
    "looksam": {"k": 3, "alpha": 0.5},
    "ae-sam": {"lambda1": -1.0, "lambda2": 1.0, "delta": 0.9, "total_steps": STEPS},
    "ae-looksam": {
        "lambda1": 0.0, "lambda2": 2.0, "delta": 0.9, "total_steps": STEPS, "alpha": 0.3,
    },
    "esam": {"beta": 0.6, "gamma": 0.5, "seed": 5},
}  # fmt: skip


@dataclass
class Compensated(twin.Twin):
    """The twin, whose radius grows with the steps that took no second gradient."""

    bound: float = 1.0

    def perturbation(self, g):
        steps, fired = self.t + 1, sum(self.decisions) + 1  # the present one counts
        return min(self.bound, steps / fired) * super().perturbation(g)


def flat(model):
    return np.concatenate([p.detach().numpy().T.ravel() for p in model.parameters()])


@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize("method", OPTIONS)
def test_every_method_with_a_compensated_radius_is_its_literal_twin(method, normalize):
    model, options = mlp(), OPTIONS[method]
    problem = Problem(model)
    opt = METHODS[method](
        BASES["sgd"](model.parameters()),
        model, rho=0.1, normalize=normalize, compensate=2.5, **options,
    )  # fmt: skip
    base = twin.SGD(lr=0.1, momentum=0.9, weight_decay=1e-4)
    oracle = Compensated(method, flat(model), base, 0.1, normalize, options, bound=2.5)
    for t in range(STEPS):
        problem.step(opt, t)
        oracle.step(problem.x[t % 50].numpy(), problem.y[t % 50].numpy())
    assert [opt.sam_fraction] == [np.mean(oracle.decisions)]
    np.testing.assert_allclose(flat(model), oracle.w, rtol=0, atol=1e-10)


def factors(policy, bound, steps=STEPS, **options):
    model = mlp()
    problem = Problem(model)
    base = BASES["sgd"](model.parameters())
    opt = aesam.SharpnessAware(base, model, policy=policy, compensate=bound, **options)
    seen = []
    for t in range(steps):
        problem.step(opt, t)
        seen.append(opt.last_step.radius_factor)
    return seen, opt


def test_share_times_radius_stays_the_same():
    seen, _ = factors(Periodic(4), 100.0)
    fired = [f for f in seen if f is not None]
    assert fired == [(4 * i + 1) / (i + 1) for i in range(15)]  # towards 4
    assert seen[1] is None
    seen, _ = factors(Budget(0.25), 100.0, steps=200)
    assert [f for f in seen if f is not None][-1] == pytest.approx(4.0, rel=0.2)


def test_the_factor_starts_at_one_and_never_exceeds_its_bound():
    seen, _ = factors(Periodic(4), 2.0)
    assert seen[0] == 1.0
    assert {f for f in seen[8:] if f is not None} == {2.0}
    late, _ = factors(Late(0.75, STEPS), 3.0)
    assert late[45:] == [min(3.0, (t + 1) / (t - 44)) for t in range(45, STEPS)]
    assert late[45] == 3.0
    without, _ = factors(Periodic(4), None)
    assert {f for f in without if f is not None} == {1.0}
    one, _ = factors(Periodic(4), 1.0)
    assert one == without


def test_each_group_s_own_radius_is_multiplied():
    w, v = (torch.nn.Parameter(torch.tensor([3.0], dtype=torch.float64)) for _ in range(2))
    base = torch.optim.SGD([{"params": [w], "rho": 0.5}, {"params": [v], "maximize": True}], lr=0.1)
    opt = aesam.SharpnessAware(base, policy=Periodic(2), rho=0.2, compensate=10.0)
    at = []

    def closure():
        opt.zero_grad()
        at.append((w.item(), v.item()))
        loss = (w + v).sum()
        loss.backward()
        return loss

    for _ in range(3):
        opt.step(closure)
    (*_, before, displaced) = at
    assert opt.last_step.radius_factor == 1.5
    assert displaced[0] - before[0] == pytest.approx(1.5 * 0.5 / math.sqrt(2), rel=1e-12)
    assert displaced[1] - before[1] == pytest.approx(-1.5 * 0.2 / math.sqrt(2), rel=1e-12)


def test_a_loss_scaler_changes_nothing():
    ends = []
    for scale in (1.0, 1024.0):
        model = mlp()
        problem = Problem(model)
        opt = aesam.SharpnessAware(
            BASES["sgd"](model.parameters()), model, policy=Periodic(3), rho=0.1, compensate=5.0
        )
        for t in range(9):
            opt.zero_grad()
            (scale * problem.losses(t).mean()).backward()
            if opt.needs_second_pass(grad_scale=scale):
                with opt.perturbed():
                    (scale * problem.losses(t).mean()).backward()
            for p in model.parameters():
                p.grad /= scale
            opt.step()
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-14)


def test_going_on_from_a_checkpoint_is_not_stopping():
    def made():
        model = mlp()
        base = BASES["sgd"](model.parameters())
        opt = aesam.SSSAM(base, model, p=0.3, rho=0.1, compensate=4.0)
        return model, Problem(model), opt

    model, problem, opt = made()
    problem.train(opt, 13)
    kept = copy.deepcopy({"model": model.state_dict(), "opt": opt.state_dict()})
    problem.train(opt, 12, start=13)
    other_model, other_problem, other = made()
    other_model.load_state_dict(kept["model"])
    other.load_state_dict(kept["opt"])
    other_problem.train(other, 12, start=13)
    assert same(weights(model), weights(other_model))
    assert opt.last_step == other.last_step
    copied = copy.deepcopy(other)
    assert copied.compensate == 4.0


def test_another_bound_is_noticed_when_a_checkpoint_is_loaded():
    _, opt = factors(Periodic(2), 3.0, steps=2)
    assert ours(opt.state_dict())["ascent"]["settings"]["compensate"] == 3.0
    _, other = factors(Periodic(2), None, steps=0)
    with pytest.warns(UserWarning, match="ascent was saved with compensate=3.0; .*=None"):
        other.load_state_dict(opt.state_dict())


def test_it_is_shown_and_told_to_loggers():
    _, opt = factors(Periodic(2), 3.0, steps=3)
    assert "compensate: 3.0" in repr(opt)
    assert aesam.metrics(opt)["radius_factor"] == 1.5
    _, opt = factors(Periodic(2), None, steps=3)
    assert "radius_factor" not in aesam.metrics(opt)
    assert "compensate" not in repr(opt)


@pytest.mark.parametrize("bad", [0.5, 0, -1.0, math.inf, math.nan])
def test_a_bound_below_one_is_refused(bad):
    with pytest.raises(ValueError, match="compensate must be a finite number >= 1"):
        factors(Periodic(2), bad, steps=0)
    with pytest.raises(TypeError, match="compensate must be a finite number >= 1"):
        factors(Periodic(2), True, steps=0)


def test_every_method_takes_it_by_name_and_erm_has_no_use_for_it():
    for name in FOR_ANY_MODEL:
        assert aesam.create(name, normed_mlp(), momentum=0.9, compensate=2).compensate == 2.0
    seen, _ = factors(Never(), 3.0)
    assert set(seen) == {None}
