"""Methods whose passes a trainer does not make, and the plain loop that trainers must equal."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import aesam
from support.plain_loops import LR, MOMENTUM
from support.problems import stochastic_net

#: Of one gradient a step, of some rows first, and of recorded forwards.
MOVED: dict[str, Callable[..., aesam.SharpnessAware]] = {
    "msam": lambda base, model, **o: aesam.MSAM(base, model, rho=0.3, **o),
    "stale-sam": lambda base, model, **o: aesam.StaleSAM(base, model, rho=0.3, **o),
    "sub-sam": lambda base, model, **o: aesam.SubSAM(
        base, model, rho=0.3, share=0.5, replay=True, **o
    ),
    "functional-sam": lambda base, model, **o: aesam.FunctionalSAM(base, model, rho=0.3, **o),
}
LABELS = {
    "msam": "MSAM", "stale-sam": "stale ascent", "sub-sam": "sub-batch ascent",
    "functional-sam": "functional SAM",
}  # fmt: skip

Batch = tuple[Tensor, Tensor]


def error_of(found: Tensor, y: Tensor) -> Tensor:
    return (found - y).square().sum(1).mean() / 2


class WithLoss(nn.Module):
    """A net that returns its loss, which a sub-batch's ascent in a bare loop needs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return error_of(self.net(x), y)


class Trained:
    """A net, what an optimizer is told of it, and its loss on a batch as a loop calls it."""

    def __init__(
        self, method: str, net: Callable[[], nn.Module] = stochastic_net, **options: Any
    ) -> None:
        self.net = net()
        self.is_inside = method == "sub-sam"
        self.model: nn.Module = WithLoss(self.net) if self.is_inside else self.net
        self.base = torch.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM)
        self.opt = MOVED[method](self.base, self.model, **options)

    def loss(self, batch: Batch, model: nn.Module | None = None) -> Tensor:
        x, y = batch
        model = self.model if model is None else model
        return model(x, y) if self.is_inside else error_of(model(x), y)


def plain(
    method: str,
    steps: Iterable[Sequence[Batch]],
    net: Callable[[], nn.Module] = stochastic_net,
    clip: float | None = None,
    seed: int = 3,
) -> nn.Module:
    """The loop that owns its passes, over the micro-batches of each step; clips the direction."""
    trained = Trained(method, net)
    opt, rows = trained.opt, trained.opt.parts.samples.first_rows
    torch.manual_seed(seed)
    for batches in steps:
        count = len(batches)
        with opt.first_pass():
            for x, y in batches:
                some = slice(None) if rows is None else rows
                (error_of(trained.net(x[some]), y[some]) / count).backward()
        if opt.needs_second_pass():
            with opt.perturbed():
                for x, y in batches:
                    (error_of(trained.net(x), y) / count).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(trained.net.parameters(), clip)
        opt.step()
        opt.zero_grad()
    return trained.net
