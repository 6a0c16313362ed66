"""Checks of what a user hands in; each error names the argument, its value and what is allowed."""

import math
from numbers import Integral, Real


def real(name: str, value: object, allowed: str) -> float:
    """``value`` as a float, or a TypeError that says what ``name`` may be."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {allowed}, got {value!r} of type {type(value).__name__}")
    return float(value)


def at_least_zero(name: str, value: object) -> float:
    allowed = "a finite number >= 0"
    number = real(name, value, allowed)
    if not 0.0 <= number < math.inf:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return number


def positive(name: str, value: object) -> float:
    allowed = "a finite number > 0"
    number = real(name, value, allowed)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return number


def finite(name: str, value: object) -> float:
    allowed = "a finite number"
    number = real(name, value, allowed)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return number


def probability(name: str, value: object) -> float:
    allowed = "a number between 0 and 1, both included"
    number = real(name, value, allowed)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return number


def share(name: str, value: object) -> float:
    allowed = "a number above 0 and at most 1"
    number = real(name, value, allowed)
    if not 0.0 < number <= 1.0:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return number


def decay(name: str, value: object) -> float:
    allowed = "a number strictly between 0 and 1"
    number = real(name, value, allowed)
    if not 0.0 < number < 1.0:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return number


def whole(name: str, value: object, least: int) -> int:
    allowed = f"a whole number >= {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be {allowed}, got {value!r} of type {type(value).__name__}")
    if int(value) < least:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return int(value)


def seed(name: str, value: object) -> int:
    number = whole(name, value, least=0)
    if number >= 2**63:
        raise ValueError(f"{name} must be a whole number from 0 to 2**63 - 1, got {value!r}")
    return number


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(
            f"{name} must be True or False, got {value!r} of type {type(value).__name__}"
        )
    return value
