"""What went wrong in words, for everything that is no mistake in the program."""

from aesam.lab.errors import ProcessDied, UsageError
from aesam.lab.files import DiskError

#: How torch says that there is no more memory, where it has no class for it.
_NO_MEMORY = ("not enough memory", "out of memory", "allocate memory", "Storage size calculation")


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
