"""Stopping and going on is not stopping, to the bit; and what cannot be gone on from is refused."""

import copy
import io
from pathlib import Path

import pytest
import torch
from support.problems import BASES, METHODS, Problem, mlp, same, stochastic_net, weights
from support.saved import damaged, ours
from torch import nn

import aesam

BEFORE = Path(__file__).parent / "before"


def new(method, base, seed=0):
    model = stochastic_net(seed)
    return model, Problem(model), METHODS[method](BASES[base](model.parameters()), model)


def through_a_file(saved):
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("base", ["sgd", pytest.param("adamw", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_resuming_at_any_step_is_not_stopping_to_the_bit(method, base, matrix):
    steps = 12
    model, problem, opt = new(method, base)
    torch.manual_seed(9)
    saved = []
    for t in range(steps):
        whole = {"model": model.state_dict(), "opt": opt.state_dict(), "rng": torch.get_rng_state()}
        saved.append(through_a_file(whole))
        problem.step(opt, t)
    for stopped, checkpoint in enumerate(saved):
        other_model, other_problem, other = new(method, base, seed=99)
        other_model.load_state_dict(checkpoint["model"])
        other.load_state_dict(checkpoint["opt"])
        torch.set_rng_state(checkpoint["rng"])
        other_problem.train(other, steps - stopped, start=stopped)
        assert same(weights(model), weights(other_model)), f"stopped at {stopped}"
        assert same(list(model.buffers()), list(other_model.buffers()))
        assert other.last_step == opt.last_step or stopped == steps
        assert other.sam_fraction == opt.sam_fraction
    matrix.right("plain PyTorch", "state_dict, load_state_dict", within=0.0)


def test_a_state_dict_is_not_changed_by_training_on():
    model, problem, opt = new("looksam", "sgd")
    problem.train(opt, 4)
    kept = opt.state_dict()
    memories = [entry["aesam.between"].clone() for entry in kept["state"].values()]
    problem.train(opt, 4, start=4)
    assert same(memories, [entry["aesam.between"] for entry in kept["state"].values()])
    assert ours(kept)["step"] == 4


def test_a_state_dict_holds_one_copy_of_what_is_remembered_and_none_of_the_base_s():
    model, problem, opt = new("looksam", "sgd")
    problem.train(opt, 4)
    saved = opt.state_dict()["state"]
    for entry, own in zip(saved.values(), opt.base.state.values(), strict=True):
        assert entry["momentum_buffer"] is own["momentum_buffer"]
    storages = {entry["aesam.between"].untyped_storage() for entry in saved.values()}
    assert sum(s.nbytes() for s in storages) == sum(p.nbytes for p in model.parameters())


def test_layout_of_the_state_dict():
    model, problem, opt = new("ae-looksam", "adamw")
    problem.train(opt, 40)
    saved, base = opt.state_dict(), opt.base.state_dict()
    assert set(saved) == {"state", "param_groups"}
    for group, of_base in zip(saved["param_groups"], base["param_groups"], strict=True):
        assert isinstance(group.pop("aesam"), str)
        assert group == of_base
    for i, entry in saved["state"].items():
        assert entry.keys() - base["state"][i].keys() == {"aesam.between", "aesam.between.formed"}
        assert entry["aesam.between"].shape == list(model.parameters())[i].shape
    sections = ours(opt.state_dict())
    assert set(sections) == {
        "version", "method", "step", "policy", "ascent", "samples", "between", "combine",
        "generators", "counts",
    }  # fmt: skip
    assert sections["step"] == 40
    assert sections["counts"] == {"sam": round(40 * opt.sam_fraction), "skipped": 0}
    assert set(sections["between"]["tensors"]) == set(saved["state"])


def every_key(saved):
    state = {(i, name) for i, entry in saved["state"].items() for name in entry}
    return state | {(i, name) for i, g in enumerate(saved["param_groups"]) for name in g}


@pytest.mark.parametrize("method", METHODS)
def test_a_fresh_optimizer_shows_every_key_of_ours(method):
    """Loaders fill in what is there: a memory that is not yet formed is zeros, and says so."""
    model, problem, opt = new(method, "sgd")
    fresh, base = opt.state_dict(), opt.base.state_dict()
    assert all(not t.any() for entry in fresh["state"].values() for t in entry.values())
    problem.train(opt, 40)
    missing = every_key(opt.state_dict()) - every_key(fresh)
    assert missing == every_key(opt.base.state_dict()) - every_key(base)


def test_the_base_never_sees_what_is_ours():
    model, problem, opt = new("looksam", "adamw")
    other_model, _, other = new("looksam", "adamw")
    other.load_state_dict(opt.state_dict())
    assert not other.base.state  # else its lazy initialisation would find something there
    problem.train(opt, 4)
    other.load_state_dict(opt.state_dict())
    expected = {"step", "exp_avg", "exp_avg_sq"}
    for each in (opt, other):
        assert all(entry.keys() == expected for entry in each.base.state.values())
        assert all("aesam" not in group for group in each.param_groups)


def test_the_wrapper_s_dict_loaded_into_the_base_leaves_the_method_as_it_was():
    model, problem, opt = new("looksam", "adamw")
    problem.train(opt, 4)
    other_model, _, other = new("looksam", "adamw")
    fresh = ours(other.state_dict())
    other.base.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert repr(other.base.state_dict()) == repr(opt.base.state_dict())
    assert ours(other.state_dict()) == fresh
    other.base.load_state_dict(new("looksam", "adamw")[2].state_dict())
    assert not other.base.state


def test_a_memory_of_some_parameters_stays_one_of_those():
    a, b = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    opt = aesam.LookSAM(torch.optim.SGD([a, b, frozen], lr=0.1), k=1)
    a.grad = torch.tensor([1.0, 0.0]).double()
    opt.needs_second_pass()
    with opt.perturbed():
        a.grad = torch.tensor([1.0, 2.0]).double()
    opt.step()
    saved = opt.state_dict()
    flags = {i: entry["aesam.between.formed"].item() for i, entry in saved["state"].items()}
    assert flags == {0: True, 1: False}
    other = aesam.LookSAM(torch.optim.SGD([a, b, frozen], lr=0.1), k=1)
    other.load_state_dict(saved)
    assert repr(other.state_dict()) == repr(saved)
    a.requires_grad_(False)  # what a frozen parameter remembers is kept
    assert opt.state_dict()["state"][0]["aesam.between.formed"]


# Refusals -----------------------------------------------------------------------------------------


NAN = float("nan")
DAMAGES = {
    "no version": (("text", "version"), KeyError),
    "another version": (("text", "version"), 99),
    "another method": (("text", "method"), "Always/AlongGradient/WholeBatch/Plain/Replace"),
    "unknown key": (("text", "surprise"), 1),
    "unknown key outside": (("surprise",), 1),
    "no state": (("state",), KeyError),
    "state is no dict": (("state",), [1]),
    "no groups": (("param_groups",), KeyError),
    "no text": (("param_groups", 0, "aesam"), KeyError),
    "text is no text": (("param_groups", 0, "aesam"), 7),
    "half of a text": (("param_groups", 0, "aesam"), '{"version": 2, "me'),
    "text of something else": (("param_groups", 0, "aesam"), "[1, 2]"),
    "groups are no list": (("param_groups",), {}),
    "a group too many": (("param_groups",), [{}, {}]),
    "a group without lr": (("param_groups", 0, "lr"), KeyError),
    "a group without rho": (("param_groups", 0, "rho"), KeyError),
    "a group with fewer parameters": (("param_groups", 0, "params"), [0]),
    "a group without parameters": (("param_groups", 0, "params"), KeyError),
    "momentum of another shape": (("state", 0, "momentum_buffer"), torch.zeros(7)),
    "state of a parameter that is not there": (("state", 999), {}),
    "negative step": (("text", "step"), -1),
    "step is no number": (("text", "step"), "3"),
    "more SAM steps than steps": (("text", "counts", "sam"), 10**6),
    "no counts": (("text", "counts"), {}),
    "policy without its mean": (("text", "policy", "state", "mean"), KeyError),
    "policy mean is NaN": (("text", "policy", "state", "mean"), NAN),
    "policy is no dict": (("text", "policy"), [1]),
    "unknown policy state": (("text", "policy", "state", "median"), 1.0),
    "no between": (("text", "between"), KeyError),
    "between is no dict": (("text", "between"), 3),
    "between without a count": (("text", "between", "tensors"), KeyError),
    "direction of another shape": (("state", 0, "aesam.between"), torch.zeros(3)),
    "direction is NaN": (("state", 0, "aesam.between"), torch.full((16, 3), NAN)),
    "direction of no parameter": (
        ("state", 77),
        {"aesam.between": torch.zeros(2), "aesam.between.formed": torch.tensor(True)},
    ),
    "direction is no tensor": (("state", 0, "aesam.between"), "x"),
    "no direction": (("state", 0, "aesam.between"), KeyError),
    "direction without its flag": (("state", 0, "aesam.between.formed"), KeyError),
    "flag of something else": (("state", 0, "aesam.between.formed"), "yes"),
    "direction that is not formed": (("state", 0, "aesam.between.formed"), torch.tensor(False)),
    "one parameter less": (("state", 0), KeyError),
    "memory of a part that has none": (("state", 0, "aesam.surprise"), torch.zeros(3)),
    "direction without its norm": (("text", "between", "values"), {}),
    "norm is infinite": (("text", "between", "values", "norm"), float("inf")),
    "generator of another kind": (("text", "generators", "policy"), "AAAA"),
    "generators are no dict": (("text", "generators"), 5),
}

#: Where version 1 had what version 2 has elsewhere.
DAMAGES_OF_VERSION_1 = {
    "no version": (("aesam", "version"), KeyError),
    "another version": (("aesam", "version"), 99),
    "the version of another layout": (("aesam", "version"), 2),
    "unknown key": (("aesam", "surprise"), 1),
    "unknown key outside": (("surprise",), 1),
    "no state": (("state",), KeyError),
    "ours is no dict": (("aesam",), "text"),
    "groups are no list": (("param_groups",), {}),
    "no counts": (("aesam", "counts"), {}),
    "policy is no dict": (("aesam", "policy"), [1]),
    "direction of another shape": (("aesam", "between", "tensors", 0), torch.zeros(3)),
    "direction is NaN": (("aesam", "between", "tensors", 0), torch.full((4, 3), NAN)),
    "direction of no parameter": (("aesam", "between", "tensors", 77), torch.zeros(2)),
    "direction is no tensor": (("aesam", "between", "tensors", 0), "x"),
    "direction without its norm": (("aesam", "between", "values"), {}),
    "generator of another kind": (("aesam", "generators", "policy"), torch.zeros(3)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_dict_is_refused_and_changes_nothing(damage):
    model, problem, opt = new("ae-looksam", "sgd")
    problem.train(opt, 40)
    assert ours(opt.state_dict())["between"]["tensors"]
    good = copy.deepcopy(opt.state_dict())
    _, other_problem, other = new("ae-looksam", "sgd")
    other_problem.train(other, 3)
    before, state, groups = copy.deepcopy(other.state_dict()), other.state, other.param_groups
    path, value = DAMAGES[damage]
    with pytest.raises((ValueError, TypeError, KeyError)) as refused:
        other.load_state_dict(damaged(good, path, value))
    assert len(str(refused.value)) > 20
    assert repr(other.state_dict()) == repr(before)
    assert other.state is state
    assert other.param_groups is groups
    other.load_state_dict(good)
    assert repr(other.state_dict()) == repr(good)


@pytest.mark.parametrize("damage", DAMAGES_OF_VERSION_1)
def test_a_damaged_state_dict_of_version_1_is_refused_and_changes_nothing(damage):
    saved = torch.load(BEFORE / "optimizers_version_1.pt", weights_only=True)
    good = saved["ae-looksam"]["optimizer"]
    assert good["aesam"]["between"]["tensors"]
    model = mlp()
    opt = METHODS["ae-looksam"](BASES["adamw"](model.parameters()), model)
    before = repr(opt.state_dict())
    with pytest.raises((ValueError, TypeError, KeyError)) as refused:
        opt.load_state_dict(damaged(good, *DAMAGES_OF_VERSION_1[damage]))
    assert len(str(refused.value)) > 20
    assert repr(opt.state_dict()) == before
    opt.load_state_dict(good)


def test_groups_of_two_checkpoints_are_refused():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    opt = aesam.SAM(torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.7))
    saved = opt.state_dict()
    opt.load_state_dict(saved)
    a.grad = torch.ones(1)
    opt.needs_second_pass()
    with opt.perturbed():
        a.grad = torch.ones(1)
    opt.step()
    mixed = [saved["param_groups"][0], opt.state_dict()["param_groups"][1]]
    with pytest.raises(ValueError, match="different checkpoints"):
        opt.load_state_dict({**saved, "param_groups": mixed})


def test_a_base_optimizer_s_dict_is_refused_with_a_hint():
    _, problem, opt = new("sam", "sgd")
    problem.train(opt, 2)
    with pytest.raises(ValueError, match=r"opt\.base\.load_state_dict"):
        opt.load_state_dict(opt.base.state_dict())
    opt.base.load_state_dict(opt.base.state_dict())
    problem.train(opt, 2)
    assert opt.param_groups[0]["rho"] == 0.05


def test_a_plain_torch_checkpoint_loaded_into_the_base_keeps_the_radius():
    model = mlp()
    plain = BASES["sgd"](model.parameters())
    opt = aesam.SAM(BASES["sgd"](model.parameters()), rho=0.3)
    opt.base.load_state_dict(plain.state_dict())
    assert opt.param_groups[0]["rho"] == 0.3
    opt.load_state_dict(opt.state_dict())
    next(model.parameters()).grad = torch.ones(4, 3).double()
    before = weights(model)[0]
    assert opt.needs_second_pass()
    with opt.perturbed():
        moved = next(model.parameters()).detach() - before
        next(model.parameters()).grad = torch.ones(4, 3).double()
    assert moved.norm().item() == pytest.approx(0.3)


def test_something_that_is_no_dict_is_refused():
    _, _, opt = new("sam", "sgd")
    with pytest.raises(TypeError, match="takes a dict, got list"):
        opt.load_state_dict([])


@pytest.mark.parametrize("method", METHODS)
def test_the_state_of_another_method_is_refused(method):
    _, problem, opt = new(method, "sgd")
    problem.train(opt, 2)
    for other_method in set(METHODS) - {method}:
        _, _, other = new(other_method, "sgd")
        with pytest.raises(ValueError, match="of another method"):
            other.load_state_dict(opt.state_dict())


def test_settings_follow_the_constructor_and_a_difference_warns():
    model, problem, opt = new("ae-looksam", "sgd")
    problem.train(opt, 5)
    longer = aesam.AELookSAM(
        BASES["sgd"](model.parameters()), model, total_steps=500, alpha=0.1, normalize=False
    )
    with pytest.warns(UserWarning) as caught:
        longer.load_state_dict(opt.state_dict())
    said = " ".join(str(w.message) for w in caught)
    assert "total_steps=120; this optimizer goes on with total_steps=500" in said
    assert "alpha=0.5" in said
    assert "normalize=True" in said
    assert longer.policy.total_steps == 500
    assert ours(longer.state_dict())["step"] == 5


def test_groups_follow_the_checkpoint_as_in_torch():
    model, problem, opt = new("sam", "sgd")
    opt.param_groups[0]["lr"] = 0.007
    opt.param_groups[0]["rho"] = 0.7
    _, _, other = new("sam", "sgd")
    other.load_state_dict(opt.state_dict())
    assert (other.param_groups[0]["lr"], other.param_groups[0]["rho"]) == (0.007, 0.7)


def test_tensors_go_to_their_parameter_s_dtype_and_are_copies():
    model, problem, opt = new("looksam", "sgd")
    problem.train(opt, 2)
    saved = copy.deepcopy(opt.state_dict())
    for entry in saved["state"].values():
        entry["aesam.between"] = entry["aesam.between"].float()
    opt.load_state_dict(saved)
    loaded = ours(opt.state_dict())["between"]["tensors"]
    assert all(t.dtype == torch.float64 for t in loaded.values())
    kept = saved["state"][0]["aesam.between"].clone()
    problem.train(opt, 4)
    assert torch.equal(saved["state"][0]["aesam.between"], kept)


def test_loading_forgets_a_pending_step():
    model, problem, opt = new("sam", "sgd")
    problem.step(opt, 0)
    saved = copy.deepcopy(opt.state_dict())
    problem.losses(1).mean().backward()
    assert opt.needs_second_pass()
    opt.load_state_dict(saved)
    with pytest.raises(RuntimeError, match="closure"):
        opt.step()
    assert opt.skipped_steps == 0


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


def test_settings_of_every_part_are_compared_on_load_but_not_seeds():
    model = mlp()
    opt = aesam.ESAM(BASES["sgd"](model.parameters()), model, gamma=0.5, seed=1)
    other = aesam.ESAM(BASES["sgd"](model.parameters()), model, gamma=0.7, seed=2)
    with pytest.warns(UserWarning, match="samples.gamma=0.5") as caught:
        other.load_state_dict(opt.state_dict())
    assert len(caught) == 1


def test_a_direction_that_overflowed_is_not_saved():
    """Half precision: the second gradient is finite, its difference to the first is not."""
    w = torch.nn.Parameter(torch.zeros(8, dtype=torch.float16))
    opt = aesam.LookSAM(torch.optim.SGD([w], lr=1e-9), k=2)
    w.grad = torch.full_like(w, 100.0)
    assert opt.needs_second_pass()
    with opt.perturbed():
        w.grad = torch.full_like(w, 60000.0)
        w.grad[0] = -60000.0
    opt.step()
    saved = opt.state_dict()
    assert ours(saved)["between"]["tensors"] == {}
    aesam.LookSAM(torch.optim.SGD([w], lr=1e-9), k=2).load_state_dict(saved)
    opt.zero_grad()
    w.grad = torch.full_like(w, 100.0)
    assert not opt.needs_second_pass()
    assert w.grad.eq(100.0).all()


def test_a_base_that_wants_sparse_gradients_is_loaded_too():
    """What it keeps of a parameter cannot be found out with a gradient of zeros."""
    tables = [torch.nn.Embedding(9, 2, sparse=True) for _ in range(2)]
    opts = [aesam.SAM(torch.optim.SparseAdam(t.parameters(), lr=0.1), t) for t in tables]
    tables[1].load_state_dict(tables[0].state_dict())
    rows = torch.tensor([1, 4, 4])

    def step(table, opt):
        def closure():
            opt.zero_grad()
            loss = table(rows).square().sum()
            loss.backward()
            return loss

        opt.step(closure)

    step(tables[0], opts[0])
    tables[1].load_state_dict(tables[0].state_dict())
    opts[1].load_state_dict(copy.deepcopy(opts[0].state_dict()))
    for table, opt in zip(tables, opts, strict=True):
        step(table, opt)
    assert torch.equal(tables[0].weight, tables[1].weight)
