"""Reads the one kind of pickle that CIFAR's python form is, and runs nothing that is in it.

A pickle is a small program that may call anything and ask for any memory. Here its instructions are
followed one by one, those alone that such a file needs: nothing is imported, the few names that it
may call are only looked at, and what it says of lengths and places is held against its own length.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from aesam.lab.errors import UsageError


def read(raw: bytes, path: Path, remedy: str) -> dict[str, object]:
    """The dictionary in the content of a file, its arrays as uint8 tensors and its keys as text.

    ``path`` is the file's, and ``remedy`` ends every error message: what to do about a bad file.
    """
    try:
        found = _Machine().run(raw)
    except _Refused as refused:
        raise UsageError(
            f"{path} is no CIFAR batch: it asks to {refused}, which was not done. {remedy}"
        ) from None
    except Exception as error:  # a damaged pickle can fail in every way there is
        raise UsageError(f"{path} is damaged or cut short ({error}). {remedy}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} is no CIFAR batch: it holds no dictionary. {remedy}")
    entries = cast(dict[str, object], found)
    return {k: v.tensor if isinstance(v, _Array) else v for k, v in entries.items()}


class _Refused(Exception):
    """The pickle asked for something that no CIFAR batch needs."""


@dataclass(frozen=True)
class _Name:
    """What a pickle may call, by its module and name; it stands for itself and does nothing."""

    of: str


@dataclass(frozen=True)
class _Kind:
    """For ``numpy.dtype``."""

    code: str


@dataclass
class _Array:
    """For ``numpy.ndarray``, made empty and then handed its content as its state."""

    tensor: Tensor | None = None


_DTYPE, _ENCODE = "numpy.dtype", "_codecs.encode"
_EMPTY = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
_BUFFER = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}
_KNOWN = {_DTYPE, _ENCODE, "numpy.ndarray", *_EMPTY, *_BUFFER}

#: Instructions that put a value of their own on the stack.
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_STORES = {"PUT", "BINPUT", "LONG_BINPUT"}
_RECALLS = {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING = {"PROTO", "FRAME", "STOP"}


class _Machine:
    """The stack and the memo that the instructions of a pickle work on."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._does: dict[str, Callable[[], None]] = {
            "MARK": lambda: self._marks.append(len(self._stack)),
            "TUPLE": lambda: self._stack.append(tuple(self._since_mark())),
            "LIST": lambda: self._stack.append(self._since_mark()),
            "DICT": lambda: self._stack.append(_pairs(self._since_mark())),
            "EMPTY_LIST": lambda: self._stack.append([]),
            "EMPTY_DICT": lambda: self._stack.append({}),
            "APPEND": lambda: self._append([self._stack.pop()]),
            "APPENDS": lambda: self._append(self._since_mark()),
            "SETITEM": lambda: self._set(self._top(2)),
            "SETITEMS": lambda: self._set(self._since_mark()),
            "MEMOIZE": lambda: self._store(len(self._memo)),
            "STACK_GLOBAL": lambda: self._push_name(*self._top(2)),
            "REDUCE": lambda: self._stack.append(_called(*self._top(2))),
            "BUILD": lambda: _build(self._stack[-2], self._stack.pop()),
        }

    def run(self, raw: bytes) -> object:
        """What is left when all instructions are followed."""
        for instruction, value, _ in pickletools.genops(raw):
            self._follow(instruction.name, value)
        return self._stack.pop()

    def _follow(self, name: str, value: Any) -> None:
        if name in _VALUES:
            self._stack.append(value)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _STORES:
            self._store(value)
        elif name in _RECALLS:
            self._stack.append(self._memo[value])
        elif name in _TUPLES:
            self._stack.append(tuple(self._top(_TUPLES[name])))
        elif name == "GLOBAL":
            self._push_name(*value.split(" ", 1))
        elif name in self._does:
            self._does[name]()
        elif name not in _NOTHING:
            raise _Refused(f"follow the instruction {name}")

    def _top(self, count: int) -> list[Any]:
        """The last so many values, taken off the stack."""
        start = len(self._stack) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise ValueError("an instruction lacks its values")
        return self._cut(start)

    def _since_mark(self) -> list[Any]:
        return self._cut(self._marks.pop())

    def _cut(self, start: int) -> list[Any]:
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

    def _store(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def _append(self, values: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError("values for what is no list")
        cast(list[Any], self._stack[-1]).extend(values)

    def _set(self, values: list[Any]) -> None:
        if not isinstance(self._stack[-1], dict):
            raise TypeError("entries for what is no dictionary")
        cast(dict[str, Any], self._stack[-1]).update(_pairs(values))

    def _push_name(self, module: Any, name: Any) -> None:
        asked = f"{_text(module)}.{_text(name)}"
        if asked not in _KNOWN:
            raise _Refused(f"call {asked}")
        self._stack.append(_Name(asked))


def _pairs(values: list[Any]) -> dict[str, Any]:
    return {_text(key): value for key, value in zip(values[::2], values[1::2], strict=True)}


def _text(value: Any) -> str:
    """Of the one kind or the other: Python 2 had only one."""
    if isinstance(value, bytes):
        return value.decode("latin1")
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text belongs")
    return value


def _called(name: Any, values: Any) -> Any:
    """What numpy would make of such a call."""
    if not isinstance(name, _Name) or not isinstance(values, tuple):
        raise TypeError("a call of what is no name")
    given = cast(tuple[Any, ...], values)
    if name.of == _DTYPE:
        return _Kind(_text(given[0]))
    if name.of in _EMPTY:
        return _Array()
    if name.of in _BUFFER:
        raw, kind, shape, order = given
        return _Array(_tensor(raw, kind, shape, order == "F"))
    if name.of == _ENCODE and given[1:] in ((), ("latin1",)):  # nothing deep is hashed
        return given[0].encode("latin1")
    raise ValueError(f"an odd call of {name.of}")


def _build(target: Any, state: Any) -> None:
    """Give an array its content; a kind's byte order is of no meaning for single bytes."""
    if isinstance(target, _Array):
        _, shape, kind, fortran, raw = state
        target.tensor = _tensor(raw, kind, shape, bool(fortran))
    elif not isinstance(target, _Kind):
        raise TypeError("a state for what has none")


def _tensor(raw: Any, kind: Any, shape: Any, fortran: bool) -> Tensor:
    if not isinstance(kind, _Kind) or kind.code not in {"u1", "|u1"}:
        raise ValueError("an array that is not of unsigned bytes")
    content = raw.encode("latin1") if isinstance(raw, str) else raw
    if not isinstance(content, bytes | bytearray):
        raise TypeError(f"{type(content).__name__} where an array's bytes belong")
    flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    if fortran:
        return flat.reshape(tuple(reversed(shape))).permute(*reversed(range(len(shape))))
    return flat.reshape(shape)
