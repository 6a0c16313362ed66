"""Training that ends after a share of its epochs, with a schedule of its own over these."""

from aesam.lab.companions.companion import Companion
from aesam.parts import checks


def shortened(length: float, epochs: int) -> int:
    """So many epochs times a length, at least one.

    >>> shortened(0.125, 60), shortened(0.125, 3)
    (8, 1)
    """
    return max(1, round(length * epochs))


class EarlyEnd(Companion):
    """ERM, stopped early: the training has a share of its epochs, and the rest is left out.

    It is a whole training over fewer epochs, not one that is cut off: the learning rate falls to
    its end within them.

    Args:
        length: the share, above 0 and at most 1.

    >>> EarlyEnd(length=0.125).epochs(60)
    8
    """

    ends_early = True

    def __init__(self, *, length: float) -> None:
        self._length = checks.share("length", length)

    def epochs(self, whole: int) -> int:
        return shortened(self._length, whole)
