"""Mistakes in what a user asked for, told without a traceback."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """The request cannot be carried out as it stands; the message says what to change."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """The error for a name that is none of ``known``, with the nearest ones first.

    >>> print(unknown("method", "ae-sma", ["erm", "sam", "ae-sam"]))
    unknown method 'ae-sma': did you mean ae-sam? Known are erm, sam, ae-sam
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(f"unknown {kind} {name!r}: {guess}Known are {', '.join(names)}")
