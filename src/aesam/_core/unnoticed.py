"""A second pass that Lightning does not notice: what it logs, counts or keeps is forgotten."""

# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# Lightning may be absent: what is read of its trainers and modules is not typed here.

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

from torch import nn

from aesam._core import tensors, trees
from aesam._core.bystanders import Attributes, Metrics, held_in
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


class Batch:
    """The batch for which Lightning calls a closure: the second pass must see it as it was."""

    def __init__(self, closure: object) -> None:
        self._given: Any = None
        if module_behind(closure) is not None:
            inner = closure.args[-1] if isinstance(closure, partial) else closure
            self._given = getattr(getattr(inner, "_step_fn", None), "args", None)
        self._before = self._stamps()

    def _stamps(self) -> list[tuple[int, int]]:
        return [(id(t), tensors.version(t)) for t in trees.tensors_in(self._given)]

    def refuse_changed(self) -> None:
        """Raise where ``training_step`` wrote to the batch, or took something out of it."""
        if self._stamps() != self._before:
            raise RuntimeError(
                "training_step changes its batch, so a second pass would see another: work on a "
                "copy, or add callbacks=[aesam.integrations.lightning.SharpnessAwareCallback()]"
            )


@contextmanager
def unnoticed(module: Any) -> Generator[None]:
    """Nothing that the block logs, counts or keeps in this LightningModule outlasts it.

    ``self.log`` and the loggers hear nothing, hooks of the module and of callbacks are not called;
    metrics, buffers and the module's own attributes are put back.
    """
    trainer, package = module.trainer, package_of(module)
    attributes = Attributes(module, leave=_names_in_any(package), largest=_LARGE)
    kept = (Buffers(module.modules()), attributes, Metrics(_modules_of(module)))
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
        for guarded in kept:
            guarded.restore()
    if changed := attributes.lost():
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


def _modules_of(module: nn.Module) -> list[nn.Module]:
    """A module's submodules, and those in its plain collections, which torch does not see."""
    found = [one for one in held_in(vars(module).values()) if isinstance(one, nn.Module)]
    return list(dict.fromkeys(m for one in (module, *found) for m in one.modules()))
