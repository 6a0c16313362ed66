"""The right-hand sides of the paper's theorems and corollaries, and when they are claimed.

``decrease`` is ``L(w_0) − L(w_T)``, or its expectation; ``zeta`` is ζ, the share of SAM steps.
"""

import math

from aesam.parts import checks

MARGIN = 3 / 8  # the proof of the mini-batch theorem needs ρβ to be no more than this


def full_batch_bound(
    decrease: float, *, beta: float, lr: float, rho: float, zeta: float, steps: int
) -> float:
    """``(L(w_0) − L(w_T)) / (T η (1 − βη/2 − βρζ))``, the theorem for full batches.

    >>> full_batch_bound(3.0, beta=2.0, lr=0.25, rho=0.125, zeta=1.0, steps=24)
    1.0
    """
    return decrease / (steps * lr * (1 - beta * lr / 2 - beta * rho * zeta))


def full_batch_gap(*, beta: float, lr: float, rho: float) -> str | None:
    """The condition of the full-batch theorem that is not met: ρ < 1/(2β), η < 1/β.

    >>> full_batch_gap(beta=2.0, lr=0.25, rho=0.25)
    'ρ = 0.25 is not below 1/(2β) = 0.25'
    """
    if not rho < 1 / (2 * beta):
        return f"ρ = {rho:.3g} is not below 1/(2β) = {1 / (2 * beta):.3g}"
    if not lr < 1 / beta:
        return f"η = {lr:.3g} is not below 1/β = {1 / beta:.3g}"
    return None


def mini_batch_bound(
    decrease: float, *, beta: float, variance: float, batch: int, zeta: float, steps: int
) -> float:
    """``(32β(L(w_0) − E L(w_T)) + (1+ζ+5β²ζ)σ²/b) / (√T (7−6ζ))``, the mini-batch theorem.

    >>> mini_batch_bound(1.0, beta=1.0, variance=4.0, batch=2, zeta=0.5, steps=16)
    2.5
    """
    noise = (1 + zeta + 5 * beta**2 * zeta) * variance / batch
    return (32 * beta * decrease + noise) / (math.sqrt(steps) * (7 - 6 * zeta))


def sam_bound(decrease: float, *, beta: float, variance: float, batch: int, steps: int) -> float:
    """``32β(L(w_0) − E L(w_T))/√T + (2+5β²)σ²/(b√T)``, the first corollary: SAM, ζ = 1.

    >>> sam_bound(1.0, beta=1.0, variance=4.0, batch=2, steps=16)
    11.5
    """
    root = math.sqrt(steps)
    return 32 * beta * decrease / root + (2 + 5 * beta**2) * variance / (batch * root)


def larger_step_bound(
    decrease: float, *, beta: float, variance: float, batch: int, zeta: float, steps: int
) -> float:
    """The second corollary, where η grows with √b: both terms fall as ``1/√(Tb)``.

    >>> larger_step_bound(1.0, beta=1.0, variance=4.0, batch=4, zeta=0.5, steps=16)
    1.5
    """
    noise = (1 + zeta + 5 * beta**2 * zeta) * variance
    return (32 * beta * decrease + noise) / (math.sqrt(steps * batch) * (7 - 6 * zeta))


def learning_rate(beta: float, steps: int, batch: int = 1) -> float:
    """``η = √b/(4β√T)``; without a batch size the theorem's own ``1/(4β√T)``.

    >>> learning_rate(0.5, 16), learning_rate(0.5, 16, batch=4)
    (0.125, 0.25)
    """
    return math.sqrt(checks.whole("batch", batch, least=1)) / (4 * beta * math.sqrt(steps))


def radius(steps: int) -> float:
    """``ρ = T^(−1/4)``.

    >>> radius(16)
    0.5
    """
    return checks.whole("steps", steps, least=1) ** -0.25


def least_steps(beta: float) -> float:
    """``(8β/3)⁴``: from here on ``ρβ ≤ 3/8``, which the mini-batch proof needs.

    >>> least_steps(3.0), least_steps(0.75)
    (4096.0, 16.0)
    """
    return (beta / MARGIN) ** 4


def mini_batch_gap(
    *, beta: float, steps: int, by_batch: bool, largest_batch: int = 1
) -> str | None:
    """The condition that the mini-batch theorem's proof needs and that is not met.

    ``by_batch`` says that the policy looks at the batch, ``largest_batch`` is b for the corollary
    with the larger step, which needs b ≤ T.

    >>> mini_batch_gap(beta=3.0, steps=16, by_batch=False)
    'T = 16 is below (8β/3)⁴ = 4096'
    """
    needed = least_steps(beta)
    if steps < needed * (1 - 1e-12):
        return f"T = {steps} is below (8β/3)⁴ = {needed:.4g}"
    if largest_batch > steps:
        return f"b = {largest_batch} is above T = {steps}"
    if by_batch:
        return "whether SAM is used depends on the batch"
    return None
