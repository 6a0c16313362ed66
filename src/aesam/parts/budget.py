"""A cost that is set: a second gradient on a share of the steps, whatever the gradients do."""

import math
import sys
from dataclasses import dataclass, replace

from aesam.parts import checks
from aesam.parts.policies import Decision, Observation, Policy, State

#: How many second gradients the budget may be behind its allowance: room to wait for steps that
#: are worth it. From here on the next step takes one whatever it is.
MOST_SAVED = 9

#: Weight of the newest step in the running mean and spread: a memory of about twenty steps, so that
#: a trend of the norms over an epoch is followed, and is no surprise.
_NEWEST = 0.05

#: How far the quantile moves in a step, in spreads: about as fast as the mean, so that it has
#: settled after some tens of steps and follows where the shape of the distribution changes.
_QUANTILE_STEP = 0.1

#: At this much saved the quantile aims at the share itself: in the middle of 0 and ``MOST_SAVED``,
#: so that the bounds on either side are seldom what decides.
_USUALLY_SAVED = 4.0

#: The odds that it aims at grow e-fold with every so many saved: strong enough to come back from
#: the bounds in time, weak enough to leave the choice to the norms.
_SAVED_PER_E_FOLD = 2.0

#: One step counts as a surprise of at most e¹⁰ = 22,000-fold, so that a batch whose gradient is
#: exactly zero does not drown all others for long.
_LARGEST_SURPRISE = 10.0

#: The logarithms of all squared norms: zero and subnormal ones count as the smallest normal number.
_LOWEST, _HIGHEST = math.log(sys.float_info.min), math.log(sys.float_info.max)


@dataclass(frozen=True)
class Budget(Policy):
    r"""At most a share of all steps, on those with the largest ``‖g‖²`` for their time.

    After every step that is taken, with ``t`` the steps so far, ``share·t − 9 ≤ fired ≤ share·t``
    holds, whatever the distribution, trend or tails of the norms. Within these bounds the surprise
    ``r = log ‖g‖² − m``, with ``m`` a running mean, is held against an online quantile ``q``::

        saved = share·(t+1) − fired
        second gradient  ⇔  (r ≥ q and saved ≥ 1)  or  saved > 9
        q ← q + step·spread·([r ≥ q] − p)      p/(1−p) = share/(1−share)·exp((saved − 4)/2)

    so that ``q`` falls while much is saved and rises while little is. Nothing depends on the scale
    of the norms, and the length of the training need not be known. ``share=1`` is SAM, ``share=0``
    is ERM.

    Args:
        share: of the steps that take a second gradient, from 0 to 1.
        late: share of the training at whose start none is taken; what is saved is spent after it,
            at the rate ``share/(1−late)``, which must be at most 1. The same total, and the bounds
            hold against this schedule. From 0 to below 1, 0 by default. Needs ``total_steps``.
        total_steps: optimizer steps of the whole training, a whole number from 1; with ``late``
            only, where it must be given or filled in before the first decision. None by default.

    >>> budget, state, fired = Budget(0.2), Budget(0.2).start(), []
    >>> for t in range(100):
    ...     decision, state = budget.decide(Observation(t, squared_norm=1.0 + t % 7), state)
    ...     fired.append(decision.use_sam)
    >>> 20 - 9 <= sum(fired) <= 20
    True
    """

    share: float
    late: float = 0.0
    total_steps: int | None = None

    def __post_init__(self) -> None:
        late = checks.real("late", self.late, _LATE)
        self._keep(
            share=checks.probability("share", self.share),
            late=checks.real("late", self.late, _LATE, within=0.0 <= late < 1.0),
            total_steps=checks.whole_or_none("total_steps", self.total_steps, least=1),
        )
        if self.late == 0.0 and self.total_steps is not None:
            raise ValueError(
                f"total_steps={self.total_steps} has no meaning without late: a budget of a share "
                "need not know how long the training is. Leave it out, or give late above 0."
            )
        if self.share > (1.0 - self.late) * (1.0 + 1e-9):  # 0.2 and 0.8 make 1 within rounding
            raise ValueError(
                f"share={self.share} does not fit into what late={self.late} leaves of the "
                "training: share + late must be at most 1"
            )

    @property
    def never_fires(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the share is 0."""
        return self.share == 0.0

    @property
    def needs_total_steps(self) -> bool:
        """Whether ``late`` is given and the length of the training is not."""
        return self.late > 0.0 and self.total_steps is None

    def with_total_steps(self, total_steps: int | None) -> "Budget":
        """The same budget for a training of this length; itself where it does not ask."""
        return replace(self, total_steps=total_steps) if self.late > 0.0 else self

    def start(self) -> State:
        return {"mean": 0.0, "spread": 0.0, "quantile": 0.0, "fired": 0.0}

    def check_state(self, state: State) -> None:
        largest = _LARGEST_SURPRISE
        _within("mean", state["mean"], -_HIGHEST, _HIGHEST)
        _within("spread", state["spread"], 0.0, largest)
        _within("quantile", state["quantile"], -largest, largest)
        if not checks.at_least_zero("fired", state["fired"]).is_integer():
            raise ValueError(f"fired must be a whole number, got {state['fired']}")

    def allowance(self, steps: int) -> float:
        """How many of the first ``steps`` steps may have taken a second gradient."""
        if self.late == 0.0 or steps >= self._known_total_steps():
            return self.share * steps
        return self._rate * max(0.0, steps - self.late * self._known_total_steps())

    @property
    def _rate(self) -> float:
        """Of second gradients, while they are taken; after the end it is the share again."""
        return min(1.0, self.share / (1.0 - self.late))

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        height = self._height(now.squared_norm)
        mean = state["mean"] if now.step else height
        surprise = max(-_LARGEST_SURPRISE, min(_LARGEST_SURPRISE, height - mean))
        wanted = surprise >= state["quantile"] or self._rate == 1.0
        allowance, fired = self.allowance(now.step + 1), state["fired"]
        # Compared as they are promised, so that no rounding comes between.
        affordable, overdue = fired + 1.0 <= allowance, fired < allowance - MOST_SAVED
        fires = overdue or (wanted and affordable)
        target = self._target(allowance - fired if allowance > 0.0 else _USUALLY_SAVED)
        newest = max(_NEWEST, 1.0 / (now.step + 1))
        spread = state["spread"] + newest * (abs(surprise) - state["spread"])
        step = max(_QUANTILE_STEP, 2.0 / (now.step + 1)) * spread
        quantile = state["quantile"] + step * ((surprise >= state["quantile"]) - target)
        after = {
            "mean": mean + max(_NEWEST, 1.0 / (now.step + 2)) * surprise,
            "spread": spread,
            "quantile": max(-_LARGEST_SURPRISE, min(_LARGEST_SURPRISE, quantile)),
            "fired": fired + fires,
        }
        return Decision(fires, threshold=self._norm_at(mean + state["quantile"])), after

    def _target(self, saved: float) -> float:
        """The rate that the quantile aims at: the share's odds, leaning to what is saved."""
        if self._rate in (0.0, 1.0):
            return self._rate
        lean = max(0.0, min(MOST_SAVED + 1.0, saved)) - _USUALLY_SAVED
        odds = self._rate / (1.0 - self._rate) * math.exp(lean / _SAVED_PER_E_FOLD)
        return odds / (1.0 + odds)

    def _height(self, squared_norm: float) -> float:
        """What is large where a second gradient is wanted: ``log ‖g‖²``."""
        return math.log(max(squared_norm, sys.float_info.min))

    def _norm_at(self, height: float) -> float:
        """The ``‖g‖²`` of this height, as far as numbers reach."""
        return math.exp(max(_LOWEST, min(_HIGHEST, height)))


_LATE = "a number from 0 to below 1"


def _within(name: str, value: float, low: float, high: float) -> None:
    allowed = f"a number from {low:g} to {high:g}"
    checks.real(name, value, allowed, within=low <= checks.real(name, value, allowed) <= high)
