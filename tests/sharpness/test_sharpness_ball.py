"""Average and worst-case sharpness against closed forms."""

import math

import pytest
import torch
from support.sharpness_examples import (
    ONE_BATCH,
    Point,
    data,
    loss_at,
    mlp,
    quadratic,
    symmetric,
    weights,
)
from torch.nn.functional import mse_loss

from aesam import sharpness
from aesam.sharpness import random_vectors

SLOPE = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.float64)


def highest_in_ball(matrix, slope, rho):
    """The maximum of ``bᵀδ + δᵀAδ/2`` over the ball, from its optimality conditions.

    ``(μ − A) δ = b`` with μ at least A's largest eigenvalue and 0; on the sphere ‖δ‖ = ρ.
    """
    values, vectors = torch.linalg.eigh(matrix)
    b = vectors.T @ slope
    low, high = max(float(values[-1]), 0.0), float(values.abs().max() + slope.norm() / rho)
    for _ in range(200):
        middle = (low + high) / 2
        if float((b / (middle - values)).norm()) > rho:
            low = middle
        else:
            high = middle
    delta = b / (high - values)
    return float(b @ delta + (values * delta.square()).sum() / 2)


def test_average_sharpness_of_a_quadratic_is_its_trace_over_the_dimensions():
    matrix, rho = symmetric([6.0, 2.0, 1.0, -1.0]), 0.7
    found = sharpness.average_sharpness(
        Point(torch.ones(4)), quadratic(matrix, SLOPE), ONE_BATCH, rho=rho, samples=2000
    )
    expected = rho**2 * 8.0 / (2 * (4 + 2))
    assert abs(found.value - expected) < 4.0 * found.standard_errors[0]
    assert found.standard_errors[0] < 0.03 * expected
    assert found.loss == pytest.approx(float(matrix.sum() / 2 + SLOPE.sum()))


def test_a_slope_adds_nothing_to_average_sharpness():
    found = sharpness.average_sharpness(
        Point(torch.ones(4)), lambda w, _: SLOPE @ w, ONE_BATCH, rho=2.0, samples=5
    )
    assert found.value == pytest.approx(0.0, abs=1e-15)


def test_radii_share_their_directions_so_that_a_quadratic_grows_with_the_square():
    loss = quadratic(symmetric([6.0, 2.0, 1.0, 3.0]))
    found = sharpness.average_sharpness(
        Point(torch.zeros(4)), loss, ONE_BATCH, rho=[0.1, 0.2, 0.4], samples=3
    )
    assert found.radii == (0.1, 0.2, 0.4)
    assert [v / found.values[0] for v in found.values] == pytest.approx([1.0, 4.0, 16.0])


def test_points_of_the_ball_are_uniform():
    generator = random_vectors.generator_of(0)
    radii = [
        float(random_vectors.in_unit_ball(torch.zeros(3).double(), generator).norm())
        for _ in range(4000)
    ]
    assert max(radii) <= 1.0
    for r in (0.5, 0.8, 0.9):  # the share of the ball within r is r³
        assert sum(x <= r for x in radii) / 4000 == pytest.approx(r**3, abs=0.03)


def test_worst_case_of_a_linear_loss_is_the_radius_times_the_slope():
    found = sharpness.worst_case_sharpness(
        Point(torch.ones(4)), lambda w, _: SLOPE @ w, ONE_BATCH, rho=0.3, steps=1
    )
    assert found.value == pytest.approx(0.3 * float(SLOPE.norm()), rel=1e-12)


@pytest.mark.parametrize("values", [(3.0, 2.0, 1.0, 0.5), (3.0, 1.0, -2.0, -4.0)])
@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_worst_case_of_a_quadratic_is_the_trust_regions_maximum(values, rho):
    matrix = symmetric(values)
    found = sharpness.worst_case_sharpness(
        Point(torch.zeros(4)), quadratic(matrix, SLOPE), ONE_BATCH, rho=rho, steps=60
    )
    assert found.value == pytest.approx(highest_in_ball(matrix, SLOPE, rho), rel=1e-7)


def test_at_a_minimum_the_worst_case_follows_the_largest_eigenvalue():
    found = sharpness.worst_case_sharpness(
        Point(torch.zeros(3)), quadratic(symmetric([5.0, 2.0, 1.0])), ONE_BATCH, rho=0.2, steps=60
    )
    assert found.value == pytest.approx(0.2**2 * 5.0 / 2, rel=1e-7)


def test_at_a_top_there_is_no_way_up():
    found = sharpness.worst_case_sharpness(
        Point(torch.zeros(2)), quadratic(-torch.eye(2)), ONE_BATCH, rho=0.2
    )
    assert found.value == 0.0


def test_ascent_stops_on_a_top_inside_the_ball():
    found = sharpness.worst_case_sharpness(
        Point([1.0]), lambda w, _: -(w**2).sum(), ONE_BATCH, rho=1.0, steps=5
    )
    assert found.value == 1.0


def test_worst_case_of_a_network_beats_random_points_and_grows_with_the_radius():
    model, radii = mlp(), (0.05, 0.1, 0.5)
    found = sharpness.worst_case_sharpness(model, mse_loss, data(), rho=radii)
    assert 0.0 < found.values[0] < found.values[1] < found.values[2]
    start, generator = weights(model), random_vectors.generator_of(7)
    for rho, value in zip(radii, found.values, strict=True):
        for _ in range(30):
            point = start + rho * random_vectors.in_unit_ball(start, generator)
            assert loss_at(model, mse_loss, data(), point) - found.loss < value


@pytest.mark.parametrize("measure", [sharpness.average_sharpness, sharpness.worst_case_sharpness])
@pytest.mark.parametrize("rho", [0.0, -1.0, float("nan"), [], [0.2, 0.1], [0.1, 0.1]])
def test_radii_must_be_positive_and_rising(measure, rho):
    with pytest.raises(ValueError, match="rho must be"):
        measure(mlp(), mse_loss, data(), rho=rho)


def test_a_radius_that_leaves_the_dtype_s_range_has_no_standard_error():
    batches = [(x.float(), y.float()) for x, y in data()]
    found = sharpness.average_sharpness(mlp().float(), mse_loss, batches, rho=1e38)
    assert math.isinf(found.value)
    assert math.isnan(found.standard_errors[-1])
