"""How the two gradients become one direction ``d``."""

from dataclasses import dataclass
from typing import Any

from aesam._core import tensors
from aesam.parts import checks
from aesam.parts.part import Draws, Gradient, Memory, MemoryPart, Tensors


class Combine(MemoryPart):
    """Base of all combinations: override :meth:`combine`.

    >>> import torch
    >>> class Halved(Combine):
    ...     def combine(self, first, params, second, memory, generator):
    ...         for g_s in second:
    ...             g_s.mul_(0.5)
    >>> w, g_s = torch.zeros(1), torch.ones(1)
    >>> Halved().combine(Gradient([w], [g_s], [0.05], 1.0), [w], [g_s], Memory(), None)
    >>> g_s
    tensor([0.5000])
    """

    def combine(
        self, first: Gradient, params: Tensors, second: Tensors, memory: Memory, generator: Draws
    ) -> Any:
        """Turn ``second`` (the tensors in ``p.grad``) into ``d``, in place.

        ``first.values`` and ``second`` both carry the factor ``first.scale``. What is returned
        reaches ``after_base_step`` of the same part.
        """
        raise TypeError(
            f"{type(self).__name__} must define combine(first, params, second, memory, generator)"
        )


@dataclass(frozen=True)
class Replace(Combine):
    """SAM's: ``d = g_s`` (Eq. 2; Algorithm 1, line 7).

    >>> Replace().needs_first_gradient
    False
    """

    def combine(
        self, first: Gradient, params: Tensors, second: Tensors, memory: Memory, generator: Draws
    ) -> None:
        return None


@dataclass(frozen=True)
class Mix(Combine):
    """``d = (1−α) g + α g_s``: the gradient norm penalised (Zhao et al. 2022).

    A tensor without a second gradient has none in ``d``; one without a first counts it as zero.

    Args:
        alpha: weight ``α`` of the second gradient, any finite number, 0.8 by default; 1 is
            :class:`Replace`.

    >>> import torch
    >>> w, g, g_s = torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> first = Gradient([w], [g], radii=[0.05], norm=1.0)
    >>> Mix(alpha=0.8).combine(first, [w], [g_s], Memory(), None)
    >>> g_s
    tensor([0.2000, 0.8000])
    """

    alpha: float = 0.8
    needs_first_gradient = True

    def __post_init__(self) -> None:
        self._keep(alpha=checks.finite("alpha", self.alpha))

    def combine(
        self, first: Gradient, params: Tensors, second: Tensors, memory: Memory, generator: Draws
    ) -> None:
        tensors.scale(second, self.alpha)
        known = dict(zip(map(id, first.params), first.values, strict=True))
        pairs = [(s, known[id(p)]) for p, s in zip(params, second, strict=True) if id(p) in known]
        tensors.add([s for s, _ in pairs], [g for _, g in pairs], 1.0 - self.alpha)
