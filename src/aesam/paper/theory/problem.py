"""What a problem must say about itself so that a bound on it can be computed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Problem(ABC):
    """A mean of sample losses ``L(w) = mean_i ℓ_i(w)`` with known constants, in float64.

    Weights come as rows of ``w``, one for each of many independent repetitions, and a batch as row
    numbers ``rows`` of shape (repetitions, b).

    Args:
        name: short, in the reader's words.
        beta: every ``ℓ_i`` is β-smooth.
        full_beta: ``L`` is β-smooth; at most ``beta``.
        variance: σ², the largest ``mean_i ‖∇ℓ_i(w) − ∇L(w)‖²`` over all ``w``, or a bound on it.
        start: ``w_0``.
        count: how many samples there are.
    """

    name: str
    beta: float
    full_beta: float
    variance: float
    start: Tensor
    count: int

    @abstractmethod
    def loss(self, w: Tensor) -> Tensor:
        """``L`` of each row of ``w``."""

    @abstractmethod
    def gradient(self, w: Tensor) -> Tensor:
        """``∇L`` at each row of ``w``."""

    @abstractmethod
    def batch_loss(self, w: Tensor, rows: Tensor) -> Tensor:
        """The loss of each repetition on its own batch."""

    @abstractmethod
    def batch_gradient(self, w: Tensor, rows: Tensor) -> Tensor:
        """The gradient of each repetition on its own batch."""

    def variance_at(self, w: Tensor) -> Tensor:
        """``mean_i ‖∇ℓ_i(w) − ∇L(w)‖²`` at each row of ``w``."""
        samples = torch.arange(self.count)
        each = [self.batch_gradient(w, i.expand(len(w), 1)) for i in samples]
        return (torch.stack(each) - self.gradient(w)).square().sum(-1).mean(0)
