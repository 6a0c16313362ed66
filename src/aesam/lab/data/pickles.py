"""Reads the one kind of pickle that CIFAR's python form is, and runs nothing that is in it.

A pickle is a small program that may call anything. Here each name that it can call stands for a
harmless class of this file, not even numpy is called, and every other name is refused.
"""

import pickle
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from aesam.lab.errors import UsageError


def read(path: Path, remedy: str) -> dict[str, object]:
    """The dictionary in the file, with its arrays as uint8 tensors and its keys as text.

    ``remedy`` ends every error message: what to do about a bad file.
    """
    try:
        with path.open("rb") as file:
            found = _Reader(file, encoding="bytes").load()
    except _Refused as refused:
        raise UsageError(
            f"{path} is no CIFAR batch: it asks to call {refused}, which was not done. {remedy}"
        ) from None
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can fail in every way there is
        raise UsageError(f"{path} is damaged or cut short ({error}). {remedy}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} is no CIFAR batch: it holds no dictionary. {remedy}")
    entries = cast(dict[object, object], found)
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): (
            value.tensor if isinstance(value, _Array) else value
        )
        for key, value in entries.items()
    }


class _Refused(pickle.UnpicklingError):
    """The pickle asked for a name that no CIFAR batch needs."""


class _StandIn:
    """A class that a pickle may call.

    Having ``__setstate__`` matters: without it a pickle could set attributes of the class itself.
    """

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError(f"unexpected state for {type(self).__name__}")


class _Kind(_StandIn):
    """For ``numpy.dtype``."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: of no meaning for single bytes."""


class _Array(_StandIn):
    """For ``numpy.ndarray``, made empty and then handed its content as ``__setstate__``."""

    def __init__(self, *_: object) -> None:
        self.tensor = torch.empty(0, dtype=torch.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self.tensor = _tensor(raw, kind, shape, bool(fortran))


class _Buffer(_StandIn):
    """For ``numpy.core.numeric._frombuffer``, the way of newer pickles."""

    def __new__(cls, raw: Any, kind: Any, shape: Any, order: str) -> Any:
        array = _Array()
        array.tensor = _tensor(raw, kind, shape, order == "F")
        return array


class _Latin1(_StandIn):
    """For ``_codecs.encode``, by which old pickles of Python 3 write bytes."""

    def __new__(cls, text: str, encoding: str = "latin1") -> Any:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"unexpected encoding {encoding!r}")
        return text.encode("latin1")


def _tensor(raw: Any, kind: Any, shape: Any, fortran: bool) -> Tensor:
    if not isinstance(kind, _Kind) or kind.code not in {"u1", "|u1"}:
        raise pickle.UnpicklingError("an array that is not of unsigned bytes")
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    if fortran:
        return flat.reshape(tuple(reversed(shape))).permute(*reversed(range(len(shape))))
    return flat.reshape(shape)


_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Kind,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _Buffer,
    ("numpy._core.numeric", "_frombuffer"): _Buffer,
    ("_codecs", "encode"): _Latin1,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise _Refused(f"{module_name}.{global_name}") from None
