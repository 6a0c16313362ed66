"""What holds for every measure: nothing is disturbed, the seed decides, bad input is refused."""

import random

import numpy as np
import pytest
import torch
from support.sharpness_examples import MEASURES, data, mlp, stochastic
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from aesam import sharpness

every = pytest.mark.parametrize("name", MEASURES)
MODES = ("eval", "train")


def measure(name, model, loss=mse_loss, batches=None, **settings):
    function, usual = MEASURES[name]
    return function(model, loss, data() if batches is None else batches, **{**usual, **settings})


def state_of(model):
    """Everything that must stay: to the bit, and in the same storage."""
    tensors = [*model.parameters(), *model.buffers()]
    return {
        "bits": [t.detach().clone() for t in tensors],
        "storage": [t.data_ptr() for t in tensors],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
    }


def assert_same(before, after):
    for left, right in zip(before["bits"], after["bits"], strict=True):
        assert torch.equal(left, right)
    for left, right in zip(before["gradients"], after["gradients"], strict=True):
        assert (left is None and right is None) or torch.equal(left, right)
    assert torch.equal(before["torch"], after["torch"])
    for key in ("storage", "modes", "requires_grad", "python", "numpy"):
        assert before[key] == after[key]


def with_some_gradients(model):
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    model[4].bias.requires_grad_(False)
    return model


def noisy_loader():
    """A loader that draws from torch's global state, and a collate that draws from all others."""
    x, y = (torch.cat(t) for t in zip(*data(), strict=True))

    def collate(rows):
        shift = random.random() + np.random.rand()
        return torch.stack([a for a, _ in rows]) + shift, torch.stack([b for _, b in rows])

    return DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True, collate_fn=collate)


@every
@pytest.mark.parametrize("mode", MODES)
def test_a_measure_leaves_model_and_random_state_as_they_were(name, mode):
    model = with_some_gradients(stochastic())
    before = state_of(model)
    measure(name, model, batches=noisy_loader(), mode=mode)
    assert_same(before, state_of(model))


@every
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_so_does_one_that_fails_on_its_last_batch(name, error):
    model, calls = with_some_gradients(stochastic()), []

    def counting(outputs, targets):
        calls.append(1)
        return mse_loss(outputs, targets)

    measure(name, model, counting, mode="train")
    last = len(calls)

    def failing(outputs, targets):
        calls.append(1)
        if len(calls) == 2 * last:
            torch.rand(3)
            raise error("on purpose")
        return mse_loss(outputs, targets)

    before = state_of(model)
    with pytest.raises(error, match="on purpose"):
        measure(name, model, failing, mode="train")
    assert_same(before, state_of(model))


@every
def test_buffers_of_one_batch_do_not_reach_the_next(name):
    """BatchNorm without momentum averages over all batches: the second sees the first's count."""
    seen = []

    class Watched(nn.BatchNorm1d):
        def forward(self, x):
            seen.append(int(self.num_batches_tracked))
            return super().forward(x)

    model = nn.Sequential(nn.Linear(3, 4), Watched(4, momentum=None), nn.Linear(4, 2)).double()
    measure(name, model, mode="train")
    assert set(seen) == {0}


@every
def test_the_same_call_gives_the_same_result_whatever_the_loader_and_dropout_draw(name):
    model, loader = stochastic(), noisy_loader()
    assert measure(name, model, batches=loader, mode="train") == measure(
        name, model, batches=loader, mode="train"
    )


def test_every_pass_of_a_measure_sees_the_same_masks_and_the_same_order():
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.4), nn.Linear(4, 2)).double()
    nowhere = [torch.zeros_like(p) for p in model.parameters()]
    found = sharpness.slice_1d(model, mse_loss, noisy_loader(), direction=nowhere, mode="train")
    assert len(set(found.losses)) == 1
    off = sharpness.slice_1d(model, mse_loss, noisy_loader(), direction=nowhere, mode="eval")
    assert off.losses[0] != found.losses[0]


@pytest.mark.parametrize("name", ["trace", "average", "line", "plane"])
def test_another_seed_draws_other_vectors(name):
    assert measure(name, mlp(), seed=0) == measure(name, mlp(), seed=0)
    assert measure(name, mlp(), seed=0) != measure(name, mlp(), seed=1)


@every
def test_a_measure_works_where_gradients_are_switched_off(name):
    expected = measure(name, mlp())
    with torch.no_grad():
        assert measure(name, mlp()) == expected
    model, batches = mlp(), data()
    with torch.inference_mode():
        assert measure(name, model, batches=batches) == expected


@every
def test_cutting_the_data_otherwise_changes_only_what_is_about_batches(name):
    """In eval mode the loss over all samples does not depend on how they are cut."""
    x, y = (torch.cat(t) for t in zip(*data(), strict=True))
    found = measure(name, mlp())
    again = measure(name, mlp(), batches=[(x[:1], y[:1]), (x[1:], y[1:])])
    if name in ("squared norms", "variance"):
        assert found != again
        return
    numbers, others = (torch.tensor(_numbers(r), dtype=torch.float64) for r in (found, again))
    torch.testing.assert_close(numbers, others, rtol=1e-7, atol=1e-10)


def _numbers(value):
    if isinstance(value, float | int):
        return [float(value)]
    if isinstance(value, tuple):
        return [x for v in value for x in _numbers(v)]
    if hasattr(value, "__dataclass_fields__"):
        kept = [f for f in value.__dataclass_fields__ if f != "residuals"]
        return [x for f in kept for x in _numbers(getattr(value, f))]
    return []


@every
def test_progress_is_told_batch_by_batch_to_the_end(name):
    told = []
    measure(name, mlp(), progress=lambda done, total: told.append((done, total)))
    done, totals = zip(*told, strict=True)
    assert len(set(totals)) == 1
    assert list(done) == [*range(1, len(done)), totals[0]]
    assert totals[0] % 3 == 0


def test_progress_without_a_length_has_total_zero():
    class Endless:
        def __iter__(self):
            return iter(data())

    told = []
    measure("variance", mlp(), batches=Endless(), progress=lambda *now: told.append(now))
    assert told == [(1, 0), (2, 0), (3, 0)]


@every
def test_what_is_handed_in_is_checked(name):
    model = mlp()
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, got function"):
        measure(name, lambda x: x)
    with pytest.raises(TypeError, match="loss must be a function"):
        measure(name, model, "mse")
    with pytest.raises(TypeError, match="batches must give .* got <list_iterator"):
        measure(name, model, batches=iter(data()))
    with pytest.raises(TypeError, match=r"a single batch is \[\(inputs, targets\)\]"):
        measure(name, model, batches=data()[0])
    with pytest.raises(TypeError, match="targets must be a tensor"):
        measure(name, model, batches=[(torch.zeros(1, 3).double(), 1)])
    with pytest.raises(ValueError, match="at least one sample"):
        measure(name, model, batches=[])
    with pytest.raises(ValueError, match="mode must be 'eval' or 'train', got 'test'"):
        measure(name, model, mode="test")
    with pytest.raises(TypeError, match="progress must be"):
        measure(name, model, progress="yes")
    with pytest.raises(ValueError, match=r"loss must return one number, .* got \[5, 2\]"):
        measure(name, model, nn.MSELoss(reduction="none"))
    with pytest.raises(ValueError, match="parameters that require gradients, got none"):
        measure(name, mlp().requires_grad_(False))


@pytest.mark.parametrize(
    ("name", "setting", "value", "error"),
    [
        ("eigenvalues", "k", 0, ValueError),
        ("eigenvalues", "k", 1.5, TypeError),
        ("eigenvalues", "steps", 0, ValueError),
        ("eigenvalues", "tolerance", 0.0, ValueError),
        ("eigenvalues", "seed", -1, ValueError),
        ("trace", "samples", 1, ValueError),
        ("trace", "samples", True, TypeError),
        ("average", "samples", 1, ValueError),
        ("average", "rho", "wide", TypeError),
        ("worst case", "steps", 0, ValueError),
        ("worst case", "rho", None, TypeError),
        ("line", "points", 1, ValueError),
        ("line", "span", float("inf"), ValueError),
        ("plane", "points", 2.0, TypeError),
        ("plane", "seed", 2**63, ValueError),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, setting, value, error):
    with pytest.raises(error, match=f"{setting} must be .*got {value!r}"):
        measure(name, mlp(), **{setting: value})


def test_a_loss_that_forgets_the_weights_is_refused():
    with pytest.raises(ValueError, match="loss must depend on"):
        measure("variance", mlp(), lambda outputs, targets: targets.mean())


def test_parameters_that_are_not_real_are_refused():
    with pytest.raises(TypeError, match="weight of torch.complex64"):
        measure("variance", nn.Linear(3, 2, dtype=torch.complex64))


def test_a_compiled_model_is_measured_as_what_was_compiled():
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    assert measure("eigenvalues", compiled) == measure("eigenvalues", model)
    assert measure("plane", compiled) == measure("plane", model)


def test_inputs_may_be_dicts_and_tuples():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, batch):
            return self.net(batch["x"]) + batch["more"][0]

    batches = [({"x": x, "more": (torch.zeros(1), None)}, y) for x, y in data()]
    found = measure("squared norms", Named(), batches=batches)
    assert found == measure("squared norms", mlp())


def test_half_precision_weights_come_back_to_the_bit():
    model = nn.Linear(3, 2).to(torch.bfloat16)
    before = [p.detach().clone() for p in model.parameters()]
    batches = [(x.to(torch.bfloat16), y.to(torch.bfloat16)) for x, y in data()]
    found = sharpness.worst_case_sharpness(model, mse_loss, batches, rho=1.0, steps=3)
    assert found.value > 0.0
    assert all(map(torch.equal, before, model.parameters()))
