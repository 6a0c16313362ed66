"""Where to take the second gradient: the direction of the step from ``w`` to ``w + ε``.

An ascent names a direction and its length; the optimizer turns it into
``ε = ρ · direction / length`` (Eq. 2), or ``ρ · direction`` with ``normalize=False``.
"""

from dataclasses import dataclass

import torch

from aesam._core.tensors import to_host
from aesam.parts import checks
from aesam.parts.part import Direction, Draws, Gradient, Memory, MemoryPart, on_device


class Ascent(MemoryPart):
    """Base of all ascents: override :meth:`direction`, and :meth:`observe` if it keeps an EMA.

    >>> class Downhill(Ascent):
    ...     def direction(self, gradient, memory, generator):
    ...         down = [-g for g in gradient.values]
    ...         return Direction(gradient.params, down, gradient.radii, gradient.norm)
    >>> g = Gradient([torch.zeros(1)], [torch.ones(1)], radii=[0.05], norm=1.0)
    >>> Downhill().direction(g, Memory(), None).vectors
    [tensor([-1.])]
    """

    #: Whether it has a direction for a second gradient; one that has none goes with a policy that
    #: never fires.
    has_second_gradient = True

    #: Whether ``gradient.places`` is looked at: the names of the parameters, and their modules.
    needs_places = False

    #: Whether :meth:`direction` may write to ``gradient.values``. Who says no saves a copy where
    #: something that is needed afterwards, a momentum, stands in the gradient's place.
    overwrites = True

    #: Whether :meth:`direction` is handed what :meth:`observe` made of this step's gradient,
    #: instead of the memory of before this step.
    looks_at_observed = False

    @property
    def needs_norm_of_each(self) -> bool:
        """Whether ``gradient.norms`` is looked at."""
        return False

    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        """Where to go, from the memory of before this step.

        ``gradient.values`` may be overwritten: they are cleared before the second pass.
        """
        raise TypeError(f"{type(self).__name__} must define direction(gradient, memory, generator)")


@dataclass(frozen=True)
class AlongGradient(Ascent):
    """SAM's: ``ε = ρ g / ‖g‖``, the norm over all parameters (Eq. 2); zero where ``g`` is zero.

    >>> g = Gradient([torch.zeros(2)], [torch.tensor([3.0, 4.0])], radii=[0.05], norm=5.0)
    >>> AlongGradient().direction(g, Memory(), None).factors(normalize=True)
    [0.01]
    """

    overwrites = False

    @on_device
    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        return _along(gradient)


@dataclass(frozen=True)
class RandomSubset(Ascent):
    """ESAM's: each tensor takes part with probability ``β``; ``ε = ρ g / ‖g‖ / β`` on those.

    The norm is over the tensors that take part, one draw a step from a generator of its own.

    Args:
        beta: probability ``β`` of each tensor to take part, above 0 and at most 1; 0.6 by default.
        seed: of the draws, a whole number from 0, the default; checkpoints keep where they are.

    >>> draw = torch.Generator().manual_seed(0)
    >>> g = Gradient([torch.zeros(1)] * 2, [torch.ones(1)] * 2, [0.05] * 2, 2**0.5)
    >>> len(RandomSubset(beta=1.0).direction(g, Memory(), draw).vectors)
    2
    """

    beta: float = 0.6
    seed: int = 0

    def __post_init__(self) -> None:
        self._keep(beta=checks.share("beta", self.beta), seed=checks.seed("seed", self.seed))

    @property
    def needs_norm_of_each(self) -> bool:
        return self.beta < 1.0

    @on_device
    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        count = len(gradient.values)
        draws = to_host(torch.rand(count, generator=generator, dtype=torch.float64))
        chosen = [i for i, draw in enumerate(draws) if draw < self.beta]
        drawn = gradient if len(chosen) == count else gradient.over(chosen)
        return _along(drawn, gain=1.0 / self.beta)


def _along(gradient: Gradient, gain: float = 1.0) -> Direction:
    return Direction(
        gradient.params,
        gradient.values,
        gradient.radii,
        length=gradient.length,
        scale=gradient.scale,
        gain=gain,
    )
