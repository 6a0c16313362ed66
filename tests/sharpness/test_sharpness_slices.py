"""Slices against the loss evaluated at ``w + a·d``, and directions against a loop over filters."""

import pytest
import torch
from support.sharpness_examples import Point, batch_normed, data, loss_at, mlp, weights
from torch import nn
from torch.nn.functional import mse_loss

from aesam import sharpness


def flat(direction):
    return torch.cat([d.reshape(-1) for d in direction])


def test_a_line_is_the_loss_at_each_step_along_its_direction():
    model = mlp()
    d = sharpness.random_direction(model, seed=3)
    found = sharpness.slice_1d(model, mse_loss, data(), span=0.5, points=5, seed=3)
    assert found.positions == (-0.5, -0.25, 0.0, 0.25, 0.5)
    expected = [
        float(loss_at(model, mse_loss, data(), weights(model) + a * flat(d)))
        for a in found.positions
    ]
    assert found.losses == pytest.approx(expected, rel=1e-12)
    assert found == sharpness.slice_1d(model, mse_loss, data(), span=0.5, points=5, seed=3), (
        "the seed decides"
    )


def test_a_plane_is_the_loss_at_each_point_with_one_row_for_each_y():
    model = mlp()
    d, e = (sharpness.random_direction(model, seed=s) for s in (1, 2))
    found = sharpness.slice_2d(model, mse_loss, data(), directions=(d, e), span=0.5, points=3)
    for b, row in zip(found.ys, found.losses, strict=True):
        for a, value in zip(found.xs, row, strict=True):
            at = weights(model) + a * flat(d) + b * flat(e)
            assert value == pytest.approx(float(loss_at(model, mse_loss, data(), at)), rel=1e-12)


def test_the_directions_of_a_random_plane_differ_and_the_first_is_the_lines():
    model = mlp()
    plane = sharpness.slice_2d(model, mse_loss, data(), points=3, seed=3)
    line = sharpness.slice_1d(model, mse_loss, data(), points=3, seed=3)
    assert plane.losses[1] == pytest.approx(line.losses)
    assert [row[1] for row in plane.losses] != pytest.approx(line.losses)


def test_an_explicit_direction_is_taken_as_it_is():
    model = mlp()
    d = [torch.full_like(p, 0.1) for p in model.parameters()]
    found = sharpness.slice_1d(model, mse_loss, data(), direction=d, points=2)
    expected = [float(loss_at(model, mse_loss, data(), weights(model) + a * 0.1)) for a in (-1, 1)]
    assert found.losses == pytest.approx(expected)
    assert found.unit == "lengths of the direction"


def test_filters_of_a_direction_are_as_long_as_the_models():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
    raw = [torch.randn_like(p) for p in model.parameters()]
    found = sharpness.filter_normalized(model, raw)
    for p, before, after in zip(model.parameters(), raw, found, strict=True):
        for row in range(len(p)):
            if p.dim() == 1:  # biases and BatchNorm stay
                expected = torch.zeros(())
            else:
                expected = before[row] / before[row].norm() * p[row].detach().norm()
            torch.testing.assert_close(after[row], expected)


def test_a_filter_of_zeros_does_not_move():
    model = nn.Linear(2, 2, bias=False)
    (found,) = sharpness.filter_normalized(model, [torch.tensor([[0.0, 0.0], [1.0, 0.0]])])
    assert found[0].tolist() == [0.0, 0.0]
    assert found[1].tolist() == [pytest.approx(float(model.weight[1].detach().norm())), 0.0]


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_slices_see_batchnorm_in_the_mode_asked_for(mode):
    model = batch_normed()
    found = sharpness.slice_1d(model, mse_loss, data(), points=3, mode=mode)
    model.train(mode == "train")
    expected = loss_at(model, mse_loss, data(), weights(model))
    assert found.losses[1] == pytest.approx(float(expected), rel=1e-12)


def test_a_direction_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="a tensor for each trainable parameter"):
        sharpness.slice_1d(mlp(), mse_loss, data(), direction=[torch.zeros(3)])
    d = sharpness.random_direction(mlp())
    with pytest.raises(ValueError, match="directions must be two, got 1"):
        sharpness.slice_2d(mlp(), mse_loss, data(), directions=(d,))


def test_a_model_without_filters_needs_a_direction():
    with pytest.raises(ValueError, match="give the direction yourself"):
        sharpness.random_direction(Point([1.0, 2.0]))
