"""Archives of torch.save with a seal: any change of the file is noticed before it is loaded.

torch.load does not look at the archive's checksums. The seal is the archive's comment, at the very
end of the file: a SHA-256 of all that stands before. So it cannot be out of step with what it
seals, and torch.load reads the file as any other.
"""

import hashlib
import io
import zipfile
from typing import Any

import torch

_MARK = b"aesam sha256 "
_DIGITS = hashlib.sha256().digest_size * 2
_LENGTH = len(_MARK) + _DIGITS


class Unsound(ValueError):
    """The bytes are not those that were saved; the message says how that was seen."""


def sealed(content: dict[str, Any]) -> bytes:
    """The content as the bytes of a file that :func:`opened` reads."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = _MARK + b"0" * _DIGITS
    whole = buffer.getvalue()[:-_DIGITS]
    return whole + _digest(whole)


def opened(saved: bytes) -> Any:
    """What was sealed, loaded without executing anything, after every byte was checked.

    An archive of before there were seals is checked by its own checksums.
    """
    if saved[-_LENGTH:-_DIGITS] == _MARK:
        if saved[-_DIGITS:] != _digest(saved[:-_DIGITS]):
            raise Unsound("its bytes are not those that were saved")
        return _loaded(saved)
    return _loaded(_from_checked_members(saved))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _loaded(archive: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a pickle of somebody else's can raise anything
        raise Unsound(f"torch cannot load it: {type(error).__name__}") from error


def _from_checked_members(saved: bytes) -> bytes:
    """The archive written anew from its members, each of which has its checksum.

    Nothing else of the file gets to torch, so that a change elsewhere cannot matter.
    """
    anew = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(anew, "w") as new:
            if old.comment or len(set(old.namelist())) < len(old.namelist()):
                raise Unsound("its seal is broken")
            for member in old.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise Unsound("it is compressed, as none of ours is")
                new.writestr(member.filename, old.read(member))
    except MemoryError:
        raise
    except Unsound:
        raise
    except Exception as error:  # zipfile raises anything of a damaged archive
        raise Unsound(f"it is not a whole archive: {error or type(error).__name__}") from error
    return anew.getvalue()
