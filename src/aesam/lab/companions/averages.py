"""Averages of the weights that training goes through, which are what is evaluated."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# torch.optim.swa_utils carries no types.

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import swa_utils

from aesam.lab.companions.companion import (
    Companion,
    Stage,
    checked_count,
    checked_keys,
    checked_tensors,
)
from aesam.parts import checks

#: Of ``torch.optim.swa_utils``: changes averages by weights, after so many were averaged.
Rule = Callable[[list[Tensor], list[Tensor], int], None]


class Average:
    """A running average of tensors by a rule of ``torch.optim.swa_utils``, from the first on.

    >>> average = Average(swa_utils.get_swa_multi_avg_fn())
    >>> for value in (1.0, 2.0, 6.0):
    ...     average.add([torch.tensor([value])])
    >>> average.tensors, average.count
    ([tensor([3.])], 3)
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.count = 0
        self.tensors: list[Tensor] = []

    @torch.no_grad()
    def add(self, tensors: Sequence[Tensor]) -> None:
        """One more of what is averaged."""
        now = [t.detach() for t in tensors]
        if self.count:
            self._rule(self.tensors, now, self.count)
        else:
            self.tensors = [t.clone() for t in now]
        self.count += 1

    @torch.no_grad()
    def merge(self, other: "Average") -> None:
        """The mean of both by their counts; only for means, not for exponential averages."""
        if not self.count:
            self.tensors = [t.clone() for t in other.tensors]
        elif other.count:
            share = other.count / (self.count + other.count)
            for own, more in zip(self.tensors, other.tensors, strict=True):
                own.lerp_(more, share)
        self.count += other.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "tensors": self.tensors}

    def load_state_dict(self, saved: object, like: Sequence[Tensor], most: float) -> None:
        """Go on from ``saved``, which is of tensors like these and of at most so many of them."""
        found = checked_keys("average", saved, ("count", "tensors"))
        self.count = checked_count("average: count", found["count"], most)
        self.tensors = checked_tensors("average", found["tensors"], like if self.count else ())


class Averaging(Companion):
    """One average of the weights, evaluated as soon as there is one."""

    evaluates = "an average of the weights"

    def __init__(self, rule: Rule) -> None:
        self._average = Average(rule)

    def begin(self, stage: Stage) -> None:
        self._stage, self._params = stage, list(stage.net.parameters())

    def weights(self) -> Sequence[Tensor] | None:
        return self._average.tensors if self._average.count else None

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average.state_dict()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        found = checked_keys("companion", saved, ("average",))
        self._average.load_state_dict(found["average"], self._params, self._stage.total_steps)


class ExponentialAverage(Averaging):
    """EMA: an exponential average of the weights, evaluated in their place.

    After the first step the average is w, after each further one ``m ← d m + (1 − d) w``.

    Args:
        ema_decay: d, between 0 and 1.

    >>> ExponentialAverage(ema_decay=0.999).evaluates
    'an exponential average of the weights'
    """

    evaluates = "an exponential average of the weights"

    def __init__(self, *, ema_decay: float) -> None:
        decay = checks.decay("ema_decay", ema_decay)
        super().__init__(swa_utils.get_ema_multi_avg_fn(decay))

    def after_step(self, step: int) -> None:  # noqa: ARG002
        self._average.add(self._params)


class StochasticAverage(Averaging):
    """SWA: the mean of the weights after each late epoch, under a rate that stays up.

    The learning rate falls as ever until it is ``rate_floor`` of its highest and stays there. The
    mean is of the weights at the end of each epoch that ends after ``average_after`` of the steps.

    Args:
        average_after: the share of training before the first epoch that counts, 0 to 1. Where it
            is 1, that is the last epoch alone.
        rate_floor: the share of its highest value that the learning rate never falls below, 0 to
            1; 0 leaves the schedule alone.

    >>> StochasticAverage(average_after=0.75, rate_floor=0.1).rate(0.02)
    0.1
    """

    evaluates = "the mean of the weights of late epochs"

    def __init__(self, *, average_after: float, rate_floor: float) -> None:
        self._after = checks.probability("average_after", average_after)
        self._floor = checks.probability("rate_floor", rate_floor)
        super().__init__(swa_utils.get_swa_multi_avg_fn())

    def rate(self, factor: float) -> float:
        return max(factor, self._floor)

    def after_epoch(self, epoch: int) -> None:
        done, total = epoch * self._stage.steps_per_epoch, self._stage.total_steps
        if done > self._after * total or done == total:
            self._average.add(self._params)
