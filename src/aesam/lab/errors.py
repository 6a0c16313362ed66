"""What can go wrong without a mistake in the program, told in words and without a traceback."""

from collections.abc import Iterable

from aesam.registry import did_you_mean

#: How torch says that there is no more memory, where it has no class for it.
_NO_MEMORY = ("not enough memory", "out of memory", "allocate memory", "Storage size calculation")


class UsageError(ValueError):
    """The request cannot be carried out as it stands; the message says what to change."""


class DiskError(OSError):
    """A file could not be written or read; what was there before is untouched."""


class ProcessDied(RuntimeError):
    """A process that a run needs is gone; the message says what it was at and how to go on."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """The error for a name that is none of ``known``, with the nearest ones first.

    >>> print(unknown("method", "ae-sma", ["erm", "sam", "ae-sam"]))
    unknown method 'ae-sma': did you mean ae-sam? Known are erm, sam, ae-sam
    """
    return UsageError(f"unknown {kind} {name!r}: {did_you_mean(name, known)}")


def in_words(error: BaseException) -> str | None:
    """The sentence to tell, or None where only a traceback can help.

    >>> in_words(FileNotFoundError(2, "No such file or directory", "there"))
    "No such file or directory: 'there'"
    >>> in_words(ProcessDied("a process that decodes images was killed"))
    'a process that decodes images was killed'
    >>> in_words(KeyError("name"))
    """
    if isinstance(error, UsageError | ProcessDied):
        return str(error)
    if isinstance(error, DiskError):
        return error.strerror or str(error)
    if isinstance(error, OSError):
        return _of_the_system(error)
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
    ):
        first = str(error).strip().partition("\n")[0]
        return (
            f"out of memory{f' ({first})' if first else ''}: use a smaller model or batch_size, "
            "fewer jobs, or a larger machine"
        )
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
        return f"{error}: choose another path"  # pathlib's own, before Python 3.13
    return None


def _of_the_system(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return what
    return f"{what}: {error.filename!r}"
