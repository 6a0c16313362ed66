"""Which rows make up each batch of an epoch, and which of these are this rank's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from aesam.lab.data import draws
from aesam.lab.errors import UsageError


@dataclass(frozen=True)
class Plan:
    """A new order of ``count`` rows each epoch, cut into global batches of ``batch_size``.

    What is left over at the end of an epoch, too little for a batch, is not used in that epoch.
    """

    count: int
    batch_size: int
    seed: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.batch_size > self.count:
            raise UsageError(
                f"batch_size={self.batch_size} is larger than the data set, "
                f"which has {self.count} images to train on"
            )
        check_rank(self.rank, self.world)
        if self.batch_size % self.world:
            raise UsageError(
                f"batch_size={self.batch_size} counts the images of all processes together and "
                f"must be a multiple of their number, {self.world}"
            )

    def __len__(self) -> int:
        return self.count // self.batch_size

    @property
    def mine(self) -> slice:
        """What of a global batch is this rank's: the ranks in order make up the whole."""
        each = self.batch_size // self.world
        return slice(self.rank * each, (self.rank + 1) * each)

    def order(self, epoch: int) -> Tensor:
        """All rows in the order of this epoch."""
        return torch.randperm(self.count, generator=draws.generator("order", self.seed, epoch))

    def rows(self, order: Tensor, batch: int) -> Tensor:
        """The rows of one batch that are this rank's."""
        return order[batch * self.batch_size : (batch + 1) * self.batch_size][self.mine]

    def check(self, epoch: int, start: int) -> None:
        """Refuse an epoch or a batch to start from that does not exist."""
        if epoch < 0:
            raise ValueError(f"the epoch must be at least 0, got {epoch}")
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be between 0 and {len(self)} batches, got {start}")


def check_rank(rank: int, world: int) -> None:
    """Refuse a rank that is none of ``world``."""
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"rank must be one of the world's 0..{world - 1}, got {rank}")


def even_share(count: int, rank: int, world: int) -> range:
    """The rows that this rank evaluates: every row belongs to exactly one rank.

    >>> [len(even_share(10, rank, 3)) for rank in range(3)]
    [3, 3, 4]
    """
    check_rank(rank, world)
    return range(count * rank // world, count * (rank + 1) // world)
