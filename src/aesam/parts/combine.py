"""How the two gradients become one direction ``d``."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aesam._core import pieces, tensors
from aesam._core.tensors import Workspace
from aesam.parts import checks
from aesam.parts.part import (
    Draws,
    Gradient,
    Memory,
    MemoryPart,
    Tensors,
    on_device,
    rate,
    to_unit_length,
)


class Combine(MemoryPart):
    """Base of all combinations: override :meth:`combine`.

    >>> class Halved(Combine):
    ...     def combine(self, first, params, second, memory, generator):
    ...         for g_s in second:
    ...             g_s.mul_(0.5)
    >>> w, g_s = torch.zeros(1), torch.ones(1)
    >>> Halved().combine(Gradient([w], [g_s], [0.05], 1.0), [w], [g_s], Memory(), None)
    >>> g_s
    tensor([0.5000])
    """

    def combine(
        self, first: Gradient, params: Tensors, second: Tensors, memory: Memory, generator: Draws
    ) -> Any:
        """Turn ``second`` (the tensors in ``p.grad``) into ``d``, in place.

        ``first.values`` and ``second`` both carry the factor ``first.scale``. What is returned
        reaches ``after_base_step`` of the same part.
        """
        raise TypeError(
            f"{type(self).__name__} must define combine(first, params, second, memory, generator)"
        )


@dataclass(frozen=True)
class Replace(Combine):
    """SAM's: ``d = g_s`` (Eq. 2; Algorithm 1, line 7).

    >>> Replace().needs_first_gradient
    False
    """

    @on_device
    def combine(
        self, first: Gradient, params: Tensors, second: Tensors, memory: Memory, generator: Draws
    ) -> None:
        return None


@dataclass(frozen=True)
class Mix(Combine):
    """``d = (1−α) g + α g_s``: the gradient norm penalised (Zhao et al. 2022).

    A tensor without a second gradient has none in ``d``; one without a first counts it as zero.

    Args:
        alpha: weight ``α`` of the second gradient, any finite number, 0.8 by default; 1 is
            :class:`Replace`.

    >>> w, g, g_s = torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> first = Gradient([w], [g], radii=[0.05], norm=1.0)
    >>> Mix(alpha=0.8).combine(first, [w], [g_s], Memory(), None)
    >>> g_s
    tensor([0.2000, 0.8000])
    """

    alpha: float = 0.8
    needs_first_gradient = True

    def __post_init__(self) -> None:
        self._keep(alpha=checks.finite("alpha", self.alpha))

    @on_device
    def combine(
        self, first: Gradient, params: Tensors, second: Tensors, memory: Memory, generator: Draws
    ) -> None:
        both, g, g_s = _in_both(first, params, second)
        pieces.interpolate(g_s, g, 1.0 - self.alpha)
        tensors.scale(_without(both, params, second), self.alpha)


@dataclass(frozen=True)
class SurrogateGap(Combine):
    """GSAM's: ``d = g_s − α g_⊥``, with ``g_⊥`` what of ``g`` is orthogonal to ``g_s``.

    ``g_⊥ = g − (g·g_s / ‖g_s‖²) g_s``: against it the loss at ``w + ε`` stays, and what it is above
    the loss at ``w`` (the surrogate gap) falls. Products are global, and ``g_⊥ = g`` where ``g_s``
    is zero. A tensor without a second gradient has none in ``d``; one without a first counts it as
    zero.

    Args:
        alpha: weight ``α`` of ``g_⊥``, any finite number, 0.1 by default; 0 is :class:`Replace`.

    >>> w, g, g_s = torch.zeros(2), torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0])
    >>> first = Gradient([w], [g], radii=[0.05], norm=2**0.5)
    >>> SurrogateGap(alpha=0.5).combine(first, [w], [g_s], Memory(), None)
    >>> g_s
    tensor([ 2.0000, -0.5000])
    """

    alpha: float = 0.1
    needs_first_gradient = True

    def __post_init__(self) -> None:
        self._keep(alpha=checks.finite("alpha", self.alpha))

    @on_device
    def combine(
        self, first: Gradient, params: Tensors, second: Tensors, memory: Memory, generator: Draws
    ) -> None:
        both, g, g_s = _in_both(first, params, second)
        length = first.length
        if not both or (not isinstance(length, Tensor) and length == 0.0):
            return
        unit = to_unit_length(length)
        along = pieces.dot(g, g_s, unit, both, first.workspace)
        norm = tensors.norm(second, params)
        cosine = along.to(norm) / (norm * (unit * length))
        share = cosine * length / norm  # g·g_s / ‖g_s‖²
        usable = (norm > 0.0) & torch.as_tensor(length > 0.0, device=norm.device)
        own = 1.0 + self.alpha * torch.where(usable, share, torch.zeros_like(share))
        pieces.mix(g_s, g, own, -self.alpha)
        tensors.scale(_without(both, params, second), own)


@dataclass(frozen=True)
class _Rest:
    """What WSAM has still to apply after the base's update, and which strokes of it are done."""

    params: Tensors
    values: Tensors  # the rest of each
    factor: float
    workspace: Workspace
    done: list[object] = field(default_factory=list[object])
    returned: list[object] = field(default_factory=list[object])

    def give_back(self) -> None:
        """Let go of the buffers, once: given back twice, they would be lent to two."""
        if not self.returned:
            self.returned.append(self.values)  # first
            self.workspace.give(self.params, self.values)


@dataclass(frozen=True)
class WeightedSharpness(Combine):
    """WSAM's: the base steps along ``g``, and the sharpness is applied after it, decoupled.

    ``d = g``, then ``w ← w − lr · γ/(1−γ) · (g_s − g)`` with the learning rate of the parameter's
    group: neither momentum nor preconditioning of the base touch it, nor does ``max_norm``. After
    an interrupt a step that the base has taken has this too.

    A tensor without a second gradient has no part in either; one without a first counts it as zero.

    Args:
        gamma: weight ``γ`` of the sharpness, from 0, which is the base alone, and below 1; 0.9 by
            default, and 1/2 weighs both as SAM does.

    >>> w, g, g_s = torch.zeros(1), torch.tensor([1.0]), torch.tensor([4.0])
    >>> weighted = WeightedSharpness(gamma=0.5)
    >>> rest = weighted.combine(Gradient([w], [g], [0.05], 1.0), [w], [g_s], Memory(), None)
    >>> weighted.after_base_step(torch.optim.SGD([w], lr=0.1), rest)
    >>> g_s, w
    (tensor([1.]), tensor([-0.3000]))
    """

    gamma: float = 0.9
    needs_first_gradient = True

    def __post_init__(self) -> None:
        self._keep(gamma=checks.share_below_one("gamma", self.gamma))

    @on_device
    def combine(
        self, first: Gradient, params: Tensors, second: Tensors, memory: Memory, generator: Draws
    ) -> _Rest:
        both, g, _ = _in_both(first, params, second)
        if len(both) < len(params):
            known = dict(zip(map(id, both), g, strict=True))
            zeros = [torch.zeros_like(s) for s in tensors.local(second)]
            g = [known.get(id(p), zero) for p, zero in zip(params, zeros, strict=True)]
        rest = first.workspace.take(params, second)
        pieces.set_apart(rest, second, g)
        factor = self.gamma / (1.0 - self.gamma) / first.scale
        return _Rest(params, rest, factor, first.workspace)

    def after_base_step(self, base: torch.optim.Optimizer, carried: Any) -> None:
        if not isinstance(carried, _Rest):
            return
        rows = {id(p): i for i, p in enumerate(carried.params)}
        for group in base.param_groups[len(carried.done) :]:
            keys = dict.fromkeys(map(id, group["params"]))
            chosen = [rows[key] for key in keys if key in rows]
            moved, applied = (
                [each[i] for i in chosen] for each in (carried.params, carried.values)
            )
            sign = 1.0 if group.get("maximize", False) else -1.0
            factor = sign * rate(group) * carried.factor
            # In one expression: Python lets no interrupt in between its call and its note.
            carried.done.append(tensors.add(moved, applied, factor))
        carried.give_back()


def _in_both(first: Gradient, params: Tensors, second: Tensors) -> tuple[Tensors, Tensors, Tensors]:
    """The parameters that have both gradients, and those, in the second's order."""
    if list(map(id, first.params)) == list(map(id, params)):
        return params, first.values, second
    known = dict(zip(map(id, first.params), first.values, strict=True))
    rows = [i for i, p in enumerate(params) if id(p) in known]
    both = [params[i] for i in rows]
    return both, [known[id(p)] for p in both], [second[i] for i in rows]


def _without(both: Tensors, params: Tensors, second: Tensors) -> Tensors:
    """The second gradients of the parameters that have no first."""
    if len(both) == len(params):
        return []
    known = set(map(id, both))
    return [s for p, s in zip(params, second, strict=True) if id(p) not in known]
