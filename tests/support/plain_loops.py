"""The plain loop of this library, which every trainer is compared with: the closure form."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import aesam
from support.problems import METHODS, Problem, weights

LR, MOMENTUM = 0.1, 0.9


def new_optimizer(method: str, model: nn.Module, **options: Any) -> aesam.SharpnessAware:
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    return METHODS[method](base, model, **options)


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    x, y = batch
    return (model(x) - y).square().sum(1).mean() / 2


def micro_batches(problem: Problem, t: int, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """The batch of step ``t`` in pieces of these sizes."""
    x, y = problem.x[t % 50], problem.y[t % 50]
    return list(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True))


class PlainLoop:
    """Training with ``opt.step(closure)``; clipping is a step hook, on the final direction."""

    def __init__(
        self,
        method: str,
        model: nn.Module,
        max_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        **options: Any,
    ) -> None:
        self.model, self.scaler = model, scaler
        self.opt = new_optimizer(method, model, **options)
        self.losses: list[float] = []
        self.used_sam: list[bool] = []
        if max_norm is not None:
            self.opt.register_step_pre_hook(
                lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            )

    def step(self, batches: Iterable[Any], counts: Sequence[float] | None = None) -> None:
        """One step on the mean over micro-batches, weighted where ``counts`` are given."""
        kept = list(batches)
        counts = [1.0] * len(kept) if counts is None else counts

        def closure() -> Tensor:
            self.opt.zero_grad()
            total = torch.zeros(())
            for batch, count in zip(kept, counts, strict=True):
                loss = loss_of(self.model, batch) * (count / sum(counts))
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
                total = total + loss.detach()
            return total

        self.losses.append(self.opt.step(closure, scaler=self.scaler).item())
        if self.scaler is not None:
            self.scaler.update()
        self.used_sam.append(self.opt.last_step is not None and self.opt.last_step.used_sam)


def largest_difference(left: nn.Module, right: nn.Module) -> float:
    """Between the weights of two models, and between their buffers."""
    pairs = [*zip(weights(left), weights(right), strict=True)]
    pairs += zip(left.buffers(), right.buffers(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)
