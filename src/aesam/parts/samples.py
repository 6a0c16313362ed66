"""On which samples of the mini-batch to take the second gradient."""

from dataclasses import dataclass

from torch import Tensor

from aesam._core import checks
from aesam.parts.part import Axis


class Samples(Axis):
    """Base of all selections: override :meth:`rows` and :attr:`selects_rows`."""

    @property
    def selects_rows(self) -> bool:
        """Whether per-sample losses are needed at all."""
        return False

    def rows(self, before: Tensor, after: Tensor) -> Tensor:
        """The rows to use, from the per-sample losses at ``w`` and at ``w + ε``."""
        raise TypeError(f"{type(self).__name__} must define rows(before, after)")


@dataclass(frozen=True)
class WholeBatch(Samples):
    """All of them.

    >>> WholeBatch().selects_rows
    False
    """


@dataclass(frozen=True)
class LargestRise(Samples):
    """ESAM's: exactly ``max(1, round(γ b))`` rows, those whose loss rose most from w to w + ε.

    >>> import torch
    >>> before, after = torch.zeros(4), torch.tensor([0.1, 0.4, 0.2, 0.3])
    >>> LargestRise(gamma=0.5).rows(before, after)
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

    def rows(self, before: Tensor, after: Tensor) -> Tensor:
        return (after - before).topk(self.count(before.numel())).indices.sort().values
