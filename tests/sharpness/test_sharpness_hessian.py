"""Eigenvalues and trace of the Hessian against known matrices and brute force."""

import math
import statistics

import pytest
import torch
from support.sharpness_examples import (
    ONE_BATCH,
    Point,
    batch_normed,
    data,
    gradient_at,
    hessian_by_differences,
    loss_at,
    mlp,
    quadratic,
    symmetric,
    weights,
)
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, mse_loss

from aesam import sharpness
from aesam.lab.models.vit import ViT
from aesam.sharpness import random_vectors


def spectrum_of(values, *, seed=0, **settings):
    """What is found of a quadratic with these eigenvalues."""
    loss = quadratic(symmetric(values))
    model = Point(torch.ones(len(values)))
    return sharpness.hessian_eigenvalues(model, loss, ONE_BATCH, seed=seed, **settings)


def test_all_eigenvalues_of_a_small_network_are_those_of_its_hessian():
    model = mlp()
    exact = torch.autograd.functional.hessian(
        lambda w: loss_at(model, mse_loss, data(), w), weights(model)
    )
    expected = torch.linalg.eigvalsh(exact).flip(0)
    found = sharpness.hessian_eigenvalues(model, mse_loss, data(), k=len(exact))
    torch.testing.assert_close(torch.tensor(found.values, dtype=torch.float64), expected)
    assert found.converged
    assert found.steps == len(exact)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batchnorm_is_seen_in_the_mode_asked_for(mode):
    model = batch_normed()
    found = sharpness.hessian_eigenvalues(model, mse_loss, data(), k=6, mode=mode)
    trace = sharpness.hessian_trace(model, mse_loss, data(), samples=2, mode=mode, seed=4)
    model.train(mode == "train")
    exact = hessian_by_differences(model, mse_loss, data())
    expected = torch.linalg.eigvalsh(exact).flip(0)[:6]
    torch.testing.assert_close(
        torch.tensor(found.values, dtype=torch.float64), expected, rtol=1e-6, atol=1e-7
    )
    generator = random_vectors.generator_of(4)
    signs = [random_vectors.signs(exact[0], generator) for _ in range(2)]
    assert trace.estimates == pytest.approx([float(z @ exact @ z) for z in signs], rel=1e-6)


def test_the_largest_of_many_are_found_in_few_steps():
    top = [50.0, 30.0, 20.0]
    found = spectrum_of([*top, *torch.linspace(-10.0, 5.0, 297).tolist()], k=3)
    assert found.values == pytest.approx(top, rel=1e-7)
    assert found.converged
    assert found.steps < 60
    assert max(found.residuals) <= 1e-4 * 50.0


def test_each_eigenvalue_is_within_its_residual_also_before_convergence():
    exact = torch.linspace(0.0, 1.0, 200).tolist()
    found = spectrum_of(exact, k=3, steps=12)
    assert not found.converged
    assert found.steps == 12
    for value, residual in zip(found.values, found.residuals, strict=True):
        assert min(abs(value - x) for x in exact) <= residual


def test_the_largest_are_by_sign_not_by_size():
    assert spectrum_of([-9.0, -3.0, 1.0, 2.0], k=2).values == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize("n", [6, 400])
def test_the_identity_has_one_eigenvalue_as_often_as_asked(n):
    assert spectrum_of([1.0] * n, k=5).values == pytest.approx([1.0] * 5)


@pytest.mark.parametrize("seed", range(3))
def test_shared_eigenvalues_are_found_again_after_the_subspace_is_exhausted(seed):
    exact = [5.0] * 3 + [2.0] * 150 + [-1.0] * 150
    found = spectrum_of(exact, k=5, seed=seed)
    assert found.values == pytest.approx([5.0, 5.0, 5.0, 2.0, 2.0])
    assert found.converged


def test_a_hessian_of_low_rank_has_zeros_after_its_rank():
    assert spectrum_of([4.0, 3.0] + [0.0] * 300, k=4).values == pytest.approx(
        [4.0, 3.0, 0.0, 0.0], abs=1e-12
    )


def test_a_linear_loss_has_no_curvature():
    loss = lambda w, _: w.sum()  # noqa: E731
    model = Point([1.0, 2.0, 3.0])
    assert sharpness.hessian_eigenvalues(model, loss, ONE_BATCH, k=3).values == (0.0, 0.0, 0.0)
    assert sharpness.hessian_trace(model, loss, ONE_BATCH, samples=2).mean == 0.0


def test_float32_finds_what_float64_does():
    exact = sharpness.hessian_eigenvalues(mlp(), mse_loss, data(), k=3)
    batches = [(x.float(), y.float()) for x, y in data()]
    found = sharpness.hessian_eigenvalues(mlp().float(), mse_loss, batches, k=3)
    assert found.values == pytest.approx(exact.values, rel=1e-5)


def test_more_eigenvalues_than_weights_are_refused():
    with pytest.raises(ValueError, match="k must be at most the 2 trainable weights .* got 3"):
        spectrum_of([1.0, 2.0], k=3)
    with pytest.raises(ValueError, match="steps must be at least k = 2, got 1"):
        spectrum_of([1.0, 2.0], k=2, steps=1)


def test_the_trace_of_a_diagonal_hessian_is_exact_in_every_sample():
    loss = quadratic(torch.diag(torch.tensor([1.0, -2.0, 7.0])))
    found = sharpness.hessian_trace(Point([0.0, 1.0, 2.0]), loss, ONE_BATCH, samples=5)
    assert found.estimates == pytest.approx([6.0] * 5)
    assert found.standard_error == pytest.approx(0.0, abs=1e-12)


def test_the_trace_is_right_on_average_and_its_error_is_hutchinsons():
    matrix = symmetric([4.0, 3.0, 2.0, 1.0, -1.0])
    found = sharpness.hessian_trace(
        Point(torch.zeros(5)), quadratic(matrix), ONE_BATCH, samples=1000
    )
    spread = math.sqrt(2.0 * float(matrix.square().sum() - matrix.diag().square().sum()))
    assert abs(found.mean - 9.0) < 4.0 * spread / math.sqrt(1000)
    assert statistics.stdev(found.estimates) == pytest.approx(spread, rel=0.1)
    assert found.standard_error == pytest.approx(spread / math.sqrt(1000), rel=0.1)


def test_every_sign_is_drawn_about_half_of_the_time():
    signs = random_vectors.signs(torch.zeros(10_000), random_vectors.generator_of(0))
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 0.04


def small_vit():
    torch.manual_seed(0)
    return ViT(classes=3, channels=1, size=8, patch=4, dim=8, depth=1, heads=2).double()


def test_a_transformer_with_fused_attention_has_its_hessian():
    model = small_vit()
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(6, 1, 8, 8, generator=draw, dtype=torch.float64)
    batches = [(images, torch.arange(6) % 3)]
    found = sharpness.hessian_trace(model, cross_entropy, batches, samples=2, seed=1)
    start, generator, h = weights(model), random_vectors.generator_of(1), 1e-5
    for estimate in found.estimates:
        z = random_vectors.signs(start, generator)
        with sdpa_kernel(SDPBackend.MATH):
            up, down = (
                gradient_at(model, cross_entropy, batches, start + s * h * z) for s in (1, -1)
            )
        assert estimate == pytest.approx(float((up - down) @ z) / (2 * h), rel=1e-5, abs=1e-7)


def test_multihead_attention_in_eval_mode_has_its_hessian():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    batches = [(x, torch.zeros_like(x))]
    found = sharpness.hessian_eigenvalues(model, mse_loss, batches, k=1)
    model.eval()
    with sdpa_kernel(SDPBackend.MATH):
        exact = hessian_by_differences(model, mse_loss, batches)
    assert found.values[0] == pytest.approx(float(torch.linalg.eigvalsh(exact)[-1]), rel=1e-5)


def test_a_hessian_that_is_not_finite_is_refused():
    with pytest.raises(FloatingPointError, match="not finite"):
        sharpness.hessian_trace(Point([0.0]), lambda w, _: w.sqrt().sum(), ONE_BATCH)
