"""Checks of what a user hands in; each error names the argument, its value and what is allowed.

Each takes the argument's ``name`` and its ``value``, and returns the value as a plain number.
"""

import math
from numbers import Integral, Real


def real(name: str, value: object, allowed: str, *, within: bool = True) -> float:
    """``value`` as a float, or an error that says that ``name`` must be what is ``allowed``.

    Args:
        name: what the user calls the argument.
        value: what was given for it.
        allowed: what it may be, in words.
        within: whether it is; a number that is not is a ValueError, anything else a TypeError.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {allowed}, got {value!r} of type {type(value).__name__}")
    if not within:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be {allowed}, got more than a float can hold") from None


def at_least_zero(name: str, value: object) -> float:
    """``value`` of ``name``, if it is finite and 0 or more."""
    number = real(name, value, "a finite number >= 0")
    return real(name, value, "a finite number >= 0", within=0.0 <= number < math.inf)


def positive(name: str, value: object) -> float:
    """``value`` of ``name``, if it is finite and above 0."""
    number = real(name, value, "a finite number > 0")
    return real(name, value, "a finite number > 0", within=0.0 < number < math.inf)


def finite(name: str, value: object) -> float:
    """``value`` of ``name``, if it is neither infinite nor NaN."""
    number = real(name, value, "a finite number")
    return real(name, value, "a finite number", within=math.isfinite(number))


def probability(name: str, value: object) -> float:
    """``value`` of ``name``, if it is from 0 to 1."""
    allowed = "a number between 0 and 1, both included"
    return real(name, value, allowed, within=0.0 <= real(name, value, allowed) <= 1.0)


def share(name: str, value: object) -> float:
    """``value`` of ``name``, if it is above 0 and at most 1."""
    allowed = "a number above 0 and at most 1"
    return real(name, value, allowed, within=0.0 < real(name, value, allowed) <= 1.0)


def share_below_one(name: str, value: object) -> float:
    """``value`` of ``name``, if it is 0 or more and below 1."""
    allowed = "a number from 0 and below 1"
    return real(name, value, allowed, within=0.0 <= real(name, value, allowed) < 1.0)


def decay(name: str, value: object) -> float:
    """``value`` of ``name``, if it is between 0 and 1 and neither of them."""
    allowed = "a number strictly between 0 and 1"
    return real(name, value, allowed, within=0.0 < real(name, value, allowed) < 1.0)


def whole(name: str, value: object, least: int) -> int:
    """``value`` of ``name``, if it is a whole number from ``least``."""
    allowed = f"a whole number >= {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be {allowed}, got {value!r} of type {type(value).__name__}")
    if int(value) < least:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    if int(value) >= 2**63:  # nothing can be counted so far
        shown = str(int(value)) if int(value) < 10**40 else "more than 40 digits"
        raise ValueError(f"{name} must be {allowed} and below 2**63, got {shown}")
    return int(value)


def whole_or_none(name: str, value: object, least: int) -> int | None:
    """``value`` of ``name``, if it is a whole number from ``least`` or left for later."""
    return None if value is None else whole(name, value, least)


def seed(name: str, value: object) -> int:
    """``value`` of ``name``, if a generator of torch can be seeded with it."""
    return whole(name, value, least=0)


def text(name: str, value: object, allowed: str) -> str:
    """``value`` of ``name``, if it is a word or more."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be {allowed}, got {value!r} of type {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return value


def flag(name: str, value: object) -> bool:
    """``value`` of ``name``, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(
            f"{name} must be True or False, got {value!r} of type {type(value).__name__}"
        )
    return value
