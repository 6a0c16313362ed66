"""An ascent by adapters of its own: beside those that a model descends with, in one backward."""

# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from aesam._core import tensors
from aesam._core.adapters import Adapter, squared_norms, trained_adapters, trained_beside
from aesam.parts import checks
from aesam.parts.part import Draws, Excursion, Gradient, Memory, Tensors, radius, rate
from aesam.parts.single_pass import BeforePass

NO_GRADIENT_BESIDE = """\
the adapter at {path} has a gradient and the ascent adapter beside it has none, so that it did not
come through the layer's own forward: call the layer, not its matrices, and make no gradients by
hand."""

ADAPTERS_REPLACED = """\
the adapter at {path} is not the one that the optimizer was made for: it was unloaded, replaced or
sharded since. Make the optimizer after the model is as it is trained; Bi-LoRA trains whole adapters
(DDP), not the shards of FSDP2."""

ADAPTER_ADDED = """\
the adapter at {path} is trained and was not when the optimizer was made, so that no ascent stands
beside it: it was added, or no longer frozen, since. Make the optimizer after the model is as it is
trained."""


@dataclass(frozen=True)
class AscentAdapters(BeforePass):
    """Bi-LoRA's (Liu et al. 2025): ``W₀ + s B₁A₁ + B₂A₂``; the base descends on the first pair.

    In a training forward ``B₂A₂`` is added to the weight of every layer that has a LoRA adapter,
    without the adapter's scaling ``s`` and without its dropout, so that ρ is a length of weights.
    The backward brings the gradients of both pairs. A step then does (Eq. 9 and 10)

    ``A₂ ← A₂ + η ∂L/∂A₂``, ``B₂ ← B₂ + η ∂L/∂B₂``, η = ``lr_ratio`` · lr of A₁'s and B₁'s group,

    plain ascent, without the base's momentum, preconditioning, weight decay or clipping; and where
    ``c = √(Σ ‖B₂A₂‖²)`` over all layers (Frobenius) exceeds ρ, all A₂ and B₂ are multiplied by
    ``√(ρ/c)``. Both have the shapes of A₁ and B₁, hence the adapter's rank. At the start A₂ is
    uniform within ``±1/√inputs``, as A₁ is, and B₂ zero.

    ρ is one number, the same in all groups of adapters; where it is 0, B₂ is. In a group that
    maximises, A₂ and B₂ descend. Of several processes the gradients are averaged, over the group
    of a model in DDP. Where they are not finite, A₂ and B₂ stay as they are.

    Args:
        model: the model, with LoRA adapters of PEFT on linear layers.
        lr_ratio: what the learning rate is multiplied by, 0 or more; 1 by default, as its authors
            have it.
        seed: of A₂ at the start, a whole number from 0, the default.

    >>> AscentAdapters(nn.Linear(2, 1), lr_ratio=10)
    AscentAdapters(lr_ratio=10.0, seed=0)
    """

    model: nn.Module | None = field(repr=False, compare=False)
    lr_ratio: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._keep(
            lr_ratio=checks.at_least_zero("lr_ratio", self.lr_ratio),
            seed=checks.seed("seed", self.seed),
        )

    @cached_property
    def adapters(self) -> list[Adapter]:
        """Those that it stands beside."""
        return trained_adapters(self.model)

    def seeds(self) -> dict[str, int]:
        return {}  # all is drawn at the start

    def check_model(self, model: nn.Module | None, base: torch.optim.Optimizer) -> None:
        held = {id(p) for group in base.param_groups for p in group["params"]}
        left = [a.path for a in self.adapters if not {id(a.down), id(a.up)} <= held]
        if left:
            raise ValueError(
                f"the optimizer does not have the adapter at {left[0]}, which is trained: give it "
                "all parameters of the model that require a gradient"
            )

    def start(self) -> Memory:
        draw = torch.Generator().manual_seed(self.seed)
        kept: dict[Tensor, Tensor] = {}
        for adapter in self.adapters:
            down = torch.empty(adapter.down.shape, dtype=torch.float64)
            bound = 1.0 / sqrt(down.shape[1])
            kept[adapter.down] = down.uniform_(-bound, bound, generator=draw).to(adapter.down)
            kept[adapter.up] = torch.zeros_like(adapter.up, requires_grad=False)
        return Memory({}, kept)

    def before_pass(
        self, base: torch.optim.Optimizer, memory: Memory, generator: Draws
    ) -> Excursion:
        self._refuse_changed()
        for p, kept in memory.tensors.items():
            _follow(p, kept)
        self._forget_cleared(memory)
        pairs = [(a, memory.tensors[a.down], memory.tensors[a.up]) for a in self.adapters]
        return _Branches(pairs)

    def _refuse_changed(self) -> None:
        """The model has the adapters that it had when the optimizer was made, and no others."""
        replaced = [a.path for a in self.adapters if not a.is_there]
        if replaced:
            raise RuntimeError(ADAPTERS_REPLACED.format(path=replaced[0]))
        added = "" if self.model is None else trained_beside(self.model, self.adapters)
        if added:
            raise RuntimeError(ADAPTER_ADDED.format(path=added))

    def _forget_cleared(self, memory: Memory) -> None:
        """What is left of gradients that were cleared without a step, by whoever it was."""
        left = [t for t in memory.tensors.values() if t.grad is not None]
        there = [p.grad for a in self.adapters for p in (a.down, a.up) if p.grad is not None]
        if not there:
            for t in left:
                t.grad = None
        elif left:  # zeroed in place, perhaps: on the device, since a look would wait for it
            grads = [t.grad for t in left if t.grad is not None]
            is_any = tensors.norm(there) != 0.0
            tensors.keep_where(is_any, grads, list(map(torch.zeros_like, grads)))

    def observe(self, gradient: Gradient, memory: Memory) -> Memory:
        of_group = dict(zip(map(id, gradient.params), gradient.groups, strict=True))
        owners = [p for a in self.adapters for p in (a.down, a.up)]
        if of_group.keys().isdisjoint(map(id, owners)):
            return memory
        self._refuse_unheard(of_group, memory)
        kept = [memory.tensors[p] for p in owners]
        found = [torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in kept]
        tensors.average_over_processes(found, getattr(self.model, "process_group", None))
        rates = {id(group): _uphill(group) for group in of_group.values()}
        share = self.lr_ratio / (gradient.scale * gradient.unscaled_by)
        factors = [share * rates.get(id(of_group.get(id(p))), 0.0) for p in owners]
        after = gradient.workspace.take(owners, kept)
        for t in after:  # it may have been one of these before
            t.grad = None
            t.requires_grad_(False)
        tensors.assign(after, kept)
        tensors.add_each(after, found, factors)
        _hold_within(self._rho(of_group), after[::2], after[1::2], kept)
        return Memory({}, dict(zip(owners, after, strict=True)))

    def norm_in(self, memory: Memory) -> float:
        """``‖B₂A₂‖`` over all layers, of what is remembered."""
        kept = memory.tensors
        pairs = [(kept[a.down].detach(), kept[a.up].detach()) for a in self.adapters]
        return float(_length(squared_norms(pairs)))

    def _refuse_unheard(self, of_group: Mapping[int, object], memory: Memory) -> None:
        """A process of several may be alone in not having used a layer, and that is no fault."""
        reached = [a for a in self.adapters if id(a.up) in of_group]
        unheard = [a.path for a in reached if memory.tensors[a.up].grad is None]
        if unheard and (len(unheard) == len(reached) or tensors.process_count() == 1):
            raise RuntimeError(NO_GRADIENT_BESIDE.format(path=unheard[0]))

    def _rho(self, of_group: Mapping[int, Mapping[str, Any]]) -> float:
        owners = [id(p) for a in self.adapters for p in (a.down, a.up)]
        groups = {id(g): g for i in owners if (g := of_group.get(i)) is not None}
        radii = sorted({abs(radius(dict(group), 0.0)) for group in groups.values()})
        if len(radii) > 1:
            raise ValueError(
                f"rho is {radii} in the parameter groups of the adapters: Bi-LoRA has one ball "
                "around all of them; give these groups the same rho"
            )
        return radii[0]


class _Branches(Excursion):
    """``y ← y + B (A x)`` at layers that have an adapter, from :meth:`move` to :meth:`restore`.

    No dropout and no scaling: ``B A`` is what is added to the layer's weight. Nothing stays in the
    model or in a copy of it, and an adapter that is off, inactive or merged has no branch.

    ``beside`` has the A and B of each adapter's branch, which take gradients.
    """

    is_in_weights = False

    def __init__(self, beside: Sequence[tuple[Adapter, Tensor, Tensor]]) -> None:
        self._beside = beside
        self._handles: list[Any] = []
        self._is_on = False

    def __reduce__(self) -> Any:
        return type(self), ((),)  # a copy of the model has the hooks, and they add nothing there

    def move(self) -> None:
        """Begin: the model's forwards are those at ``W + B A``."""
        self._is_on = True
        for adapter, down, up in self._beside:
            hook = partial(self._add, adapter, down, up)
            register = adapter.layer.register_forward_hook
            # In one expression: Python lets no interrupt in between its call and its note.
            self._handles.append(register(hook, with_kwargs=True))

    def restore(self) -> None:
        """End; harmless if done already, or cut short and done again."""
        self._is_on = False  # first: a hook that an interrupt let slip adds nothing
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _add(
        self,
        adapter: Adapter,
        down: Tensor,
        up: Tensor,
        _layer: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Tensor,
    ) -> Tensor | None:
        if not (self._is_on and adapter.acts):
            return None
        x: Tensor = args[0] if args else kwargs["x"]
        branch = functional.linear(functional.linear(x.to(down.dtype), down), up)
        return output + branch.to(output.dtype)


def _follow(param: Tensor, kept: Tensor) -> None:
    """A model that was moved or cast since takes what is remembered of it along."""
    if kept.device != param.device or kept.dtype != param.dtype:
        torch.utils.swap_tensors(kept, kept.detach().to(param))
    kept.requires_grad_()


def _uphill(group: Mapping[str, Any]) -> float:
    """The learning rate of a group, negative where it maximises."""
    return -rate(group) if group.get("maximize", False) else rate(group)


def _hold_within(rho: float, downs: Tensors, ups: Tensors, before: Tensors) -> None:
    """Shrink all pairs to ``√(Σ ‖B A‖²) ≤ ρ``; as ``before`` if that is no finite number."""
    length = _length(squared_norms(list(zip(downs, ups, strict=True))))
    both = [t for pair in zip(downs, ups, strict=True) for t in pair]
    if rho > 0.0:
        tensors.scale(both, (rho / length).clamp_max(1.0).sqrt())
    else:
        tensors.scale(ups, 0.0)
    tensors.keep_where(length.isfinite(), both, before)


def _length(squares: Tensors) -> Tensor:
    return torch.stack([s.to(squares[0]) for s in squares]).sum().sqrt()
