"""Norms and variance of gradients against what backward() gives."""

import pytest
import torch
from support.sharpness_examples import batch_normed, data, gradient_at, mlp, weights
from torch.nn.functional import mse_loss

from aesam import sharpness


def gradients_of(model, batches):
    """The gradient of each batch, the plain way."""
    found = []
    for x, y in batches:
        model.zero_grad()
        mse_loss(model(x), y).backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
    return found


def test_squared_norms_are_those_of_each_batchs_gradient():
    found = sharpness.squared_gradient_norms(mlp(), mse_loss, data())
    expected = [float(g @ g) for g in gradients_of(mlp(), data())]
    assert found.squared_norms == pytest.approx(expected, rel=1e-12)
    assert found.counts == (5, 5, 3)
    assert found.mean == pytest.approx((5 * expected[0] + 5 * expected[1] + 3 * expected[2]) / 13)


def test_the_full_gradient_is_that_of_all_samples_at_once():
    found = sharpness.full_gradient_norm(mlp(), mse_loss, data())
    everything = [tuple(map(torch.cat, zip(*data(), strict=True)))]
    (expected,) = gradients_of(mlp(), everything)
    assert found.norm == pytest.approx(float(expected.norm()), rel=1e-12)
    assert found.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert sum(norm**2 for norm in found.norms) == pytest.approx(found.norm**2, rel=1e-12)
    assert found.norms[1] == pytest.approx(float(expected[12:16].norm()), rel=1e-12)


def test_the_variance_is_the_mean_squared_distance_to_the_full_gradient():
    found = sharpness.gradient_variance(mlp(), mse_loss, data())
    parts, counts = gradients_of(mlp(), data()), (5, 5, 3)
    full = sum(n * g for g, n in zip(parts, counts, strict=True)) / 13
    direct = (
        sum(n * float((g - full) @ (g - full)) for g, n in zip(parts, counts, strict=True)) / 13
    )
    assert found.variance == pytest.approx(direct, rel=1e-10)
    assert found.full_squared_norm == pytest.approx(float(full @ full), rel=1e-12)
    assert found.norms == sharpness.squared_gradient_norms(mlp(), mse_loss, data())


def test_equal_batches_have_no_variance():
    batch = data()[0]
    assert sharpness.gradient_variance(mlp(), mse_loss, [batch] * 4).variance < 1e-15


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_mode_says_whose_statistics_batchnorm_uses(mode):
    model = batch_normed()
    found = sharpness.full_gradient_norm(model, mse_loss, data(), mode=mode)
    model.train(mode == "train")
    expected = gradient_at(model, mse_loss, data(), weights(model)).norm()
    assert found.norm == pytest.approx(float(expected), rel=1e-12)


def test_frozen_parameters_are_left_out():
    model = mlp()
    model[0].requires_grad_(False)
    found = sharpness.full_gradient_norm(model, mse_loss, data())
    assert found.names == ("2.weight", "2.bias")
    expected = gradient_at(model, mse_loss, data(), weights(model))
    assert found.norm == pytest.approx(float(expected.norm()), rel=1e-12)


def test_a_parameter_that_the_loss_does_not_use_has_gradient_zero():
    found = sharpness.full_gradient_norm(Beside(), mse_loss, data())
    assert dict(zip(found.names, found.norms, strict=True))["beside.weight"] == 0.0
    assert found.norm > 0.0


class Beside(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.beside = mlp(), torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.net(x)
