"""Each process's own gradient, kept as it arrives, before DDP averages it.

For ``local_ascent=True``: the ascent then goes along what this process's rows say (m-sharpness),
while everything else sees the average that is in ``p.grad``.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from aesam._core import messages, tensors
from aesam._core.blocks import Block
from aesam.parts.part import Gradient


class _Heard(NamedTuple):
    param: Tensor
    kind: object
    node: Any  # lives, and with it the hook, as long as somebody holds it
    hook: Any


class LocalGradients:
    """Sums what arrives at each parameter; as large as one more gradient until the ascent.

    A hook on the node that accumulates into ``p.grad`` runs once for each backward that reaches
    the parameter, before DDP's own and after all hooks on the parameter itself; it is not run by
    ``torch.autograd.grad``.
    """

    def __init__(self) -> None:
        self._heard: dict[int, _Heard] = {}
        self._arriving: dict[int, Tensor] = {}
        self._decided: dict[int, Tensor] = {}  # those of a decision whose ascent is still to come
        self._scale = 1.0  # the factor that these carry
        self._is_silent = False

    def listen_to(self, groups: Iterable[dict[str, Any]]) -> None:
        """Hear the gradients of all parameters in the groups, and of no others."""
        params = {id(p): p for group in groups for p in group["params"]}
        for key in [
            k for k, h in self._heard.items() if k not in params or not self.hears(h.param)
        ]:
            self._heard.pop(key).hook.remove()
        for key, p in params.items():
            if key not in self._heard and p.requires_grad and tensors.are_plain((p,)):
                node = get_gradient_edge(p).node
                hook = node.register_prehook(_keeper(self, key))
                self._heard[key] = _Heard(p, _kind(p), node, hook)

    def hears(self, p: Tensor) -> bool:
        """Whether a gradient of the parameter is kept; with its dtype its node changes too."""
        heard = self._heard.get(id(p))
        return heard is not None and heard.kind == _kind(p)

    def keep(self, key: int, arrived: Tensor) -> None:
        """Add what arrived for a parameter."""
        if self._is_silent or not _several_processes():
            return
        so_far = self._arriving.get(key)
        with torch.no_grad():
            # Nothing in p.grad is the beginning of a sum, also where others than we cleared it.
            if so_far is None or self._heard[key].param.grad is None:
                self._arriving[key] = arrived.detach().clone()
            elif so_far.is_sparse:
                self._arriving[key] = arrived.detach() + so_far
            else:
                so_far.add_(arrived.detach())

    def clear(self) -> None:
        """Begin a sum anew; what was decided on stays."""
        self._arriving = {}

    def silence(self, block: Block) -> None:
        """Keep nothing within the block: the second pass is followed by no ascent."""
        block.will(self._hear_again)
        self._is_silent = True

    def _hear_again(self) -> None:
        self._is_silent = False

    def decide(self, measured: Gradient) -> None:
        """Lay aside what belongs to the gradient that is decided on, or refuse it in words."""
        if not tensors.are_plain(measured.params):
            raise RuntimeError(messages.LOCAL_ASCENT_SHARDED)
        if not _several_processes():
            return
        own = self._arriving or self._decided  # decided on once more
        if not measured.params:
            return
        if not own or not all(map(self.hears, measured.params)):
            raise RuntimeError(messages.LOCAL_ASCENT_UNHEARD)
        if any(id(p) in own and own[id(p)].shape != p.shape for p in measured.params):
            raise RuntimeError(messages.LOCAL_ASCENT_SHARDED)
        self._decided, self._arriving, self._scale = own, {}, measured.scale

    def carry(self, scale: float) -> None:
        """Say that what was decided on had been unscaled meanwhile, and how it arrived."""
        self._scale = scale

    def forget(self) -> None:
        """No ascent comes of what was decided."""
        self._decided = {}

    def instead_of(self, measured: Gradient, each: bool) -> Gradient:
        """The gradient of this process with its own norm; the given one if there is no other.

        A parameter that only other processes use has a gradient of zero here.
        """
        own, self._decided = self._decided, {}
        if not own:
            return measured
        values = [own[id(p)] if id(p) in own else torch.zeros_like(p) for p in measured.params]
        scale = self._scale
        found = tensors.Measured(values, each, scale)
        return replace(measured, values=values, norm=found.norm, scale=scale, norms=found.norms)


def _keeper(local: LocalGradients, key: int) -> Callable[[tuple[Tensor, ...]], None]:
    held = weakref.ref(local)  # the node must not keep it alive

    def keep(arrived: tuple[Tensor, ...]) -> None:
        found = held()
        if found is not None:
            found.keep(key, arrived[0])

    return keep


def _kind(p: Tensor) -> object:
    return p.dtype, p.device


def _several_processes() -> bool:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return there and torch.distributed.get_world_size() > 1
