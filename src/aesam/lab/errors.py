"""Mistakes in what a user asked for, told without a traceback."""

from collections.abc import Iterable

from aesam.registry import did_you_mean


class UsageError(ValueError):
    """The request cannot be carried out as it stands; the message says what to change."""


class ProcessDied(RuntimeError):
    """A process that a run needs is gone; the message says what it was at and how to go on."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """The error for a name that is none of ``known``, with the nearest ones first.

    >>> print(unknown("method", "ae-sma", ["erm", "sam", "ae-sam"]))
    unknown method 'ae-sma': did you mean ae-sam? Known are erm, sam, ae-sam
    """
    return UsageError(f"unknown {kind} {name!r}: {did_you_mean(name, known)}")
