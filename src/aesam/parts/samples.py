"""On which samples of the mini-batch to take the second gradient, and of how much of the loss."""

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

    #: Into how many parts the rows are split, each with a pass of its own: a part that moves the
    #: weights before a pass moves them anew for each, and the gradient is the mean of theirs.
    splits: int = 1

    @property
    def selects_rows(self) -> bool:
        """Whether per-sample losses are needed at all."""
        return False

    @property
    def first_rows(self) -> slice | None:
        """Rows that the first gradient is of; None where it is of all.

        Where it is not, a second pass over all rows follows on every step, at ``w`` where the
        policy says no; buffers are what that pass leaves.
        """
        return None

    @property
    def looks_first(self) -> bool:
        """Whether both gradients are of rows that are chosen by a look at their losses at ``w``."""
        return False

    @property
    def needs_losses(self) -> bool:
        """Whether ``step`` must be given a function of per-sample losses, which takes rows."""
        of_some = self.selects_rows or self.looks_first or self.first_rows is not None
        return of_some or self.splits > 1

    @property
    def keeps_output_gradients(self) -> bool:
        """Whether the second gradient is of the model alone, with the loss's slope as at ``w``.

        The model's forwards are then recorded and run again at ``w + ε``, and what arrived at their
        outputs at ``w`` is sent back: nobody computes the loss again.
        """
        return False

    def rows_at_first(self, losses: Tensor) -> Tensor:
        """The rows for both gradients, from the losses at ``w``, where it looks first.

        Args:
            losses: one for each row of the mini-batch.
        """
        raise TypeError(f"{type(self).__name__} must define rows_at_first(losses)")

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
class KeptOutputGradients(Samples):
    """Functional SAM's (Singh et al. 2025): all rows, with the loss's slope as it was at ``w``.

    ``g_s = J(w+ε)ᵀ ∂L/∂f`` with ``J`` the derivative of the model's outputs ``f`` at ``w + ε``, and
    ``∂L/∂f`` at ``w``: the recorded forwards run again, and the gradients that arrived at their
    outputs are sent back. So a closure runs once, a bare ``step()`` works in every loop, and
    ``needs_second_pass()`` returns False with the direction made. The loss must be made outside the
    model: where the model returns it, ``∂L/∂f`` is 1, this would be SAM, and is refused.

    >>> KeptOutputGradients().keeps_output_gradients
    True
    """

    @property
    def keeps_output_gradients(self) -> bool:
        return True


@dataclass(frozen=True)
class SubBatch(Samples):
    """The ascent along the gradient of some rows, the second gradient of all: cheap looking.

    ``ε = ρ g_S/‖g_S‖`` with ``g_S`` of every m-th row, ``m = 1/share``, and ``d = ∇L(B; w + ε)``:
    a step costs ``1 + share`` gradients. The policy sees ``‖g_S‖²``; a step that it leaves out
    takes ``d = ∇L(B; w)``, and has cost as much.

    By ``step(losses)``; or, with ``replay=True`` and a model that returns the loss, in bare loops:
    its training forward takes ``g_S`` and moves the weights before it runs on all rows, and the end
    of its backward brings them back. There ``g_S`` is of those tensor arguments that have as many
    rows, in their first dimension, as most have (refused where two numbers are as common), and of
    the loss as the model returns it: what a loop adds to it is not in the ascent.

    Args:
        share: of the rows, 1 over a whole number from 2; 1/8 by default.

    >>> SubBatch(0.25).first_rows
    slice(0, None, 4)
    """

    share: float = 0.125

    def __post_init__(self) -> None:
        share = checks.share("share", self.share)
        if round(1.0 / share) < 2 or abs(share * round(1.0 / share) - 1.0) > 1e-6:
            raise ValueError(
                f"share must be 1 over a whole number from 2, such as 1/8, got {self.share!r}"
            )
        self._keep(share=share)

    @property
    def first_rows(self) -> slice | None:
        return slice(0, None, round(1.0 / self.share))


@dataclass(frozen=True)
class Splits(Samples):
    """LPF-SGD's with M > 1: the mean of the gradients of M splits, each at a place of its own.

    Split i has every M-th row from the i-th on; each counts alike. It goes with a part that moves
    the weights before the first pass and policies that never fire. ``step(losses)`` takes all
    passes. A loop that owns its passes, or that calls a bare ``step()``, makes M of them.

    Args:
        splits: how many, M, a whole number from 1, which is the whole batch; 4 by default.

    >>> Splits(2).needs_losses
    True
    """

    splits: int = 4

    def __post_init__(self) -> None:
        self._keep(splits=checks.whole("splits", self.splits, least=1))

    def count(self, batch: int) -> int:
        """How many of ``batch`` rows the smallest split has.

        Args:
            batch: rows of the mini-batch.
        """
        return batch // self.splits


@dataclass(frozen=True)
class LargestLoss(Samples):
    """K-SAM's: both gradients of ``max(1, round(share · b))`` rows, those with the largest loss.

    They are found by a forward without gradient over all rows, which is also the one that buffers
    (BatchNorm's statistics) are of. A step without a second gradient takes that of these rows.

    Args:
        share: of the rows, above 0 and at most 1; 0.5 by default, and 1 takes all and does not
            look.

    >>> import torch
    >>> LargestLoss(0.5).rows_at_first(torch.tensor([0.1, 0.4, 0.2, 0.3]))
    tensor([1, 3])
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        self._keep(share=checks.share("share", self.share))

    @property
    def looks_first(self) -> bool:
        return self.share < 1.0

    def count(self, batch: int) -> int:
        """How many of ``batch`` rows are chosen."""
        return max(1, round(self.share * batch))

    def rows_at_first(self, losses: Tensor) -> Tensor:
        return losses.topk(self.count(losses.numel())).indices.sort().values


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
