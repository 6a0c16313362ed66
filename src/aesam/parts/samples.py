"""On which samples of the mini-batch to take the second gradient."""

from dataclasses import dataclass

from torch import Tensor

from aesam.parts import checks
from aesam.parts.part import Draws, Memory, MemoryPart


class Samples(MemoryPart):
    """Base of all selections: override :meth:`rows` and :attr:`selects_rows`.

    >>> import torch
    >>> class Hardest(Samples):
    ...     selects_rows = True
    ...     def rows(self, before, after, memory, generator):
    ...         return after.argmax().reshape(1)
    >>> Hardest().rows(torch.zeros(3), torch.tensor([0.1, 0.3, 0.2]), Memory(), None)
    tensor([1])
    """

    @property
    def selects_rows(self) -> bool:
        """Whether per-sample losses are needed at all."""
        return False

    def count(self, batch: int) -> int:
        """How many of ``batch`` rows are chosen: all, unless said otherwise.

        Args:
            batch: rows of the mini-batch.
        """
        return batch

    def rows(self, before: Tensor, after: Tensor, memory: Memory, generator: Draws) -> Tensor:
        """The rows to use, from the per-sample losses at ``w`` and at ``w + ε``."""
        raise TypeError(f"{type(self).__name__} must define rows(before, after, memory, generator)")


@dataclass(frozen=True)
class WholeBatch(Samples):
    """All of them.

    >>> WholeBatch().selects_rows
    False
    """


@dataclass(frozen=True)
class LargestRise(Samples):
    """ESAM's: exactly ``max(1, round(γ b))`` rows, those whose loss rose most from w to w + ε.

    Args:
        gamma: share ``γ`` of the rows, above 0 and at most 1; 0.5 by default, and 1 costs no extra
            forward.

    >>> import torch
    >>> before, after = torch.zeros(4), torch.tensor([0.1, 0.4, 0.2, 0.3])
    >>> LargestRise(gamma=0.5).rows(before, after, Memory(), None)
    tensor([1, 3])
    """

    gamma: float = 0.5

    def __post_init__(self) -> None:
        self._keep(gamma=checks.share("gamma", self.gamma))

    @property
    def selects_rows(self) -> bool:
        return self.gamma < 1.0

    def count(self, batch: int) -> int:
        """How many of ``batch`` rows are chosen."""
        return max(1, round(self.gamma * batch))

    def rows(self, before: Tensor, after: Tensor, memory: Memory, generator: Draws) -> Tensor:
        return (after - before).topk(self.count(before.numel())).indices.sort().values
