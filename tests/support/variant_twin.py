"""The oracle of the variants: each rule as it is written, slowly, on one flat vector in NumPy.

The network, its gradient and the base optimizers are the twin's; nothing is the library's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.twin import SIZES, Vector, per_sample, slices

#: Where the flat vector has weights; the rest are biases.
WEIGHTS = np.concatenate([np.full(math.prod(s), len(s) > 1) for s in SIZES.values()])


def named(*names: str) -> np.ndarray:
    """Where the flat vector has these of w1, b1, w2, b2."""
    chosen = np.zeros(len(WEIGHTS), dtype=bool)
    for name, place in zip(SIZES, slices(), strict=True):
        chosen[place] = name in names
    return chosen


# When -----------------------------------------------------------------------------------------


@dataclass
class AlwaysTwin:
    def __call__(self, t: int, x: float) -> bool:
        return True


@dataclass
class PeriodicTwin:
    k: int

    def __call__(self, t: int, x: float) -> bool:
        return t % self.k == 0


@dataclass
class AdaptiveTwin:
    total: int
    mean: float = 0.0
    variance: float = math.exp(-10)

    def __call__(self, t: int, x: float) -> bool:
        self.mean = 0.9 * self.mean + 0.1 * x
        self.variance = 0.9 * self.variance + 0.1 * (x - self.mean) ** 2
        c = t / self.total * -1.0 + (1 - t / self.total) * 1.0
        return x >= self.mean + c * math.sqrt(self.variance)


# What -----------------------------------------------------------------------------------------


class Rule:
    """SAM's; ``rho`` has a radius for each number, negative where the loss is maximised."""

    def see(self, g: Vector) -> None:
        """Every step, fired or not."""

    def epsilon(self, w: Vector, g: Vector, rho: Vector, lr: Vector) -> Vector:
        return rho * g / np.linalg.norm(g)

    def direction(self, g: Vector, g_s: Vector) -> Vector:
        return g_s

    def after(self, w: Vector, g: Vector, g_s: Vector, lr: Vector) -> Vector:
        """The weights after the base's update; ``lr`` is negative where it maximises."""
        return w


@dataclass
class ASAMRule(Rule):
    eta: float = 0.01
    adapt_all: bool = False

    def epsilon(self, w, g, rho, lr):
        t = np.where(WEIGHTS | self.adapt_all, np.abs(w) + self.eta, 1.0)
        return rho * t**2 * g / np.linalg.norm(t * g)


@dataclass
class FisherRule(Rule):
    eta: float = 1.0

    def epsilon(self, w, g, rho, lr):
        f = 1 + self.eta * g**2
        return rho * (g / f) / math.sqrt(g @ (g / f))


@dataclass
class GNPRule(Rule):
    alpha: float = 0.8

    def direction(self, g, g_s):
        return (1 - self.alpha) * g + self.alpha * g_s


@dataclass
class FSAMRule(Rule):
    sigma: float = 1.0
    decay: float = 0.9
    m: Vector | None = None

    def see(self, g):
        self.m = g if self.m is None else self.decay * self.m + (1 - self.decay) * g

    def epsilon(self, w, g, rho, lr):
        along = g if self.m is None else g - self.sigma * self.m
        return rho * along / np.linalg.norm(along)


@dataclass
class VaSSORule(Rule):
    theta: float = 0.9
    m: Vector | None = None

    def mixed(self, g):
        return g if self.m is None else (1 - self.theta) * self.m + self.theta * g

    def see(self, g):
        self.m = self.mixed(g)

    def epsilon(self, w, g, rho, lr):
        return rho * self.mixed(g) / np.linalg.norm(self.mixed(g))


@dataclass
class GSAMRule(Rule):
    alpha: float = 0.1
    rho_min: float = 0.0
    lr_min: float = 0.0
    lr_max: float | None = None

    def epsilon(self, w, g, rho, lr):
        share = 1.0 if self.lr_max is None else (lr - self.lr_min) / (self.lr_max - self.lr_min)
        now = np.sign(rho) * (self.rho_min + (np.abs(rho) - self.rho_min) * np.clip(share, 0, 1))
        return now * g / np.linalg.norm(g)

    def direction(self, g, g_s):
        orthogonal = g - (g @ g_s) / (g_s @ g_s) * g_s
        return g_s - self.alpha * orthogonal


@dataclass
class WSAMRule(Rule):
    gamma: float = 0.9

    def direction(self, g, g_s):
        return g

    def after(self, w, g, g_s, lr):
        return w - lr * self.gamma / (1 - self.gamma) * (g_s - g)


class SubsetRule(Rule):
    """SAM along w1, b1, w2 or b2 only, the norm over those."""

    def __init__(self, *names: str) -> None:
        self.chosen = named(*names)

    def epsilon(self, w, g, rho, lr):
        return rho * g * self.chosen / np.linalg.norm(g[self.chosen])


@dataclass
class LESAMRule(Rule):
    rise: float = 0.05

    def epsilon(self, w, g, rho, lr):
        norm = np.linalg.norm(g)
        return np.sign(rho) * np.minimum(self.rise / norm, np.abs(rho)) * g / norm


# The step -------------------------------------------------------------------------------------


@dataclass
class VariantTwin:
    """One training run of a rule with a policy; ``rho`` and ``lr`` are numbers or one for each."""

    w: Vector
    base: Callable[[Vector, Vector], Vector]
    policy: Callable[[int, float], bool]
    rule: Any
    rho: Any
    lr: Any
    maximize: bool = False
    t: int = 0
    decisions: list[bool] = field(default_factory=list)

    def gradient(self, w: Vector, x: np.ndarray, y: np.ndarray) -> Vector:
        g = per_sample(w, x, y)[1]()
        return -g if self.maximize else g

    def step(self, x: np.ndarray, y: np.ndarray) -> None:
        sign = -1.0 if self.maximize else 1.0
        g = self.gradient(self.w, x, y)
        fires = self.policy(self.t, g @ g)
        if fires:
            epsilon = self.rule.epsilon(self.w, g, sign * self.rho, self.lr)
            g_s = self.gradient(self.w + epsilon, x, y)
            d = self.rule.direction(g, g_s)
        else:
            d = g
        self.rule.see(g)
        self.w = self.base(self.w, sign * d)
        if fires:
            self.w = self.rule.after(self.w, g, g_s, sign * self.lr)
        self.t += 1
        self.decisions.append(bool(fires))
