"""When to take the second gradient.

A policy looks at ``‖g‖²``, at the count of steps and, if it asks for it, at the loss; what it
remembers is handed in and out, so that a step that does not happen (an overflow, an exception)
leaves no trace. Writing one takes ten lines:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Above(Policy):
...     bound: float
...     def decide(self, now, state):
...         return Decision(now.squared_norm > self.bound), state
>>> Above(0.5).decide(Observation(step=4, squared_norm=1.0), {})
(Decision(use_sam=True, mean=None, std=None, threshold=None, notice=None), {})
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from aesam._core.tensors import to_host
from aesam.parts import checks
from aesam.parts.part import Draws, Part

State = dict[str, float]

#: What makes one policy of others, by the operator that asks for it; of
#: :mod:`aesam.parts.composed`, which builds on this module.
OPERATORS: dict[str, Callable[..., "Policy"]] = {}


@dataclass(frozen=True)
class Observation:
    """What a policy may look at: the step's index ``t``, ``‖g‖²``, its generator and the loss.

    Args:
        step: the index ``t`` of this step, from 0.
        squared_norm: ``‖g‖²`` of the gradient at ``w``, over all parameters; finite. NaN where it
            is still on the device and the policy does not look (:attr:`Policy.looks_at_norm`).
        generator: to draw from, for policies with a ``seed``; None for others.
        loss: the loss at ``w``, for policies that ask for it (:attr:`Policy.looks_at_loss`): the
            mean over all processes, so that they never disagree. None where the caller has none.
        generators: those of a policy's members, by their path (:meth:`Part.seeds`); none by
            default.

    >>> Observation(step=3, squared_norm=0.25).loss is None
    True
    """

    step: int
    squared_norm: float
    generator: Draws = None
    loss: float | None = None
    generators: Mapping[str, torch.Generator] = field(default_factory=dict[str, torch.Generator])


@dataclass(frozen=True)
class Decision:
    """Take the second gradient or not, and why.

    Args:
        use_sam: whether this step takes a second gradient.
        mean: ``μ_t``, None where the policy has none; the same for the next two.
        std: ``σ_t``.
        threshold: what ``‖g‖²`` was held against.
        notice: a sentence for the user, shown once as a warning; None where there is none.

    >>> Decision(True).use_sam
    True
    """

    use_sam: bool
    mean: float | None = None
    std: float | None = None
    threshold: float | None = None
    notice: str | None = None


class Policy(Part):
    """Base of all policies: override :meth:`decide`, and :meth:`start` if there is a state.

    ``a & b`` fires where both do, ``a | b`` where one of them does, ``~a`` where ``a`` does not
    (:mod:`aesam.parts.composed`).

    >>> class Odd(Policy):
    ...     def decide(self, now, state):
    ...         return Decision(now.step % 2 == 1), state
    >>> Odd().decide(Observation(step=3, squared_norm=1.0), {})[0].use_sam
    True
    """

    #: Whether a second pass can be ruled out from the start, which saves preparing for one.
    never_fires = False

    #: Whether :attr:`Observation.loss` is wanted.
    looks_at_loss = False

    #: Whether :attr:`Observation.squared_norm` is: if not, a step waits for the device once, not
    #: twice. It belongs to ``decide``: a subclass that has its own looks, unless it says otherwise.
    looks_at_norm = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "decide" in vars(cls) and "looks_at_norm" not in vars(cls):
            cls.looks_at_norm = True

    def start(self) -> State:
        """The state before the first step."""
        return {}

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        """The decision for this step, and the state after it; ``state`` is left as it was."""
        raise TypeError(f"{type(self).__name__} must define decide(now, state)")

    def check_state(self, state: State) -> None:
        """Raise a ValueError for a state, read from a checkpoint, that no step leaves."""

    def __and__(self, other: "Policy") -> "Policy":
        """Fires where both do."""
        return OPERATORS["&"]((self, other)) if isinstance(other, Policy) else NotImplemented  # pyright: ignore

    def __or__(self, other: "Policy") -> "Policy":
        """Fires where one of them does, or both."""
        return OPERATORS["|"]((self, other)) if isinstance(other, Policy) else NotImplemented  # pyright: ignore

    def __invert__(self) -> "Policy":
        """Fires where this one does not."""
        return OPERATORS["~"](self)

    def __bool__(self) -> bool:
        # `a and b` would be b alone, without a word.
        raise TypeError("a policy is neither true nor false: use & for and, | for or, ~ for not")


@dataclass(frozen=True)
class Always(Policy):
    """SAM: every step takes the second gradient.

    >>> Always().decide(Observation(0, 1.0), {})[0].use_sam
    True
    """

    looks_at_norm = False

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        return Decision(True), state


@dataclass(frozen=True)
class Never(Policy):
    """ERM: no step takes the second gradient.

    >>> Never().decide(Observation(0, 1.0), {})[0].use_sam
    False
    """

    never_fires = True

    looks_at_norm = False

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        return Decision(False), state


@dataclass(frozen=True)
class Bernoulli(Policy):
    """SS-SAM: each step takes it with probability ``p``, drawn from a generator of its own.

    Args:
        p: probability of a second gradient, from 0 to 1; 0.5 by default.
        seed: of the draws, a whole number from 0, the default; checkpoints keep where they are.

    >>> now = Observation(0, 1.0, torch.Generator().manual_seed(0))
    >>> Bernoulli(p=1.0, seed=0).decide(now, {})[0].use_sam
    True
    """

    p: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        self._keep(p=checks.probability("p", self.p), seed=checks.seed("seed", self.seed))

    looks_at_norm = False

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        (draw,) = to_host(torch.rand(1, generator=now.generator, dtype=torch.float64))
        return Decision(draw < self.p), state


@dataclass(frozen=True)
class Scheduled(Policy):
    """Each step takes it with a probability ``p_t`` of its own, drawn from a generator of its own.

    Args:
        schedule: a function of the step's index ``t``, from 0, that returns ``p_t``, from 0 to 1.
            Checkpoints do not notice another one; a function of a module can be pickled, a lambda
            not.
        seed: of the draws, one on every step; a whole number from 0, the default.

    >>> rising = Scheduled(lambda t: min(1.0, t / 100))
    >>> now = Observation(100, 1.0, torch.Generator().manual_seed(0))
    >>> rising.decide(now, {})[0].use_sam
    True
    """

    schedule: Callable[[int], float]
    seed: int = 0

    def __post_init__(self) -> None:
        if not callable(self.schedule):
            raise TypeError(
                "schedule must be a function of the step that returns a probability, got "
                f"{self.schedule!r}: a constant one is Bernoulli(p)"
            )
        self._keep(seed=checks.seed("seed", self.seed))

    looks_at_norm = False

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        p = checks.probability(f"schedule({now.step})", self.schedule(now.step))
        (draw,) = to_host(torch.rand(1, generator=now.generator, dtype=torch.float64))
        return Decision(draw < p), state


@dataclass(frozen=True)
class Periodic(Policy):
    """LookSAM's: every ``k``-th step, starting at t = 0.

    Args:
        k: steps from one second gradient to the next, a whole number from 1; 5 by default.

    >>> [Periodic(3).decide(Observation(t, 1.0), {})[0].use_sam for t in range(4)]
    [True, False, False, True]
    """

    k: int = 5

    def __post_init__(self) -> None:
        self._keep(k=checks.whole("k", self.k, least=1))

    looks_at_norm = False

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        return Decision(now.step % self.k == 0), state


@dataclass(frozen=True)
class Late(Policy):
    """No second gradient at first, then one on every step, from the share ``after`` of training.

    Args:
        after: share of the training without second gradients, from 0 to 1; 0.75 by default.
        total_steps: optimizer steps of the whole training, a whole number from 1; left out (None,
            the default), it must be filled in before the first decision.

    >>> late = Late(after=0.75, total_steps=8)
    >>> [late.decide(Observation(t, 1.0), {})[0].use_sam for t in (5, 6, 7)]
    [False, True, True]
    """

    after: float = 0.75
    total_steps: int | None = None

    def __post_init__(self) -> None:
        self._keep(
            after=checks.probability("after", self.after),
            total_steps=checks.whole_or_none("total_steps", self.total_steps, least=1),
        )

    looks_at_norm = False

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        return Decision(now.step >= self.after * self._known_total_steps()), state


@dataclass(frozen=True)
class Adaptive(Policy):
    r"""The paper's: where the loss is sharp, measured by ``‖g‖²`` against its recent past.

    With ``x = ‖g‖²`` (Eq. 4–5 and Algorithm 1, in this order)::

        μ_t  = δ μ_{t-1}  + (1−δ) x            μ_{-1}  = 0
        σ_t² = δ σ²_{t-1} + (1−δ)(x − μ_t)²    σ²_{-1} = initial_variance = e⁻¹⁰
        c_t  = (t/T) λ1 + (1 − t/T) λ2         T = total_steps
        second gradient  ⇔  x ≥ μ_t + c_t σ_t

    ``λ1 = λ2 = −∞`` is SAM and ``+∞`` is ERM. From ``t = T`` on, ``c_t = λ1``. There is no bias
    correction, and ``initial_variance`` is an absolute number: where ``‖g‖²`` is far below it
    (1e-6, say) lower it too, or the first hundred steps are decided by it alone. ``(x − μ_t)/σ_t``
    cannot exceed ``1/√(1−δ)`` by much (3.2 for δ = 0.9), so a larger ``c_t`` never fires.

    Args:
        lambda1: threshold factor ``λ1`` at the end of training, at most ``lambda2``; -1 by default.
        lambda2: threshold factor ``λ2`` at its start, at least ``lambda1``; 1 by default.
        delta: forgetting rate ``δ`` of the running mean and variance, above 0 and below 1; 0.9 by
            default.
        total_steps: optimizer steps of the whole training, a whole number from 1; left out (None,
            the default), it must be filled in before the first decision.
        initial_variance: ``σ²`` before the first step, above 0; ``e⁻¹⁰`` by default.

    >>> policy = Adaptive(total_steps=100)
    >>> decision, state = policy.decide(Observation(step=0, squared_norm=4.0), policy.start())
    >>> decision.use_sam, round(state["mean"], 6), round(state["variance"], 6)
    (True, 0.4, 1.296041)
    """

    lambda1: float = -1.0
    lambda2: float = 1.0
    delta: float = 0.9
    total_steps: int | None = None
    initial_variance: float = math.exp(-10)

    def __post_init__(self) -> None:
        low, high = _thresholds(self.lambda1, self.lambda2)
        self._keep(
            lambda1=low,
            lambda2=high,
            delta=checks.decay("delta", self.delta),
            total_steps=checks.whole_or_none("total_steps", self.total_steps, least=1),
            initial_variance=checks.positive("initial_variance", self.initial_variance),
        )

    def start(self) -> State:
        return {"mean": 0.0, "variance": self.initial_variance}

    def check_state(self, state: State) -> None:
        for name, value in state.items():
            checks.at_least_zero(name, value)  # both are means of squares

    def threshold_factor(self, step: int) -> float:
        """``c_t``, falling linearly from ``λ2`` at the start to ``λ1`` at ``total_steps``."""
        total = self._known_total_steps()
        if self.lambda1 == self.lambda2 or step >= total:
            return self.lambda1
        progress = step / total
        return progress * self.lambda1 + (1.0 - progress) * self.lambda2

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        x, keep, learn = now.squared_norm, self.delta, 1.0 - self.delta
        mean = keep * state["mean"] + learn * x
        spread = keep * state["variance"] + learn * ((x - mean) * (x - mean))
        variance = min(spread, sys.float_info.max)
        std, factor = math.sqrt(variance), self.threshold_factor(now.step)
        threshold = mean + factor * std if math.isfinite(factor) else factor
        decision = Decision(x >= threshold, mean, std, threshold, self._notice(now.step))
        return decision, {"mean": mean, "variance": variance}

    def _notice(self, step: int) -> str | None:
        if step < self._known_total_steps():
            return None
        return (
            f"training goes on past total_steps={self.total_steps}: the threshold stays at "
            f"lambda1={self.lambda1}. Give the whole number of optimizer steps as total_steps."
        )


def _thresholds(lambda1: object, lambda2: object) -> tuple[float, float]:
    low = checks.real("lambda1", lambda1, "a number <= lambda2")
    high = checks.real("lambda2", lambda2, "a number >= lambda1")
    if math.isnan(low) or math.isnan(high) or low > high:
        raise ValueError(f"lambda1 <= lambda2 must hold, got lambda1={lambda1}, lambda2={lambda2}")
    if low != high and (math.isinf(low) or math.isinf(high)):
        raise ValueError(
            "lambda1 and lambda2 may be infinite only together and equal (-inf is SAM, inf is "
            f"ERM), got lambda1={lambda1}, lambda2={lambda2}"
        )
    return low, high


def answer_of(
    policy: Policy, now: Observation, state: Mapping[str, float]
) -> tuple[Decision, State]:
    """What a policy decides, if it can be acted on and saved.

    Args:
        policy: whom to ask.
        now: what it may look at.
        state: its state before, which is left as it was.

    >>> answer_of(Periodic(3), Observation(step=3, squared_norm=1.0), {})[0].use_sam
    True
    """
    answer: Any = policy.decide(now, dict(state))
    name = type(policy).__name__
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Decision)):  # pyright: ignore
        raise TypeError(f"{name}.decide must return (Decision(...), state), got {answer!r}")
    decision, after = cast(tuple[Decision, State], answer)
    known = isinstance(after, dict) and after.keys() == state.keys()  # pyright: ignore
    if not (known and all(map(_is_number, after.values()))):
        raise TypeError(
            f"{name}.decide must return a state of finite numbers under the keys of start(), "
            f"{sorted(policy.start())}, got {after!r}"
        )
    return decision, after


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
