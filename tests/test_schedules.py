"""Every scheduler of torch drives the base optimizer, and averaged weights are those of ``w``."""

import pytest
import torch
from support.problems import Problem, mlp, stochastic_net, weights
from torch.optim import lr_scheduler as S
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

import aesam

STEPS = 12

SCHEDULERS = {
    "ChainedScheduler": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 3), S.StepLR(o, 4)]),
    "ConstantLR": lambda o: S.ConstantLR(o, factor=0.1, total_iters=3),
    "CosineAnnealingLR": lambda o: S.CosineAnnealingLR(o, STEPS),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 4),
    "CyclicLR": lambda o: S.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "ExponentialLR": lambda o: S.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: S.LambdaLR(o, lambda t: 1 / (1 + t)),
    "LinearLR": lambda o: S.LinearLR(o, 0.1, total_iters=5),
    "MultiStepLR": lambda o: S.MultiStepLR(o, [2, 5]),
    "MultiplicativeLR": lambda o: S.MultiplicativeLR(o, lambda _: 0.9),
    "OneCycleLR": lambda o: S.OneCycleLR(o, 0.3, total_steps=STEPS + 1),
    "PolynomialLR": lambda o: S.PolynomialLR(o, STEPS),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: S.SequentialLR(
        o, [S.LinearLR(o, 0.1, total_iters=3), S.CosineAnnealingLR(o, 7)], [3]
    ),
    "StepLR": lambda o: S.StepLR(o, 3),
    "SWALR": lambda o: SWALR(o, swa_lr=0.02, anneal_epochs=4),
}


def test_no_scheduler_of_torch_is_left_out():
    known = {n for n in S.__all__ if isinstance(getattr(S, n), type)} - {"LRScheduler"}
    assert known | {"SWALR"} == set(SCHEDULERS)


@pytest.mark.filterwarnings("ignore:The epoch parameter in")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_on_the_wrapper_sets_what_it_would_set_on_the_base(name, matrix):
    seen = {True: [], False: []}
    for wrapped in (True, False):
        model = mlp()
        problem = Problem(model)
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        opt = aesam.AESAM(base, model, total_steps=STEPS) if wrapped else base
        scheduler = SCHEDULERS[name](opt)
        for t in range(STEPS):
            problem.step(opt, t) if wrapped else base.step()
            scheduler.step(*([float(t)] if name == "ReduceLROnPlateau" else []))
            seen[wrapped].append((base.param_groups[0]["lr"], base.param_groups[0]["momentum"]))
    assert seen[True] == seen[False]
    assert len(set(seen[True])) > 1
    matrix.right("plain PyTorch", "all 16 schedulers of torch", within=0.0)


@pytest.mark.parametrize("average", ["SWA", "EMA"])
def test_averages_are_of_the_weights_and_of_statistics_that_count_once(average, matrix):
    model = stochastic_net()
    problem = Problem(model)
    opt = aesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), model, rho=0.5)
    decay = get_ema_multi_avg_fn(0.9) if average == "EMA" else None
    averaged, passed = AveragedModel(model, multi_avg_fn=decay), []
    for t in range(STEPS):
        problem.step(opt, t)
        averaged.update_parameters(model)
        passed.append(weights(model))
    for i, found in enumerate(weights(averaged.module)):
        expected = passed[0][i]
        for n, now in enumerate((step[i] for step in passed[1:]), start=1):
            share = 0.1 if average == "EMA" else 1 / (n + 1)
            expected = expected + share * (now - expected)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    update_bn([problem.x[t] for t in range(5)], averaged)
    assert averaged.module[1].num_batches_tracked == 5
    matrix.right("plain PyTorch", f"{average} of torch.optim.swa_utils", within=1e-12)
