"""Steps of SAM and its variants as bare foreach operations: what they cannot do without.

No checks, no state, no parts: the operations of the rule, one after the other, in buffers that are
there already. What aesam's steps cost beside these is the price of everything else.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Tensors = list[Tensor]


class Bare:
    """SAM's; the others change where it goes, what it makes of both gradients, or both."""

    def __init__(self, base: torch.optim.Optimizer, rho: float = 0.05) -> None:
        self.base, self.rho = base, rho
        self.params: Tensors = [p for group in base.param_groups for p in group["params"]]
        self.saved, self.length = self.buffers(), 0.0

    def buffers(self) -> Tensors:
        return [torch.empty_like(p, requires_grad=False) for p in self.params]

    @torch.no_grad()
    def step(self, second_pass: Callable[[], None]) -> None:
        g = self.gradients()
        self.keep(g)
        self.length = norm(g)  # which policies look at
        vectors, length = self.ascent(g)
        torch._foreach_copy_(self.saved, self.params)
        torch._foreach_add_(self.params, vectors, alpha=self.rho / length)
        for p in self.params:
            p.grad = None
        second_pass()
        torch._foreach_copy_(self.params, self.saved)
        d = self.gradients()
        self.combine(d)
        norm(d)  # whether it is finite
        self.base.step()
        self.after_base_step()

    def gradients(self) -> Tensors:
        return [p.grad for p in self.params if p.grad is not None]

    def keep(self, g: Tensors) -> None:
        """What is needed of the first gradient after the second."""

    def ascent(self, g: Tensors) -> tuple[Tensors, float]:
        return g, self.length

    def combine(self, second: Tensors) -> None:
        """Turn the second gradient into the direction."""

    def after_base_step(self) -> None:
        """What is done to the weights after the base."""


class BareASAM(Bare):
    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base)
        self.factors = self.buffers()

    def ascent(self, g: Tensors) -> tuple[Tensors, float]:
        rows = [i for i, p in enumerate(self.params) if p.ndim > 1]
        t, v, w = ([each[i] for i in rows] for each in (self.factors, g, self.params))
        torch._foreach_copy_(t, w)
        torch._foreach_abs_(t)
        torch._foreach_add_(t, 0.01)
        torch._foreach_mul_(v, t)
        length = norm(g)
        torch._foreach_mul_(v, t)
        return g, length


class BareFisher(Bare):
    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base)
        self.factors = self.buffers()

    def ascent(self, g: Tensors) -> tuple[Tensors, float]:
        t = self.factors
        torch._foreach_copy_(t, g)
        torch._foreach_mul_(t, t)
        torch._foreach_add_(t, 1.0)
        torch._foreach_rsqrt_(t)
        torch._foreach_mul_(g, t)
        length = norm(g)
        torch._foreach_mul_(g, t)
        return g, length


class _Averaging(Bare):
    """Keeps ``m ← keep · m + (1 − keep) · g`` in two buffers: a step may not be taken."""

    share = 0.1

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base)
        self.average, self.next = self.buffers(), self.buffers()
        for m in self.average:
            m.zero_()

    def keep(self, g: Tensors) -> None:
        torch._foreach_copy_(self.next, self.average)
        torch._foreach_lerp_(self.next, g, self.share)

    def after_base_step(self) -> None:
        self.average, self.next = self.next, self.average


class BareFSAM(_Averaging):
    def ascent(self, g: Tensors) -> tuple[Tensors, float]:
        torch._foreach_add_(g, self.average, alpha=-1.0)
        return g, norm(g)


class BareVaSSO(_Averaging):
    share = 0.9

    def ascent(self, g: Tensors) -> tuple[Tensors, float]:  # noqa: ARG002
        return self.next, norm(self.next)


class _Keeping(Bare):
    """Keeps the first gradient."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base)
        self.first = self.buffers()

    def keep(self, g: Tensors) -> None:
        torch._foreach_copy_(self.first, g)


class BareGNP(_Keeping):
    def combine(self, second: Tensors) -> None:
        torch._foreach_lerp_(second, self.first, 0.2)


class BareGSAM(_Keeping):
    def combine(self, second: Tensors) -> None:
        pairs = zip(self.first, second, strict=True)
        product = torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in pairs]).sum()
        share = product.item() / norm(second) ** 2
        torch._foreach_mul_(second, 1.0 + 0.1 * share)
        torch._foreach_add_(second, self.first, alpha=-0.1)


class BareWSAM(_Keeping):
    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base)
        self.rest = self.buffers()

    def combine(self, second: Tensors) -> None:
        torch._foreach_copy_(self.rest, second)
        torch._foreach_sub_(self.rest, self.first)
        torch._foreach_copy_(second, self.first)

    def after_base_step(self) -> None:
        torch._foreach_add_(self.params, self.rest, alpha=-1e-9)


def norm(tensors: Tensors) -> float:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors))).item()


#: By the names of the methods that take these steps.
BARE: dict[str, type[Bare]] = {
    "sam": Bare,
    "asam": BareASAM,
    "fisher-sam": BareFisher,
    "gnp": BareGNP,
    "f-sam": BareFSAM,
    "vasso": BareVaSSO,
    "gsam": BareGSAM,
    "wsam": BareWSAM,
}
