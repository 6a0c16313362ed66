"""Small problems in float64 and the table of methods that every test draws from."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import aesam
from aesam.parts.composed import Warmup
from aesam.parts.policies import Adaptive, Bernoulli, Decision, Never, Observation, Policy

TOTAL_STEPS = 120

#: The one table: a name of the paper, and how to make it around a base optimizer.
METHODS: dict[str, Callable[..., aesam.SharpnessAware]] = {
    "erm": lambda base, model=None, **o: aesam.SharpnessAware(base, model, policy=Never(), **o),
    "sam": aesam.SAM,
    "ss-sam": lambda base, model=None, **o: aesam.SSSAM(base, model, **({"seed": 3} | o)),
    "looksam": lambda base, model=None, **o: aesam.LookSAM(base, model, **({"k": 3} | o)),
    "ae-sam": lambda base, model=None, **o: aesam.AESAM(
        base, model, **({"total_steps": TOTAL_STEPS} | o)
    ),
    "ae-looksam": lambda base, model=None, **o: aesam.AELookSAM(
        base, model, **({"total_steps": TOTAL_STEPS} | o)
    ),
    "esam": lambda base, model=None, **o: aesam.ESAM(base, model, **({"seed": 5} | o)),
}

#: The same for methods beyond the paper.
VARIANTS: dict[str, Callable[..., aesam.SharpnessAware]] = {
    "asam": aesam.ASAM,
    "fisher-sam": aesam.FisherSAM,
    "gnp": aesam.GNP,
    "f-sam": aesam.FSAM,
    "vasso": aesam.VaSSO,
    "gsam": aesam.GSAM,
    "wsam": aesam.WSAM,
    "sam-on": aesam.SAMON,
    "le-sam": aesam.LESAM,
    "msam": aesam.MSAM,
    "stale-sam": aesam.StaleSAM,
    "sub-sam": lambda base, model=None, **o: aesam.SubSAM(base, model, **({"share": 0.5} | o)),
    "k-sam": aesam.KSAM,
    "functional-sam": aesam.FunctionalSAM,
    "anti-pgd": aesam.AntiPGD,
    "lpf-sgd": aesam.LPFSGD,
    "mesa": lambda base, model=None, **o: aesam.MESA(base, model, **({"decay": 0.8} | o)),
}

#: The names of the methods that train any model; Bi-LoRA is for models with adapters.
FOR_ANY_MODEL = [n for n in aesam.list_methods() if not aesam.method_record(n).only_for]

#: Methods of no paper whose policy or ascent keeps what the paper's do not.
ASSEMBLED: dict[str, Callable[..., aesam.SharpnessAware]] = {
    "budget": lambda base, model=None, **o: aesam.AELookSAM(
        base, model, **({"budget": 0.5, "compensate": 3.0} | o)
    ),
    "members": lambda base, model=None, **o: aesam.SharpnessAware(
        base,
        model,
        policy=Warmup(Bernoulli(0.7, seed=1) | ~Adaptive(total_steps=TOTAL_STEPS), steps=1),
        **({"compensate": 3.0} | o),
    ),
    "stale, elementwise": lambda base, model=None, **o: aesam.StaleSAM(
        base, model, **({"elementwise": True} | o)
    ),
}

BASES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.8, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
}


class AboveAverageLoss(Policy):
    """A policy that looks at the loss: fires where it is above its own moving average."""

    looks_at_loss = True

    def start(self) -> dict[str, float]:
        return {"average": 0.0}

    def decide(
        self, now: Observation, state: dict[str, float]
    ) -> tuple[Decision, dict[str, float]]:
        if now.loss is None:
            return Decision(False), state
        average = 0.8 * state["average"] + 0.2 * now.loss
        return Decision(now.loss > average, threshold=average), {"average": average}


class Problem:
    """A model and one mini-batch per step, the same for everyone with the same seed."""

    def __init__(self, model: nn.Module, inputs: int = 3, outputs: int = 2, batch: int = 8) -> None:
        self.model = model
        draw = torch.Generator().manual_seed(11)
        dtype = next(model.parameters()).dtype
        self.x = torch.randn(50, batch, inputs, generator=draw, dtype=torch.float64).to(dtype)
        self.y = torch.randn(50, batch, outputs, generator=draw, dtype=torch.float64).to(dtype)

    def losses(self, t: int, rows: Any = None) -> Tensor:
        i = slice(None) if rows is None else rows
        x, y = self.x[t % 50], self.y[t % 50]
        return (self.model(x[i]) - y[i]).square().sum(1) / 2

    def closure(self, opt: aesam.SharpnessAware, t: int) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            opt.zero_grad()
            loss = self.losses(t).mean()
            loss.backward()
            return loss

        return closure

    def for_step(self, opt: aesam.SharpnessAware, t: int) -> Callable[..., Tensor]:
        """What this optimizer's ``step`` wants: a closure, or per-sample losses."""
        if opt.parts.samples.needs_losses:
            return lambda rows=None: self.losses(t, rows)
        return self.closure(opt, t)

    def step(self, opt: aesam.SharpnessAware, t: int) -> Tensor:
        return opt.step(self.for_step(opt, t))

    def train(self, opt: aesam.SharpnessAware, steps: int, start: int = 0) -> None:
        for t in range(start, start + steps):
            self.step(opt, t)

    def own_passes(self, opt: aesam.SharpnessAware, t: int, first_pass: bool = True) -> Tensor:
        """The same step with the loop owning its passes."""
        samples = opt.parts.samples
        chosen = samples.rows_at_first(self.losses(t).detach()) if samples.looks_first else None
        some = chosen if samples.first_rows is None else samples.first_rows
        with opt.first_pass() if first_pass else nullcontext():
            losses = self.losses(t, some)
            losses.mean().backward()
        if opt.needs_second_pass(losses=losses):
            with opt.perturbed() as at:
                rows = at.rows(lambda: self.losses(t)) if chosen is None else chosen
                self.losses(t, rows).mean().backward()
        opt.step()
        opt.zero_grad()
        return losses.mean().detach()


def mlp(seed: int = 0) -> nn.Sequential:
    """The network of the twin: tanh, float64, no buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def normed_mlp(seed: int = 0) -> nn.Sequential:
    """The same with a normalisation layer that looks at one row at a time."""
    torch.manual_seed(seed)
    layers = nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)
    return nn.Sequential(*layers).double()


def stochastic_net(seed: int = 0) -> nn.Sequential:
    """BatchNorm and dropout, everything that a second pass could disturb."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 2)
    ).double()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))
