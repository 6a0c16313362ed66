"""What ``with opt.perturbed() as at`` gives to the block inside."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aesam._core.closures import per_sample_losses
from aesam.parts.samples import Samples


class Perturbed:
    """The place ``w + ε``, where rows of the mini-batch can be chosen."""

    def __init__(self, samples: Samples, losses: Tensor | None, rewind: Callable[[], None]) -> None:
        self._samples = samples
        self._before = losses
        self._rewind = rewind

    def rows(self, losses: Callable[..., Tensor] | Tensor) -> Any:
        """The rows for the second gradient: all of them unless the method selects.

        ``losses`` is the function of per-sample losses, called once without gradient at ``w + ε``,
        or the tensor of what it returned there.
        """
        if self._before is None:
            return slice(None)
        if isinstance(losses, Tensor):
            after = per_sample_losses(losses).detach()
        else:
            with torch.no_grad():
                after = per_sample_losses(losses())
            self._rewind()  # the second gradient sees the same random numbers as the selection
        if after.shape != self._before.shape:
            raise ValueError(
                f"losses at w + ε must be of the samples that losses at w were of: got "
                f"{after.numel()} of them, then {self._before.numel()}"
            )
        return self._samples.rows(self._before, after)
