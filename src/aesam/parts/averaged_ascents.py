"""Ascents that know the gradients of steps before, by a running average of each parameter's."""

from dataclasses import dataclass

import torch

from aesam._core import pieces, tensors
from aesam.parts import checks
from aesam.parts.ascents import Ascent
from aesam.parts.part import Direction, Draws, Gradient, Memory, dense, on_device


@dataclass(frozen=True)
class AwayFromAverage(Ascent):
    """F-SAM's: along what only this batch says, ``g − σ m``, with the ``m`` of before this step.

    Then ``m ← λ m + (1−λ) g``, on every step, fired or not; the first step goes along ``g`` and
    sets ``m = g``. Where nothing but rounding is left of ``g − σ m``, ``ε`` is zero.

    Args:
        sigma: how much ``σ`` of the average is taken away, any finite number; 1 by default. 0 is
            :class:`~aesam.parts.ascents.AlongGradient`.
        decay: how much ``λ`` of the average is kept from step to step, above 0 and below 1; 0.9 by
            default.

    >>> w, g, m = torch.zeros(2), torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0])
    >>> first = Gradient([w], [g], [0.05], 5.0)
    >>> along = AwayFromAverage().direction(first, Memory({}, {w: m}), None)
    >>> along.vectors, along.length
    ([tensor([0., 4.])], 4.0)
    """

    sigma: float = 1.0
    decay: float = 0.9

    def __post_init__(self) -> None:
        self._keep(
            sigma=checks.finite("sigma", self.sigma), decay=checks.decay("decay", self.decay)
        )

    @on_device
    def observe(self, gradient: Gradient, memory: Memory) -> Memory:
        return _averaged(gradient, memory, self.decay, dense(self, gradient.values))

    @on_device
    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        found = zip(gradient.values, memory.of(gradient.params), strict=True)
        rows = [(v, m) for v, m in found if m is not None]
        written, averages = [v for v, _ in rows], [m for _, m in rows]
        tensors.add(written, averages, -self.sigma * gradient.scale)
        rounding = 4.0 * tensors.largest_eps(gradient.values) if rows else 0.0
        length = tensors.zero_up_to(rounding * gradient.length, gradient.length_of(gradient.values))
        return Direction(
            gradient.params, gradient.values, gradient.radii, length, scale=gradient.scale
        )


@dataclass(frozen=True)
class AlongAverage(Ascent):
    """VaSSO's: along ``m``, a running average of the gradients up to this step's.

    ``m ← (1−θ) m + θ g`` on every step, fired or not; the first ``m`` is ``g``.

    Args:
        theta: weight ``θ`` of this step's gradient, above 0 and at most 1; 0.9 by default, and 1 is
            :class:`~aesam.parts.ascents.AlongGradient`.

    >>> w, m = torch.zeros(2), torch.tensor([2.0, 0.0])
    >>> g = Gradient([w], [torch.tensor([0.0, 2.0])], [0.05], 2.0)
    >>> AlongAverage(theta=0.5).observe(g, Memory({}, {w: m})).tensors[w]
    tensor([1., 1.])
    """

    theta: float = 0.9
    looks_at_observed = True

    def __post_init__(self) -> None:
        self._keep(theta=checks.share("theta", self.theta))

    @on_device
    def observe(self, gradient: Gradient, memory: Memory) -> Memory:
        return _averaged(gradient, memory, 1.0 - self.theta, dense(self, gradient.values))

    @on_device
    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        averages = [m for m in memory.of(gradient.params) if m is not None]
        length = gradient.length_of(averages, shards_of=gradient.params)
        return Direction(gradient.params, averages, gradient.radii, length)


def _averaged(
    gradient: Gradient, memory: Memory, keep: float, values: list[torch.Tensor]
) -> Memory:
    """``keep · m + (1−keep) g`` of the true gradient; ``g`` where there is no ``m`` yet.

    In new tensors: a step that is not taken leaves those of before. A parameter without a gradient
    keeps its own.
    """
    known, params = memory.of(gradient.params), gradient.params
    made = gradient.workspace.take(params, values)
    for is_known in {m is not None for m in known}:
        rows = [i for i, m in enumerate(known) if (m is not None) == is_known]
        new = [values[i] for i in rows]
        share = keep if is_known else 0.0
        pieces.blend(
            [made[i] for i in rows],
            [m for m in known if m is not None] if is_known else new,
            new,
            share,
            (1.0 - share) / gradient.scale,
        )
    return Memory({}, {**memory.tensors, **dict(zip(params, made, strict=True))})
