"""The values of one setting that a search tries: where they start, and how they widen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from aesam.parts import checks

#: Values whose ratio is smaller have none tried between them.
FINE = 1.5


@dataclass(frozen=True)
class Range:
    """A setting to search.

    Where all values are whole numbers, only whole numbers are tried.

    Args:
        name: what the setting is called.
        start: the values to try first, at least one.
        usual: its value while the settings before it are searched.
        least: its least possible value, or -∞, the default. A best value there is no edge.
        most: its largest possible value, or ∞, the default.
        is_open: whether the bounds themselves are not allowed; False by default.
        is_fine: whether values between the best, or what may be as good, and its neighbours are
            tried, too; False by default.

    >>> Range("k", (2, 5), usual=5, least=1).beyond([2, 5], up=True)
    10
    >>> Range("p", (0.5, 0.6), usual=0.5, least=0, most=1).beyond([0.5, 0.6], up=True)
    1.0
    """

    name: str
    start: tuple[float, ...]
    usual: float
    least: float = -math.inf
    most: float = math.inf
    is_open: bool = False
    is_fine: bool = False

    def __post_init__(self) -> None:
        if not self.start:
            raise ValueError(f"{self.name} must have at least one value to start from, got none")
        for value in (*self.start, self.usual):
            self._check(value)
        kind = int if self.is_whole else float
        object.__setattr__(self, "start", tuple(sorted({kind(v) for v in self.start})))
        object.__setattr__(self, "usual", kind(self.usual))

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are tried."""
        return all(isinstance(value, Integral) for value in (*self.start, self.usual))

    def _check(self, value: float) -> None:
        checks.finite(self.name, value)
        if isinstance(value, Integral):
            checks.whole(self.name, abs(value), 0)  # below 2**63, as all whole settings
        if not self.allows(value):
            least, most = ("above", "below") if self.is_open else ("at least", "at most")
            bounds = {f"{least} {self.least:g}": self.least, f"{most} {self.most:g}": self.most}
            said = " and ".join(words for words, at in bounds.items() if math.isfinite(at))
            raise ValueError(f"{self.name} must be {said}, got {value!r}")

    def allows(self, value: float) -> bool:
        """Whether a value is within the bounds."""
        return self.least <= value <= self.most and not (self.is_open and self.is_bound(value))

    def is_bound(self, value: float) -> bool:
        """Whether a value has, by its nature, nothing beyond it."""
        return value in (self.least, self.most)

    def beyond(self, values: Sequence[float], *, up: bool) -> float | None:
        """The next value outside of rising ``values``; None where there is none.

        Twice or half of the outermost one; its bound where that is passed, or half-way to a bound
        that is itself not allowed. From 0 it is as far as to the nearest other value.
        """
        edge, bound = (values[-1], self.most) if up else (values[0], self.least)
        away = _doubled(edge, values, up)
        if away > bound if up else away < bound:
            away = edge + (bound - edge) / 2 if self.is_open else bound
        if not math.isfinite(away):
            return None
        beyond = int(away) if self.is_whole else float(away)
        is_too_large = self.is_whole and abs(beyond) >= 2**63
        return None if is_too_large or beyond in values or not self.allows(beyond) else beyond

    def between(self, low: float, high: float) -> float | None:
        """The middle of two values by their ratio, in three digits.

        None where they are less than :data:`FINE` apart, have no ratio (0, or two signs), or where
        no whole number is between.
        """
        ends = sorted(map(abs, (low, high)))
        if low <= 0.0 <= high or ends[1] < FINE * ends[0]:
            return None
        middle = math.copysign(math.sqrt(ends[0]) * math.sqrt(ends[1]), low)
        middle = round(middle) if self.is_whole else float(f"{middle:.3g}")
        return middle if low < middle < high else None


def _doubled(edge: float, values: Sequence[float], up: bool) -> float:
    if edge == 0:
        step = min((abs(value) for value in values if value), default=1)
        return step if up else -step
    return edge * 2 if (edge > 0) == up else edge / 2
