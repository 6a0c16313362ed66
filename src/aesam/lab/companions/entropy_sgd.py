"""Entropy-SGD: Langevin steps around the weights, and a step of theirs toward the mean of these."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aesam import ERM
from aesam.lab import draws
from aesam.lab.companions.companion import (
    Companion,
    Stage,
    checked_count,
    checked_keys,
    checked_tensors,
)
from aesam.parts import checks


class EntropySGD(torch.optim.Optimizer):
    """Around another optimizer: L steps of Langevin dynamics, then one of its own.

    A call of ``step()`` is a step of the dynamics with the gradient that is there, taken at w',
    ``w' ← w' − η'(g + γ(w' − w)) + √η' ε ξ`` and ``m ← (1 − α) m + α w'``, both from w on. After
    every L-th one the weights are at w again, and the other optimizer steps from there along
    ``s (w − m)``. γ grows by ``1 + scoping`` at each of those. ξ follows from the seed and the
    number of the step. A ``weight_decay`` of the other optimizer is part of both gradients.

    Args:
        base: the optimizer that steps along s (w − m), with its learning rate and momentum.
        inner_steps: L, at least 1; 20 by default.
        inner_lr: η', above 0; 0.1 by default.
        scope: γ, at least 0; 1e-4 by default.
        scoping: what γ grows by, at least 0; 1e-3 by default.
        inner_noise: ε, at least 0; 1e-4 by default.
        inner_average: α, above 0 and at most 1; 0.75 by default.
        outer: s, above 0. γ is the paper's, 1 (the default) that of its authors' program.
        seed: of ξ, at least 0; 0 by default.

    >>> w = nn.Parameter(torch.zeros(1))
    >>> base = torch.optim.SGD([w], lr=0.5)
    >>> opt = EntropySGD(base, inner_steps=2, scope=0.0, inner_noise=0.0, inner_average=1.0)
    >>> for _ in range(2):
    ...     w.grad = torch.ones(1)
    ...     opt.step()
    ...     print(round(w.item(), 3), round(opt.weights()[0].item(), 3))
    -0.1 0.0
    -0.1 -0.1
    """

    def __init__(  # torch's constructor is not run: groups and state are those of the base
        self,
        base: torch.optim.Optimizer,
        *,
        inner_steps: int = 20,
        inner_lr: float = 0.1,
        scope: float = 1e-4,
        scoping: float = 1e-3,
        inner_noise: float = 1e-4,
        inner_average: float = 0.75,
        outer: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.optimizer = base
        self.inner_steps = checks.whole("inner_steps", inner_steps, 1)
        self._rate = checks.positive("inner_lr", inner_lr)
        self._scope = checks.at_least_zero("scope", scope)
        self._scoping = checks.at_least_zero("scoping", scoping)
        self._noise = checks.at_least_zero("inner_noise", inner_noise)
        self._average = checks.share("inner_average", inner_average)
        self._outer = checks.positive("outer", outer)
        self._seed = checks.seed("seed", seed)
        self._inner = self.rounds = 0  # steps of the dynamics since w moved, and moves of w
        self._anchor: list[Tensor] = []  # w, while the parameters are at w'
        self._mean: list[Tensor] = []

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore
        """The base's."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # pyright: ignore
        """The base's."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # pyright: ignore
        """The base's."""
        return self.optimizer.defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the base does."""
        self.optimizer.zero_grad(set_to_none)

    def weights(self) -> list[Tensor]:
        """w, also while the parameters are elsewhere."""
        return self._anchor or [p.detach() for p, _ in self._params()]

    def _params(self) -> list[tuple[Tensor, float]]:
        """All parameters, each with its weight decay."""
        return [
            (p, float(group.get("weight_decay", 0.0)))
            for group in self.param_groups
            for p in group["params"]
        ]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore
        """One step of the dynamics, and every L-th time one of w."""
        if closure is not None:
            raise TypeError("EntropySGD steps with the gradient that is there, without a closure")
        if not self._inner:
            self._anchor = [p.detach().clone() for p, _ in self._params()]
            self._mean = [w.clone() for w in self._anchor]
        self._move()
        self._inner += 1
        if self._inner == self.inner_steps:
            self._step_of_w()

    def _move(self) -> None:
        scope = self._scope * (1.0 + self._scoping) ** self.rounds
        number = self.rounds * self.inner_steps + self._inner
        source = draws.generator("langevin", self._seed, number) if self._noise else None
        for (p, decay), w, m in zip(self._params(), self._anchor, self._mean, strict=True):
            if p.grad is not None:
                p.sub_(self._rate * (p.grad + decay * p + scope * (p - w)))
                if source is not None:
                    drawn = torch.randn(p.shape, generator=source, dtype=p.dtype).to(p.device)
                    p.add_(drawn, alpha=self._rate**0.5 * self._noise)
                m.lerp_(p, self._average)

    def _step_of_w(self) -> None:
        for (p, _), w, m in zip(self._params(), self._anchor, self._mean, strict=True):
            p.copy_(w)
            if p.grad is not None:
                p.grad.copy_(self._outer * (w - m))
        self.optimizer.step()
        self._inner, self.rounds = 0, self.rounds + 1
        self._anchor, self._mean = [], []

    _KEYS = ("inner", "rounds", "anchor", "mean", "base")

    def state_dict(self) -> dict[str, Any]:
        return {
            "inner": self._inner,
            "rounds": self.rounds,
            "anchor": self._anchor,
            "mean": self._mean,
            "base": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        found = checked_keys("entropy-sgd", state_dict, self._KEYS)
        inner = checked_count("entropy-sgd: inner", found["inner"], self.inner_steps - 1)
        rounds = checked_count("entropy-sgd: rounds", found["rounds"])
        like = [p for p, _ in self._params()] if inner else []
        anchor, mean = (checked_tensors(n, found[n], like) for n in ("anchor", "mean"))
        self.optimizer.load_state_dict(found["base"])
        self._inner, self.rounds, self._anchor, self._mean = inner, rounds, anchor, mean


def entropy_sgd(
    base: torch.optim.Optimizer, model: nn.Module | None = None, **settings: Any
) -> ERM:
    """Entropy-SGD: L Langevin steps from w, each on its own batch, then one toward their mean."""
    return ERM(EntropySGD(base, **settings), model)


class AtAnchor(Companion):
    """What is evaluated is w, wherever the dynamics are."""

    evaluates = "the weights that the Langevin steps start from"

    def __init__(self, **_: Any) -> None:  # the settings are the optimizer's
        super().__init__()

    def begin(self, stage: Stage) -> None:
        base = stage.opt.base
        if not isinstance(base, EntropySGD):
            raise TypeError(f"the base must be an EntropySGD, got {type(base).__name__}")
        self._base = base

    def weights(self) -> Sequence[Tensor]:
        return self._base.weights()

    def left_undone(self) -> str:
        if self._base.rounds:
            return ""
        return f"w was never moved, since that takes {self._base.inner_steps} steps"
