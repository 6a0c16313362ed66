"""A bad argument is refused by its name, or training with it works: the same table for all."""

import math
import warnings
from fractions import Fraction

import numpy
import pytest
import torch
from support.problems import BASES, FOR_ANY_MODEL, Problem, normed_mlp, same, weights

import aesam
from aesam import registry

VALUES = {
    "no number": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "the largest number": 1e308,
    "minus the largest": -1e308,
    "the smallest number": 5e-324,
    "zero": 0,
    "minus one": -1,
    "one": 1,
    "a half": 0.5,
    "a large whole number": 10**30,
    "more digits than any float": 10**400,
    "a fraction": Fraction(1, 3),
    "a number of numpy": numpy.float32(0.25),
    "nothing": None,
    "yes": True,
    "a word": "0.1",
    "no word": "",
    "a list": [0.1],
    "a tensor": torch.tensor(0.1),
    "two numbers": torch.ones(2),
    "complex": 1j,
    "an object": object(),
    "a class": dict,
}
KEYWORDS = (
    "total_steps", "seed", "nonfinite", "replay", "max_norm", "local_ascent", "compensate",
)  # fmt: skip
METHODS = FOR_ANY_MODEL


def keywords_of(method):
    record = aesam.method_record(method)
    others = [k for k in KEYWORDS if k != "total_steps" or record.needs_total_steps]
    return [*record.defaults, *(k for k in others if k != "seed" or record.needs_seed)]


def make(method, dtype, **given):
    record = aesam.method_record(method)
    model = normed_mlp().to(dtype)
    if record.needs_total_steps and "total_steps" not in record.standing_back(given):
        given = {"total_steps": 20, **given}
    return model, Problem(model), record.make(BASES["sgd"](model.parameters()), model, **given)


def is_refused(method, dtype, keyword, value):
    """Whether the constructor refuses it in words that name the argument."""
    try:
        make(method, dtype, **{keyword: value})
    except (TypeError, ValueError) as error:
        if keyword not in str(error):
            pytest.fail(f"{method}({keyword}={value!r}) is refused without its name: {error}")
        return True
    return False


def works(method, dtype, keyword, value):
    """Four steps: the weights stay finite, whatever the method makes of it."""
    model, problem, opt = make(method, dtype, **{keyword: value})
    if opt.needs_total_steps:
        opt.set_total_steps(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # skipped updates; training past its end
        for t in range(4):
            try:
                if opt.replay:
                    opt.zero_grad()
                    problem.losses(t).mean().backward()
                    opt.step()
                else:
                    problem.step(opt, t)
            except aesam.NonFiniteGradient:
                assert opt.nonfinite == "raise"
        opt.load_state_dict(opt.state_dict())
    assert all(w.isfinite().all() for w in weights(model)), f"{method}({keyword}={value!r})"


#: An average of weights needs more than 16 bits, and is refused for that alone.
TRAINED = [
    (method, dtype)
    for method in METHODS
    for dtype in (torch.float64, torch.float32, torch.bfloat16)
    if (method, dtype) != ("mesa", torch.bfloat16)
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "dtype"), TRAINED)
def test_a_bad_argument_is_refused_by_name_or_training_works(method, dtype, faults):
    every = [(keyword, name) for keyword in keywords_of(method) for name in VALUES]
    chosen, refused = faults.of(every, short=90), 0
    for keyword, name in chosen:
        if is_refused(method, dtype, keyword, VALUES[name]):
            refused += 1
        else:
            works(method, dtype, keyword, VALUES[name])
    faults.held("a bad argument of a method", refused, "refused by its name")
    faults.held("an odd argument of a method", len(chosen) - refused, "trains; weights finite")


CALLS = {
    "grad_scale": lambda opt, v: opt.needs_second_pass(grad_scale=v),
    "total_steps": lambda opt, v: opt.set_total_steps(v),
    "rho": lambda opt, v: opt.add_param_group({"params": [new()], "rho": v}),
    "load_state_dict": lambda opt, v: opt.load_state_dict(v),
    "closure": lambda opt, v: opt.step(v),
}


def new():
    return torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_argument_of_a_call_is_refused_by_name_and_changes_nothing(name, faults):
    tried = 0
    for value in VALUES.values():
        model, problem, opt = make("ae-looksam", torch.float64)
        problem.train(opt, 2)
        before, kept = weights(model), repr(opt.state_dict())
        try:
            CALLS[name](opt, value)
        except (TypeError, ValueError, RuntimeError) as error:
            tried += 1
            told = str(error)
            assert name in told, (value, told)
            assert same(weights(model), before)
            assert repr(opt.state_dict()) == kept
            problem.train(opt, 1)
    faults.held("a bad argument of a call", tried, "refused by its name; nothing changed")


@pytest.mark.parametrize(
    "make_method",
    [
        lambda base, model: aesam.LookSAM(base, model, k=2, alpha=1e308),
        lambda base, model: aesam.SAM(base, model, rho=1e308),
        lambda base, model: aesam.SAM(base, model, rho=1e308, normalize=False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_setting_beyond_all_numbers_ends_in_a_skipped_update(make_method, dtype):
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=dtype))
    opt = make_method(torch.optim.SGD([w], lr=0.1), None)

    def closure():
        opt.zero_grad()
        loss = (w.square() * w.square()).sum() * torch.tensor(0.25, dtype=dtype)
        loss.backward()
        return loss

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(4):
            opt.step(closure)
    assert ["skipped" in str(warning.message) for warning in told] == [True]
    assert opt.skipped_steps > 0
    assert w.isfinite().all()


def test_every_setting_of_every_method_is_in_the_table():
    known = {s.name for name in METHODS for s in aesam.method_record(name).settings}
    assert known <= {k for name in METHODS for k in keywords_of(name)}
    assert set(registry.COMMON) <= {k for name in METHODS for k in keywords_of(name)}
