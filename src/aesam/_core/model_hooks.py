"""Hooks on a model's forwards that hold nobody: neither the optimizer nor what it listens with."""

# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn


class Listener(Protocol):
    """What is told of every forward of a model; ``after`` may put another output in its place."""

    def before(self, model: nn.Module, args: Any, kwargs: Any, /) -> None: ...

    def after(self, output: Any, /) -> Any: ...


def listen(model: nn.Module, listener: Listener) -> None:
    """Tell ``listener`` of the model's forwards, also those that fail, as long as it lives."""
    before, after = _Before(listener), _After(listener)
    for handle in (
        model.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
        model.register_forward_hook(after, always_call=True),
    ):
        weakref.finalize(listener, handle.remove)


class _Hook:
    """What the model holds: a copy or a pickle of it tells nobody, nor does a dead optimizer's."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener: Callable[[], Listener | None] = (
            _nobody if listener is None else weakref.ref(listener)
        )
        self.__name__ = type(self).__name__  # torch.jit.script calls a model's hooks by name

    def __reduce__(self) -> Any:
        return type(self), ()


class _Before(_Hook):
    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        listener = self._listener()
        if listener is not None and not torch.jit.is_tracing():
            _outside_of_graphs(listener.before)(model, args, kwargs)


class _After(_Hook):
    def __call__(self, _model: nn.Module, _args: Any, output: Any) -> Any:
        listener = self._listener()
        if listener is None or torch.jit.is_tracing():
            return None
        return _outside_of_graphs(listener.after)(output)


def _outside_of_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler must not take what is noted of one forward for a constant of all."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def _nobody() -> None:
    return None
