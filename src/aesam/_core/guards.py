"""What a second pass must not disturb: the weights, the model's buffers and the random state."""

import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor, nn

from aesam._core import tensors
from aesam._core.blocks import Block
from aesam._core.tensors import Workspace
from aesam.parts.part import Direction, Excursion


class Displacement(Excursion):
    """Keeps a copy of the weights that a direction moves: subtracting ε again would drift."""

    def __init__(
        self,
        direction: Direction,
        normalize: bool,
        model: nn.Module | None,
        workspace: Workspace,
        overwrite: bool = False,
    ) -> None:
        self._direction: Direction | None = direction
        self._params = direction.params
        self._normalize, self._overwrite = normalize, overwrite
        self._workspace = workspace
        self._sharded: list[Any] = []
        if model is not None and not tensors.are_plain(self._params):
            self._sharded = [m for m in model.modules() if hasattr(m, "reshard")]
        self._saved = workspace.take(self._params, self._params)
        with torch.no_grad():
            tensors.assign(self._saved, self._params)

    def move(self) -> None:
        direction, self._direction = self._direction, None  # lets go of the gradient
        if direction is None:
            return
        with torch.no_grad():
            if direction.fill is None:
                moved = direction.move(self._normalize, self._overwrite)
            else:
                moved = self._add_lent(direction, direction.fill)
        if moved:
            self._forget_copies()

    def _add_lent(self, direction: Direction, fill: Callable[[list[Tensor]], None]) -> bool:
        """Vectors that are needed once are made in buffers that others use too."""
        factors, params = direction.factors(self._normalize), direction.params
        if not any(factors):
            return False
        lent = self._workspace.take(params, params)
        fill(lent)
        tensors.add_each(params, lent, factors)
        self._workspace.give(params, lent)
        return True

    def along(self, gradients: Mapping[int, Tensor]) -> tuple[Tensor, Tensor] | None:
        """The product of the move with gradients, by their parameters' ids, and its length.

        Both are left on the device. Only right before :meth:`restore`: it needs no memory, since
        the weights are what it computes in.
        """
        both = zip(self._params, self._saved, strict=True)
        found = [(p, w, gradients[id(p)]) for p, w in both if id(p) in gradients]
        found = [(p, w, g) for p, w, g in found if not g.is_sparse]
        if not found:
            return None
        owners, homes, g = ([each[i] for each in found] for i in range(3))
        with torch.no_grad():
            moves = tensors.local(owners)
            tensors.add(moves, homes, -1.0)
            length = tensors.norm(moves, owners)
            return tensors.dot(moves, g, 1.0, scratch=moves, shards_of=owners), length

    def restore(self) -> None:
        """Bring the weights back; harmless if done already or cut short and done again."""
        with torch.no_grad():
            tensors.assign(self._params, self._saved)
        params, self._params, saved, self._saved = self._params, [], self._saved, []
        self._workspace.give(params, saved)
        self._forget_copies()

    def _forget_copies(self) -> None:
        """Copies of the weights from before the move must not be used: cast or gathered ones.

        An autocast region around both passes keeps the weights that it has cast; FSDP2 may keep
        those that it has gathered.
        """
        torch.clear_autocast_cache()
        for module in self._sharded:
            module.reshard()


class Buffers:
    """The modules' buffers as they are now: BatchNorm's statistics and counters, and all others.

    Restoring is exact, also where the forward pass puts a new tensor in a buffer's place; buffers
    keep their storage, so a compiled model is not compiled again.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._bound = [(m, dict(_buffers_of(m))) for m in modules if _buffers_of(m)]
        held = {id(t): t for _, names in self._bound for t in names.values() if t is not None}
        self._tensors = [t for t in held.values() if is_written_in_place(t)]
        self._copies = [t.detach().clone() for t in self._tensors]

    def restore(self) -> None:
        with torch.no_grad():
            tensors.assign(self._tensors, self._copies)
        for module, names in self._bound:
            now = _buffers_of(module)
            if list(map(id, now.values())) != list(map(id, names.values())):
                now.clear()
                now.update(names)


def _buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    return module._buffers  # pyright: ignore[reportPrivateUsage]  # the bindings, None included


def is_written_in_place(tensor: Tensor) -> bool:
    """Whether anything can write to a tensor that does not put another in its place.

    An expanded one has fewer numbers than elements; one of inference mode is closed outside it.
    """
    return (0 not in tensor.stride() or tensor.numel() <= 1) and not tensor.is_inference()


class RandomState:
    """The state of every generator that a forward pass may draw from.

    That is PyTorch's, on the CPU and on the model's devices, Python's and, where it is loaded,
    NumPy's; and ``seeds`` that a model keeps itself (see :func:`seeds_in`).
    """

    def __init__(self, devices: Iterable[torch.device], seeds: Sequence[Tensor] = ()) -> None:
        self.seeds = seeds
        self._seeds = [(tensors.version(seed), seed.detach().clone()) for seed in seeds]
        self._python = random.getstate()
        self._numpy = _numpy_random().get_state() if _numpy_random() else None
        self._cpu = torch.get_rng_state()
        self.devices = [d for d in devices if d.type not in ("cpu", "meta")]
        self._devices = [(_setter(d), _getter(d)()) for d in self.devices]

    def restore(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            _numpy_random().set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        for put_back, state in self._devices:
            put_back(state)
        # One that nothing was drawn from is let be: it would seem written by the pass.
        drawn = [
            (seed, then)
            for seed, (version, then) in zip(self.seeds, self._seeds, strict=True)
            if tensors.version(seed) != version
        ]
        with torch.no_grad():
            tensors.assign([seed for seed, _ in drawn], [then for _, then in drawn])


#: Only together do they tell how deep the blocks of mixed precision are.
_DEEPER_AND_BACK = (torch.autocast_increment_nesting, torch.autocast_decrement_nesting)


class Autocast:
    """Mixed precision as it is now, for some kinds of device.

    To be entered again, or put back: a block of it that an interrupt left would go on for ever.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in sorted(kinds)
        ]
        self._cached = torch.is_autocast_cache_enabled()
        # Both in one go of C: an interrupt in between would leave it too deep for good, and weights
        # that were cast once would be used for ever.
        _, self._depth = map(methodcaller("__call__"), _DEEPER_AND_BACK)

    @property
    def is_enabled(self) -> bool:
        return any(enabled for _, enabled, _ in self._kinds)

    def contexts(self) -> list[torch.autocast]:
        return [
            torch.autocast(kind, dtype, enabled=enabled, cache_enabled=self._cached)
            for kind, enabled, dtype in self._kinds
        ]

    def restore(self) -> None:
        while torch.autocast_increment_nesting() - 1 > self._depth:
            torch.autocast_decrement_nesting()
            torch.autocast_decrement_nesting()
        torch.autocast_decrement_nesting()
        for kind, enabled, dtype in self._kinds:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self._cached)


def seeds_in(model: nn.Module | None) -> list[Tensor]:
    """The random states of Keras's layers, two numbers each: a dropout that was given a seed."""
    layer_kind = getattr(sys.modules.get("keras"), "Layer", None)
    if model is None or not isinstance(layer_kind, type):
        return []
    layers: list[Any] = [m for m in model.modules() if isinstance(m, layer_kind)]
    variables = [v for layer in layers for v in layer.variables]
    found = [v.value for v in variables if v.name == "seed_generator_state"]
    return list({id(seed): seed for seed in found}.values())


def _numpy_random() -> Any:
    numpy = sys.modules.get("numpy")
    return getattr(numpy, "random", None)


def _getter(device: torch.device) -> Callable[[], Tensor]:
    module = torch.get_device_module(device)
    return module.get_rng_state if device.type == "mps" else lambda: module.get_rng_state(device)


def _setter(device: torch.device) -> Callable[[Tensor], None]:
    module = torch.get_device_module(device)
    if device.type == "mps":
        return module.set_rng_state
    return lambda state: module.set_rng_state(state, device)


def replay_random(state: RandomState | None, block: Block | None) -> Callable[[], None]:
    """Draw again, within the block, what was drawn from ``state`` on; after it, as if not.

    Gives a function that winds back once more, for a pass of several forwards. Without a state
    the block draws fresh numbers; without a block what is drawn now is what was drawn.
    """
    if state is None:
        return lambda: None
    if block is not None:
        block.will(RandomState(state.devices, state.seeds).restore)
    state.restore()
    return state.restore
