"""The problems that the bounds are computed on."""

from aesam.paper.theory.cosines import shifted_cosines, tilted_cosine
from aesam.paper.theory.problem import Problem
from aesam.paper.theory.regression import least_squares, logistic


def problems() -> list[Problem]:
    """One hard case, one with a constant Hessian, one nonconvex and one that people train."""
    return [
        tilted_cosine(3.0, sigma=1.0, start=0.5),
        least_squares(seed=0),
        shifted_cosines(seed=0),
        logistic(seed=0),
    ]


def without_noise() -> Problem:
    """``L = 3 cos w`` with σ = 0, on which the mini-batch theorem as printed fails."""
    return tilted_cosine(3.0, sigma=0.0, start=0.5)
