"""Whether second gradients do anything: what steps that took one saw, and a sentence about it."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from torch import Tensor

KEPT = 100  # steps that the means are over: what holds now, not what held at the start
ENOUGH = 20  # steps before anything is called wrong
OFTEN = 64  # second gradients from one look at the angle to the next, once training is under way

TOO_LITTLE = 1e-3  # relative rise of the loss at w + ε below which the second gradient is the first
TOO_ALIKE = 1.0 - 1e-5  # cosine of both gradients, in its place where the losses are not seen
TOO_MUCH = 2.0  # relative rise above which w + ε is in another landscape


@dataclass(frozen=True)
class Health:
    """What the last steps with a second gradient saw; None where nothing was seen.

    Args:
        rise: of the loss from ``w`` to ``w + ε``, as a share of it; seen by ``step(closure)``, and
            where a loop tells both losses.
        cosine: of the angle between ``g`` (or the ascent's direction, where that is another) and
            ``g_s``, on some steps.
        bend: ``‖g_v‖/‖g‖``, the length of what is new in ``g_s``, on the same steps.
        share: of the steps that took a second gradient, 0…1.
        seconds: that a second pass takes, as the host sees it.
        time_share: of second passes in the time since the first step, 0…1.

    >>> print(Health(rise=1e-4, cosine=0.9, bend=0.4, share=1.0, seconds=0.01, time_share=0.5))
    the loss rises by 0.01 % at w + ε: ρ is too small to change anything
    """

    rise: float | None
    cosine: float | None
    bend: float | None
    share: float
    seconds: float | None
    time_share: float | None

    @property
    def verdict(self) -> str:
        """All of it in a sentence, which is also what it prints as."""
        return _verdict(self.rise, self.cosine, self.seconds is not None)

    def __str__(self) -> str:
        return self.verdict


@dataclass
class Sighting:
    """What one second pass sees; numbers stay on the device until they are fetched with others."""

    loss_at_w: Tensor | None = None
    loss_away: Tensor | None = None
    product: Tensor | None = None  # of ε and g_s
    length: Tensor | None = None  # of ε
    began: float = 0.0
    seconds: float = 0.0
    second: Tensor | None = None  # ‖g_s‖ where it was seen before a loop could clip it
    unscaled_by: float = 1.0  # what a loss scaler has taken from g_s since then

    def numbers(self) -> list[Tensor]:
        """Those to be fetched, in the order that :meth:`fetched` takes them."""
        return [n for n in self._asked() if n is not None]

    def fetched(self, numbers: list[float], first: float, second: float) -> "Seen":
        """What was seen, from these numbers and the norms of both gradients."""
        known = iter(numbers)
        at_w, away, product, length, own = (
            None if n is None else next(known) for n in self._asked()
        )
        rise = cosine = bend = None
        if at_w is not None and away is not None and at_w != 0.0:
            rise = (away - at_w) / abs(at_w)
        if own is not None and product is not None:
            product, second = product / self.unscaled_by, own / self.unscaled_by
        if product is not None and length is not None and length * first * second > 0.0:
            cosine = max(-1.0, min(1.0, product / (length * second)))
            bend = second * math.sqrt(1.0 - cosine * cosine) / first
        return Seen(rise, cosine, bend, self.seconds)

    def _asked(self) -> tuple[Tensor | None, ...]:
        return self.loss_at_w, self.loss_away, self.product, self.length, self.second


@dataclass(frozen=True)
class Seen:
    """The same in plain numbers."""

    rise: float | None
    cosine: float | None
    bend: float | None
    seconds: float


class Sightings:
    """Those of the last steps with a second gradient; not part of a checkpoint.

    ``count`` are the second gradients before: a training that goes on looks at the angle on the
    same steps as one that was never stopped.
    """

    def __init__(self, count: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seen: deque[Seen] = deque(maxlen=KEPT)
        self._angles: deque[Seen] = deque(maxlen=KEPT)
        self._began: float | None = None
        self._away = 0.0
        self._last = 0.0
        self._count = count
        self._is_new = False

    def begin(self, loss: Tensor | None) -> Sighting:
        """At the beginning of a second pass."""
        return Sighting(loss, began=self._clock())

    def end(self, sighting: Sighting) -> None:
        """At its end."""
        sighting.seconds = self._clock() - sighting.began

    @property
    def wants_angle(self) -> bool:
        """Whether the next one is worth two more operations: early and then now and then."""
        count = self._count + 1
        return count % OFTEN == 0 or (count < OFTEN and count.bit_count() == 1)

    def note(self, seen: Seen | None) -> None:
        """A step was taken, with what a second pass saw if there was one."""
        self._last = self._clock()
        self._began = self._last if self._began is None else self._began
        if seen is None:
            return
        self._count += 1
        self._is_new = True
        self._away += seen.seconds
        self._seen.append(seen)
        if seen.cosine is not None:
            self._angles.append(seen)

    def health(self, share: float) -> Health:
        """What they say together."""
        rises = [s.rise for s in self._seen if s.rise is not None and math.isfinite(s.rise)]
        rise = median(rises) if rises else None
        cosine = fmean(s.cosine or 0.0 for s in self._angles) if self._angles else None
        bend = fmean(s.bend or 0.0 for s in self._angles) if self._angles else None
        seconds = fmean(s.seconds for s in self._seen) if self._seen else None
        whole = self._last - self._began if self._began is not None else 0.0
        return Health(
            rise=rise,
            cosine=cosine,
            bend=bend,
            share=share,
            seconds=seconds,
            time_share=min(1.0, self._away / whole) if whole > 0.0 else None,
        )

    def what_is_wrong(self) -> str | None:
        """A sentence where it is plain, once enough was seen; looked at now and then."""
        if self._count < ENOUGH or self._count % ENOUGH or not self._is_new:
            return None
        self._is_new = False
        rises = [s.rise for s in self._seen if s.rise is not None]
        if len(rises) >= ENOUGH and median(rises) < -TOO_LITTLE:
            return _verdict(median(rises), None, True)
        if len(rises) >= ENOUGH and abs(median(rises)) < TOO_LITTLE / 100.0:
            return _verdict(median(rises), None, True)
        return None


def _verdict(rise: float | None, cosine: float | None, seen: bool) -> str:
    if not seen:
        return "no second gradient was taken yet"
    if rise is not None:
        return _of_losses(rise, cosine)
    if cosine is None:
        return "second gradients were taken, and neither their losses nor their angles seen yet"
    if cosine > TOO_ALIKE:
        return (
            f"g and g_s are nearly the same (cosine {cosine:.6f}): ρ is too small to change "
            "anything"
        )
    if cosine < 0.0:
        return f"g and g_s point apart (cosine {cosine:.2f}): ρ is too large"
    return f"g and g_s differ (cosine {cosine:.3f}): the second gradient has something to say"


def _percent(share: float) -> str:
    """In two digits, and whole where it has more before the point: 1.1e+02 is nothing to read."""
    percent = 100.0 * share
    return f"{percent:.0f} %" if percent >= 99.5 else f"{percent:.2g} %"


def _of_losses(rise: float, cosine: float | None) -> str:
    percent = _percent(abs(rise))
    if rise < -TOO_LITTLE:
        return (
            f"the loss falls by {percent} at w + ε: the ascent descends. Look at the sign of the "
            "loss (maximize=True in the base where it is to grow), and whether both passes see the "
            "same batch"
        )
    if abs(rise) < TOO_LITTLE:
        way = "rises" if rise >= 0.0 else "falls"
        return f"the loss {way} by {percent} at w + ε: ρ is too small to change anything"
    if rise > TOO_MUCH:
        return f"the loss rises by {percent} at w + ε: ρ is very large; try a smaller one too"
    angle = "" if cosine is None else f", and g and g_s have a cosine of {cosine:.3f}"
    return f"the loss rises by {percent} at w + ε{angle}: the second gradient has something to say"
