"""The oracle: Algorithm 1 and its baselines, as the paper writes them, on one flat vector.

Everything is NumPy in float64 and shares no code with the library: the network and its gradient by
hand, the base optimizers by their textbook formulas, each method line by line. Slow and literal.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

Vector = np.ndarray
SIZES = {"w1": (3, 4), "b1": (4,), "w2": (4, 2), "b2": (2,)}


def slices() -> list[slice]:
    ends = np.cumsum([math.prod(shape) for shape in SIZES.values()])
    return [slice(int(e) - math.prod(s), int(e)) for e, s in zip(ends, SIZES.values(), strict=True)]


def per_sample(w: Vector, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, Callable]:
    """``ℓ_i = ‖tanh(x W1 + b1) W2 + b2 − y‖² / 2`` and the gradient of its mean, by hand."""
    w1, b1, w2, b2 = (w[s].reshape(n) for s, n in zip(slices(), SIZES.values(), strict=True))
    h = np.tanh(x @ w1 + b1)
    error = h @ w2 + b2 - y

    def gradient() -> Vector:
        e = error / len(x)
        back = (e @ w2.T) * (1 - h**2)
        parts = (x.T @ back, back.sum(0), h.T @ e, e.sum(0))
        return np.concatenate([p.ravel() for p in parts])

    return (error**2).sum(1) / 2, gradient


@dataclass
class SGD:
    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    buffer: Vector | None = None

    def __call__(self, w: Vector, d: Vector) -> Vector:
        d = d + self.weight_decay * w
        self.buffer = d if self.buffer is None else self.momentum * self.buffer + d
        return w - self.lr * (d + self.momentum * self.buffer if self.nesterov else self.buffer)


@dataclass
class Adam:
    lr: float
    weight_decay: float = 0.0
    decoupled: bool = False
    m: Vector | float = 0.0
    v: Vector | float = 0.0
    t: int = 0

    def __call__(self, w: Vector, d: Vector) -> Vector:
        if self.decoupled:
            w = w - self.lr * self.weight_decay * w
        else:
            d = d + self.weight_decay * w
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * d
        self.v = 0.999 * self.v + 0.001 * d**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return w - self.lr * m / (np.sqrt(v) + 1e-8)


@dataclass
class Twin:
    """One training run; ``method`` is a name of the paper, ``options`` its hyper-parameters."""

    method: str
    w: Vector
    base: Callable[[Vector, Vector], Vector]
    rho: float
    normalize: bool
    options: dict = field(default_factory=dict)
    t: int = 0
    mean: float = 0.0
    variance: float = math.exp(-10)
    g_v: Vector | None = None
    decisions: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draws = torch.Generator().manual_seed(self.options.get("seed", 0))

    def use_sam(self, g: Vector) -> bool:
        o, t = self.options, self.t
        if self.method in ("sam", "esam"):
            return True
        if self.method == "erm":
            return False
        if self.method == "ss-sam":
            draw = torch.rand(1, generator=self.draws, dtype=torch.float64).item()
            return draw < o["p"]
        if self.method == "looksam":
            return t % o["k"] == 0
        x, delta, total = g @ g, o["delta"], o["total_steps"]
        self.mean = delta * self.mean + (1 - delta) * x
        self.variance = delta * self.variance + (1 - delta) * (x - self.mean) ** 2
        c = t / total * o["lambda1"] + (1 - t / total) * o["lambda2"]
        return x >= self.mean + c * math.sqrt(self.variance)

    def perturbation(self, g: Vector) -> Vector:
        mask, boost = np.ones_like(g), 1.0
        if self.method == "esam":
            beta = self.options["beta"]
            drawn = torch.rand(len(SIZES), generator=self.draws, dtype=torch.float64)
            for s, d in zip(slices(), drawn.tolist(), strict=True):
                mask[s] = d < beta
            boost = 1 / beta
        g = g * mask
        norm = np.linalg.norm(g) if self.normalize else 1.0
        return self.rho * boost * g / norm if norm > 0 else 0 * g

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        before, gradient = per_sample(self.w, x, y)
        g = gradient()
        sam = self.use_sam(g)
        if sam:
            d = self.second_gradient(self.w + self.perturbation(g), x, y, before)
            if "looksam" in self.method:
                self.g_v = d - (g @ d) / (g @ g) * g
        elif "looksam" in self.method and self.g_v is not None:
            ratio = np.linalg.norm(g) / np.linalg.norm(self.g_v)
            d = g + self.options["alpha"] * ratio * self.g_v
        else:
            d = g
        self.w = self.base(self.w, d)
        self.t += 1
        self.decisions.append(bool(sam))
        return float(before.mean())

    def second_gradient(
        self, w: Vector, x: np.ndarray, y: np.ndarray, before: np.ndarray
    ) -> Vector:
        if self.method == "esam":
            after, _ = per_sample(w, x, y)
            count = max(1, round(self.options["gamma"] * len(x)))
            rows = np.argsort(after - before)[-count:]
            x, y = x[rows], y[rows]
        return per_sample(w, x, y)[1]()
