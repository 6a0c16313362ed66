"""A damaged state dict is refused and changes nothing, or training goes on from it."""

import copy
import json
import math
import warnings

import pytest
import torch
from support.problems import ASSEMBLED, BASES, METHODS, VARIANTS, Problem, mlp, same, weights

STEPS = 4
SAVED = (
    METHODS
    | ASSEMBLED
    | {name: VARIANTS[name] for name in ("f-sam", "anti-pgd", "lpf-sgd", "mesa")}
)
WRONG = {
    "nothing": None,
    "a word": "x",
    "no number": math.nan,
    "infinity": math.inf,
    "a large number": 1e308,
    "below zero": -1,
    "a switch": True,
    "a list": [],
    "a dict": {},
    "bytes": b"\xff",
    "a large whole number": 10**30,
    "a tensor of another shape": torch.ones(7),
    "a tensor with no number": torch.tensor([math.nan]),
    "whole numbers": torch.ones(4, 3, dtype=torch.int64),
}


def places(tree, path=()):
    """The way to every dict, list and leaf of a state dict, the JSON texts of ours included."""
    if path and path[-1] != "json":
        yield path
    if path and path[-1] == "aesam" and isinstance(tree, str):
        yield from places(json.loads(tree), (*path, "json"))
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*path, key))
    elif isinstance(tree, list):
        for i, value in enumerate(tree):
            yield from places(value, (*path, i))


def changed(tree, path, change):
    """A copy in which ``change(container, key)`` was made at the end of the way."""
    if path[0] == "json":
        return json.dumps(changed(json.loads(tree), path[1:], change), default=str)
    tree = copy.copy(tree)
    if len(path) == 1:
        change(tree, path[0])
    else:
        tree[path[0]] = changed(tree[path[0]], path[1:], change)
    return tree


def in_every_group(saved, path, change):
    """Ours stands in each group; a change of one alone is refused for that reason."""
    if path[:1] == ("param_groups",) and "json" in path:
        for i in range(len(saved["param_groups"])):
            saved = changed(saved, ("param_groups", i, *path[2:]), change)
        return saved
    return changed(saved, path, change)


def taken_away(container, key):
    del container[key]


def replaced(value):
    def change(container, key):
        container[key] = value

    return change


def added(container, key):
    if isinstance(container[key], dict):
        container[key] = {**container[key], "strange": 1}
    else:
        container[key] = [container[key]]


def make(method, base):
    model = mlp()
    return model, Problem(model), SAVED[method](BASES[base](model.parameters()), model)


def is_refused(opt, saved):
    try:
        opt.load_state_dict(saved)
    except (TypeError, ValueError):
        return True
    return False


def goes_on(problem, opt, where):
    try:
        problem.train(opt, 2, start=STEPS)
        if all(w.isfinite().all() for w in weights(problem.model)):
            opt.load_state_dict(opt.state_dict())
    except Exception as error:
        pytest.fail(f"{where}: loaded, then {error!r}")


CHANGES = {"taken away": taken_away, "something added": added} | {
    name: replaced(value) for name, value in WRONG.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("base", ["sgd", "adamw"])
@pytest.mark.parametrize("method", SAVED)
def test_a_damaged_state_dict_is_refused_and_changes_nothing_or_works(method, base, faults):
    _, problem, opt = make(method, base)
    problem.train(opt, STEPS)
    saved = opt.state_dict()
    every = [(path, name) for path in places(saved) for name in CHANGES]
    chosen, refused = faults.of(every, short=150), 0
    for path, name in chosen:
        where = f"{name} at {path}"
        bad = in_every_group(saved, path, CHANGES[name])
        model, problem, fresh = make(method, base)
        problem.train(fresh, 2)
        before, kept = weights(model), repr(fresh.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # settings that differ
            if is_refused(fresh, bad):
                refused += 1
                assert repr(fresh.state_dict()) == kept, where
                assert same(weights(model), before), where
                problem.train(fresh, 1)
            else:
                goes_on(problem, fresh, where)
    faults.held("a damaged state dict", refused, "refused in words; nothing was loaded")
    if len(chosen) > refused:
        faults.held("a state dict with another setting", len(chosen) - refused, "goes on")
