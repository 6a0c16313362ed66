"""A second pass that Lightning does not notice: what it logs, counts or keeps is forgotten."""

# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# Lightning may be absent: what is read of its trainers and modules is not typed here.

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from aesam._core import tensors
from aesam._core.guards import Buffers

#: The names under which Lightning is installed; with both, they share nothing.
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
HOOKS = (
    "on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step",
)  # fmt: skip
_LARGE = 1 << 20  # numbers in a tensor; above it, looked at and not copied


def package_of(module: object) -> Any:
    """The package of Lightning whose module or trainer this is, or None."""
    for name in PACKAGES:
        package: Any = sys.modules.get(name)
        known = hasattr(package, "Trainer")  # is loaded, and no longer being so
        if known and isinstance(module, (package.LightningModule, package.Trainer)):
            return package
    return None


def module_behind(closure: object) -> Any:
    """The LightningModule on whose behalf this closure is called, or None."""
    if isinstance(closure, partial) and getattr(closure.func, "__name__", "") == "_wrap_closure":
        module = closure.args[0] if closure.args else None
    elif type(closure).__module__.startswith(PACKAGES):  # its `Closure`, in an `optimizer_step`
        of_loop = getattr(getattr(closure, "_step_fn", None), "func", None)
        trainer = getattr(getattr(of_loop, "__self__", None), "trainer", None)
        module = getattr(trainer, "lightning_module", None)
    else:
        return None
    return None if package_of(module) is None else module


def takes_no_step(closure: object, loss: object, has_gradients: bool) -> bool:
    """Whether Lightning meant this closure to make no gradient.

    ``training_step`` returned None, which is for "skip this batch", or Lightning runs through the
    data for statistics alone, as its weight averaging does at the end.
    """
    module = module_behind(closure)
    if module is None or not module.automatic_optimization:
        return False
    loop = module.trainer.fit_loop.epoch_loop.automatic_optimization
    return loop._skip_backward or (loss is None and not has_gradients)


@contextmanager
def unnoticed(module: Any) -> Generator[None]:
    """Nothing that the block logs, counts or keeps in this LightningModule outlasts it.

    ``self.log`` and the loggers hear nothing, hooks of the module and of callbacks are not called;
    metrics, buffers and the module's own attributes are put back.
    """
    trainer, package = module.trainer, package_of(module)
    metrics = [Attributes(metric) for metric in _metrics_of(module)]
    attributes = Attributes(module, leave=_names_in_any(package), copied_below=_LARGE)
    buffers = Buffers(module)
    loop, connector = trainer.fit_loop.epoch_loop, trainer._logger_connector
    hook, results, last = module._current_fx_name, loop._results, connector._current_fx
    loggers = trainer.loggers
    unmute = _mute(HOOKS, [module, *trainer.callbacks])
    try:
        loop._results = _Unheard()
        trainer.loggers = [package.loggers.logger.DummyLogger() for _ in loggers]
        module._current_fx_name = "training_step"  # which says how `self.log` may be called
        yield
    finally:
        module._current_fx_name, loop._results, connector._current_fx = hook, results, last
        trainer.loggers = loggers
        unmute()
        buffers.restore()
        for kept in (attributes, *metrics):
            kept.restore()
    if changed := attributes.written():
        raise RuntimeError(
            f"training_step writes in place to self.{changed[0]}, a large tensor that is no "
            "buffer, so that the second pass would change it again: register it with "
            "self.register_buffer(...)"
        )


def unnoticed_by_caller(closure: object) -> AbstractContextManager[None]:
    """The same for a closure that Lightning hands to ``step``; nothing for anyone else's."""
    module = module_behind(closure)
    return nullcontext() if module is None else unnoticed(module)


class _Unheard:
    """In the place of a loop's results: takes what is logged and forgets it."""

    def log(self, *_: Any, **__: Any) -> None: ...

    def reset(self, *_: Any, **__: Any) -> None: ...


def _mute(hooks: Iterable[str], listeners: Iterable[object]) -> Callable[[], None]:
    """Lightning skips a hook that cannot be called; gives a function that brings them back."""
    before = [(own := vars(one), {h: own[h] for h in hooks if h in own}) for one in listeners]
    for own, _ in before:
        own.update(dict.fromkeys(hooks))

    def unmute() -> None:
        for own, overridden in before:
            for name in hooks:
                own.pop(name, None)
            own.update(overridden)

    return unmute


@lru_cache
def _names_in_any(package: Any) -> frozenset[str]:
    """The attributes that every LightningModule has, which are Lightning's own affair."""
    return frozenset(vars(package.LightningModule()))


def _metrics_of(module: nn.Module) -> list[Any]:
    """Torchmetrics of a module: its submodules, and those in its plain lists and dicts."""
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None:
        return []
    found = list(module.modules())
    for value in vars(module).values():
        inside = value.values() if isinstance(value, dict) else value
        if isinstance(value, list | tuple | dict):
            found += [m for one in inside if isinstance(one, nn.Module) for m in one.modules()]
    return [m for m in dict.fromkeys(found) if isinstance(m, torchmetrics.Metric)]


class Attributes:
    """What the attributes of an object are, and what the lists and tensors among them hold."""

    def __init__(
        self, owner: object, leave: frozenset[str] = frozenset(), copied_below: float = float("inf")
    ) -> None:
        self._own = vars(owner)
        self._leave = leave
        self._named = {k: v for k, v in self._own.items() if k not in leave}
        values = {id(v): v for v in self._named.values()}.values()
        self._contents = [(v, v.copy()) for v in values if isinstance(v, list | dict | set | deque)]
        # An expanded tensor has fewer numbers than elements: nothing writes to it in place.
        found = {
            name: t
            for name, t in self._named.items()
            if isinstance(t, Tensor) and not t.is_inference() and 0 not in t.stride()
        }
        self._tensors = [t for t in found.values() if t.numel() <= copied_below]
        self._copies = [t.detach().clone() for t in self._tensors]
        self._versions = {k: t._version for k, t in found.items() if t.numel() > copied_below}

    def restore(self) -> None:
        for name in [k for k in self._own if k not in self._leave and k not in self._named]:
            del self._own[name]
        self._own.update(self._named)
        for held, content in self._contents:
            held.clear()
            held.extend(content) if isinstance(held, list | deque) else held.update(content)
        with torch.no_grad():
            tensors.assign(self._tensors, self._copies)

    def written(self) -> list[str]:
        """The tensors too large to be copied that were written to all the same."""
        return [k for k, version in self._versions.items() if self._named[k]._version != version]
