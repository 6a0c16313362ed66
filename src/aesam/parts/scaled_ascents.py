"""Ascents that go farther in some coordinates than in others: the ball is an ellipsoid."""

import math
from dataclasses import dataclass, replace
from itertools import compress

import torch
from torch import Tensor

from aesam._core import pieces, tensors
from aesam.parts import checks
from aesam.parts.ascents import Ascent
from aesam.parts.part import Direction, Draws, Gradient, Memory, dense, on_device


@dataclass(frozen=True)
class WithWeights(Ascent):
    """ASAM's: large weights go farther. ``ε = ρ T² g / ‖T g‖`` with ``T = |w| + η``, elementwise.

    ``T = 1`` for biases and all else that has one dimension (the authors' code).

    Args:
        eta: ``η``, what a weight of zero may move by, 0 or more; 0.01 by default.
        adapt_all: True for ``T = |w| + η`` of every parameter (the paper); False by default.

    >>> w, g = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    >>> along = WithWeights(eta=1.0).direction(Gradient([w], [g], [0.05], 2**0.5), Memory(), None)
    >>> along.vectors, round(along.length**2)
    ([tensor([[16.,  1.]])], 17)
    """

    eta: float = 0.01
    adapt_all: bool = False

    def __post_init__(self) -> None:
        self._keep(
            eta=checks.at_least_zero("eta", self.eta),
            adapt_all=checks.flag("adapt_all", self.adapt_all),
        )

    @on_device
    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        gradient = _of_usual_size(gradient)
        values, params = dense(self, gradient.values), gradient.params
        adapted = [self.adapt_all or p.ndim > 1 for p in params]
        eta = min(self.eta, tensors.largest_number(params))
        chosen, wide = list(compress(values, adapted)), gradient.is_late
        others = [v for v, is_chosen in zip(values, adapted, strict=True) if not is_chosen]
        norms = [tensors.norm(others, wide=wide)] if others else []
        if chosen:
            owners = list(compress(params, adapted))
            norms.insert(0, pieces.scale_by_weights(chosen, owners, eta, wide))
        return _along(gradient, norms)


@dataclass(frozen=True)
class WithFisher(Ascent):
    """FisherSAM's: ``ε = ρ F⁻¹g / √(gᵀF⁻¹g)`` with ``F = 1 + η g²``, elementwise (Kim et al. 2022).

    Args:
        eta: weight ``η`` of ``g²``, the diagonal of the empirical Fisher matrix, 0 or more; 1 by
            default. 0 is :class:`~aesam.parts.ascents.AlongGradient`.

    >>> g = Gradient([torch.zeros(2)], [torch.tensor([1.0, 3.0])], [0.05], 10**0.5)
    >>> WithFisher(eta=1.0).direction(g, Memory(), None).vectors
    [tensor([0.5000, 0.3000])]
    """

    eta: float = 1.0

    def __post_init__(self) -> None:
        self._keep(eta=checks.at_least_zero("eta", self.eta))

    @on_device
    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        gradient = _of_usual_size(gradient)
        root = self.eta**0.5 / gradient.scale
        values = dense(self, gradient.values)
        wide = gradient.is_late
        return _along(gradient, [pieces.scale_by_fisher(values, gradient.params, root, wide)])


def _of_usual_size(gradient: Gradient) -> Gradient:
    """The same gradient with a factor that keeps its square within every dtype's range.

    As it is where squares are summed in more bits, on the device.
    """
    size = gradient.length
    if isinstance(size, Tensor) or size == 0.0 or 1e-10 < size < 1e10:
        return gradient
    unit = min(1.0 / size, 1e38)
    tensors.scale(gradient.values, unit)
    return replace(gradient, scale=gradient.scale * unit)


def _along(gradient: Gradient, norms: list[Tensor]) -> Direction:
    """Along the gradient's values as they are now; norms of its parts are still on the device."""
    if gradient.is_late:
        length = tensors.norm(norms, wide=True)
    else:
        alike = [norm.to(norms[0]) for norm in norms]
        length = math.hypot(*tensors.to_host(torch.stack(alike))) if norms else 0.0
    return Direction(gradient.params, gradient.values, gradient.radii, length, scale=gradient.scale)
