"""Theorems, corollaries and lemmas of the paper as numbers, under the conditions they need.

The ascent is the theorems': ``ε = ρ g``, not normalised. Functions are sums of cosines and logistic
losses, whose smoothness β is known.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import aesam
from aesam.parts.policies import Adaptive, Always, Bernoulli, Never, Periodic

pytestmark = pytest.mark.slow

PATTERNS = {
    "ERM": Never(),
    "SAM": Always(),
    "every third": Periodic(3),
    "Bernoulli": Bernoulli(0.4, seed=2),
    "adaptive": Adaptive(-1.0, 1.0, total_steps=100),
}


class Cosines:
    """``L(w) = Σ a_k cos(v_k·w + φ_k)``, which is β-smooth with ``β = Σ |a_k| ‖v_k‖²``."""

    def __init__(self, seed: int, terms: int = 6, dim: int = 4) -> None:
        draw = np.random.default_rng(seed)
        self.a, self.phase = draw.normal(size=terms), draw.uniform(0, 2 * np.pi, terms)
        self.v = draw.normal(size=(terms, dim))
        self.beta = float((np.abs(self.a) * (self.v**2).sum(1)).sum())
        self.start = draw.normal(size=dim)

    def __call__(self, w: Tensor) -> Tensor:
        a, v, phase = map(torch.from_numpy, (self.a, self.v, self.phase))
        return (a * torch.cos(v @ w + phase)).sum()


class Logistic:
    """The logistic loss on separable data: convex, ``β = λ_max(XᵀX)/(4n)``."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        x = draw.normal(size=(20, 4))
        self.x = torch.from_numpy(x * np.sign(x[:, :1]))
        self.beta = float(np.linalg.eigvalsh(x.T @ x)[-1] / (4 * len(x)))
        self.start = draw.normal(size=4)

    def __call__(self, w: Tensor) -> Tensor:
        return nn.functional.softplus(-(self.x @ w)).mean()


def descend(function, policy, rho, lr, steps):
    """Full-batch descent with the library; squared gradient norms, and both ends of the loss."""
    w = nn.Parameter(torch.tensor(function.start, dtype=torch.float64))
    opt = aesam.SharpnessAware(torch.optim.SGD([w], lr=lr), policy=policy, rho=rho, normalize=False)
    squares, begin = [], function(w).item()
    for _ in range(steps):

        def closure():
            opt.zero_grad()
            loss = function(w)
            loss.backward()
            return loss

        opt.step(closure)
        squares.append(opt.last_step.squared_norm)
    return min(squares), begin - function(w).item(), opt.sam_fraction


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "function", [Cosines(0), Cosines(1), Logistic(0)], ids=lambda f: type(f).__name__
)
@pytest.mark.parametrize(("rho_beta", "lr_beta"), [(0.45, 0.95), (0.2, 0.5)])
def test_full_batch_bound_holds_for_any_pattern_of_sam_and_erm(
    pattern, function, rho_beta, lr_beta
):
    beta, steps = function.beta, 100
    rho, lr = rho_beta / beta, lr_beta / beta
    smallest, decrease, zeta = descend(function, PATTERNS[pattern], rho, lr, steps)
    bound = decrease / (steps * lr * (1 - beta * lr / 2 - beta * rho * zeta))
    assert smallest <= bound


# Mini-batches -------------------------------------------------------------------------------------


class NoisyCosine:
    """``ℓ_i(w) = β cos(w) ± σ w``: each sample β-smooth, gradient noise of variance σ² exactly."""

    def __init__(self, beta: float, sigma: float, batch: int, start: float) -> None:
        self.beta, self.sigma, self.batch, self.start = beta, sigma, batch, start

    def loss(self, w):
        return self.beta * math.cos(w)

    def run(self, policy, steps, lr, rho, seed):
        """Squared true gradients at each step, the last weight, and the share of SAM steps."""
        w = nn.Parameter(torch.tensor([self.start], dtype=torch.float64))
        opt = aesam.SharpnessAware(
            torch.optim.SGD([w], lr=lr), policy=policy, rho=rho, normalize=False
        )
        signs = torch.randint(
            0, 2, (steps, self.batch), generator=torch.Generator().manual_seed(seed)
        )
        squares = []
        for sign in (2 * signs - 1).double().mean(1).tolist():
            slope = self.sigma * sign

            def gradient():
                return -self.beta * torch.sin(w.detach()) + slope  # noqa: B023

            squares.append((self.beta * math.sin(w.item())) ** 2)
            w.grad = gradient()
            if opt.needs_second_pass():
                with opt.perturbed():
                    w.grad = gradient()
            opt.step()
        return squares, w.item(), opt.sam_fraction


def both_sides(problem, policies, steps, larger_step=False):
    """Left and right of the theorem, expectations over runs that differ in their batches.

    With ``larger_step`` those of the corollary, where the step and the rate grow with √b.
    """
    beta, b = problem.beta, problem.batch
    gain = math.sqrt(b) if larger_step else 1.0
    lr, rho = gain / (4 * beta * math.sqrt(steps)), steps**-0.25
    runs = [problem.run(p, steps, lr, rho, seed) for seed, p in enumerate(policies)]
    squares = np.mean([r[0] for r in runs], axis=0)
    decrease = problem.loss(problem.start) - np.mean([problem.loss(r[1]) for r in runs])
    zeta = np.mean([r[2] for r in runs])
    noise = (1 + zeta + 5 * beta**2 * zeta) * problem.sigma**2 / (1 if larger_step else b)
    return squares.min(), (32 * beta * decrease + noise) / (
        gain * math.sqrt(steps) * (7 - 6 * zeta)
    )


FIXED_OR_BERNOULLI = {
    "ERM": lambda seed: Never(),
    "SAM": lambda seed: Always(),
    "every second": lambda seed: Periodic(2),
    "Bernoulli": lambda seed: Bernoulli(0.5, seed=seed),
}


@pytest.mark.parametrize("pattern", FIXED_OR_BERNOULLI)
@pytest.mark.parametrize(("beta", "steps"), [(0.75, 16), (0.75, 64), (1.1, 100)])
def test_mini_batch_bound_holds_where_its_proof_does(pattern, beta, steps):
    assert steps >= (8 * beta / 3) ** 4
    problem = NoisyCosine(beta, sigma=0.5, batch=4, start=1.0)
    policies = [FIXED_OR_BERNOULLI[pattern](seed) for seed in range(40)]
    left, right = both_sides(problem, policies, steps)
    assert left <= right


@pytest.mark.parametrize("pattern", FIXED_OR_BERNOULLI)
def test_larger_batches_allow_a_larger_step(pattern):
    """The corollary with η = √b/(4β√T), for b ≤ T."""
    problem = NoisyCosine(0.75, sigma=0.5, batch=16, start=1.0)
    policies = [FIXED_OR_BERNOULLI[pattern](seed) for seed in range(40)]
    left, right = both_sides(problem, policies, 64, larger_step=True)
    assert left <= right


def test_as_printed_the_mini_batch_bound_fails_for_few_steps():
    """L = 3 cos w, σ = 0, SAM on every step, T = 16 < (8β/3)⁴: SAM climbs."""
    left, right = both_sides(NoisyCosine(3.0, 0.0, 1, start=0.5), [Always()], 16)
    assert left == pytest.approx(0.92, abs=0.01)
    assert right == pytest.approx(-5.3, abs=0.05)
    assert left > right


# Lemmas -------------------------------------------------------------------------------------------


def two_gradients(function, rho):
    w = nn.Parameter(torch.tensor(function.start, dtype=torch.float64))
    opt = aesam.SAM(torch.optim.SGD([w], lr=0.0), rho=rho, normalize=False)
    function(w).backward()
    g = w.grad.clone()
    assert opt.needs_second_pass()
    with opt.perturbed():
        function(w).backward()
    return g, w.grad


@given(st.integers(0, 10**6), st.floats(0.0, 3.0))
def test_sam_s_gradient_agrees_with_the_gradient(seed, rho_beta):
    """∇L(w)·∇L(w + ρ∇L(w)) ≥ (1 − ρβ) ‖∇L(w)‖²."""
    function = Cosines(seed)
    g, g_s = two_gradients(function, rho_beta / function.beta)
    assert (g @ g_s).item() >= (1 - rho_beta) * (g @ g).item() - 1e-9


@given(st.integers(0, 10**6), st.floats(0.0, 2.0), st.integers(1, 3))
def test_sam_s_stochastic_gradient_agrees_with_the_gradient(seed, rho_beta, batch):
    """E ∇L·∇L_B(w + ρ∇L_B(w)) ≥ (1/2 − ρβ)‖∇L‖² − β²ρ²σ²/(2b), B drawn with replacement."""
    samples = [Cosines(seed + i) for i in range(3)]
    beta, rho = max(s.beta for s in samples), rho_beta / max(s.beta for s in samples)
    w = torch.tensor(samples[0].start, dtype=torch.float64)

    def gradient(functions, at):
        at = at.clone().requires_grad_()
        (loss,) = torch.autograd.grad(sum(f(at) for f in functions) / len(functions), at)
        return loss

    full = gradient(samples, w)
    variance = np.mean([((gradient([s], w) - full) ** 2).sum().item() for s in samples])
    products = []
    for chosen in np.ndindex(*[3] * batch):
        functions = [samples[i] for i in chosen]
        products.append((full @ gradient(functions, w + rho * gradient(functions, w))).item())
    least = (0.5 - rho_beta) * (full @ full).item() - beta**2 * rho**2 * variance / (2 * batch)
    assert np.mean(products) >= least - 1e-9


@given(st.integers(0, 10**6))
def test_variance_is_the_mean_squared_norm_less_the_squared_mean(seed):
    """Var ∇L(B;w) = E‖∇L(B;w)‖² − ‖∇L(D;w)‖² (Eq. 3), the norms as the library measures them."""
    samples = [Cosines(seed + i) for i in range(5)]
    w = nn.Parameter(torch.tensor(samples[0].start, dtype=torch.float64))
    opt = aesam.SharpnessAware(torch.optim.SGD([w], lr=0.0), policy=Never())
    gradients, squares = [], []
    for sample in samples:
        opt.zero_grad()
        sample(w).backward()
        opt.needs_second_pass()
        opt.step()
        gradients.append(w.grad.clone())
        squares.append(opt.last_step.squared_norm)
    full = torch.stack(gradients).mean(0)
    variance = np.mean([((g - full) ** 2).sum().item() for g in gradients])
    assert variance == pytest.approx(np.mean(squares) - (full @ full).item(), rel=1e-9, abs=1e-12)
