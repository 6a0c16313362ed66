"""Policies made of others: ``a & b``, ``a | b``, ``~a``, and a warm-up before any.

Every member decides on every step as it would alone: it sees the same ``‖g‖²``, keeps its own state
and draws from its own generator, whether or not its answer matters. So a :class:`Budget
<aesam.parts.budget.Budget>` counts the steps that it chose itself, also where another member
prevents or adds one.

>>> from aesam.parts.policies import Late, Periodic
>>> policy = Periodic(2) & ~Late(after=0.5, total_steps=8)
>>> [t for t in range(8) if policy.decide(Observation(t, 1.0), policy.start())[0].use_sam]
[0, 2]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from aesam.parts import checks
from aesam.parts.part import Part
from aesam.parts.policies import OPERATORS, Decision, Observation, Policy, State, answer_of


class Composed(Policy):
    """Base of policies made of others: override :meth:`members`, :meth:`of` and :meth:`fires`.

    What members keep stands under the member's number and a dot: ``"0.mean"``.
    """

    def members(self) -> tuple[Policy, ...]:
        """The policies that it is made of."""
        raise TypeError(f"{type(self).__name__} must define members()")

    def of(self, members: Sequence[Policy]) -> "Composed":
        """The same, made of other members."""
        raise TypeError(f"{type(self).__name__} must define of(members)")

    def fires(self, now: Observation, wanted: Sequence[bool]) -> bool:
        """Whether this step takes a second gradient, from what each member decided."""
        raise TypeError(f"{type(self).__name__} must define fires(now, wanted)")

    @property
    def class_name(self) -> str:
        """Its name, with those of its members."""
        return f"{type(self).__name__}({', '.join(m.class_name for m in self.members())})"

    @property
    def looks_at_loss(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a member does; others are not shown it."""
        return any(member.looks_at_loss for member in self.members())

    @property
    def looks_at_norm(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a member does, or a composition of someone else's in :meth:`fires`."""
        fires = type(self).fires
        return fires not in _BY_MEMBERS or any(m.looks_at_norm for m in self.members())

    @property
    def total_steps(self) -> int | None:
        """The length of the training, where a member asks for it and it is known."""
        told = [getattr(member, "total_steps", None) for member in self.members()]
        return next((total for total in told if total is not None), None)

    @property
    def needs_total_steps(self) -> bool:
        """Whether a member's ``total_steps`` was left out."""
        return any(member.needs_total_steps for member in self.members())

    def with_total_steps(self, total_steps: int | None) -> "Composed":
        """The same, with members that were told the length of the training."""
        return self.of([member.with_total_steps(total_steps) for member in self.members()])

    def seeds(self) -> dict[str, int]:
        """The members' seeds, by their numbers."""
        return {
            f"{i}.{path}" if path else str(i): seed
            for i, member in enumerate(self.members())
            for path, seed in member.seeds().items()
        }

    def settings(self) -> dict[str, bool | int | float | str | None]:
        """Its own settings and its members'; ``total_steps`` once, since there is one training."""
        kept = super().settings()
        for i, member in enumerate(self.members()):
            own = member.settings()
            kept |= {f"{i}.{name}": own[name] for name in own if name != "total_steps"}
        if self.needs_total_steps or self.total_steps is not None:
            kept["total_steps"] = self.total_steps
        return kept

    def start(self) -> State:
        return _joined([member.start() for member in self.members()])

    def check_state(self, state: State) -> None:
        for i, member in enumerate(self.members()):
            try:
                member.check_state(_below(i, state))
            except ValueError as error:
                raise ValueError(f"of member {i}, {member.class_name}: {error}") from error

    def decide(self, now: Observation, state: State) -> tuple[Decision, State]:
        answers = [
            answer_of(member, _seen_by(i, member, now), _below(i, state))
            for i, member in enumerate(self.members())
        ]
        made = [decision for decision, _ in answers]
        fires = self.fires(now, [bool(decision.use_sam) for decision in made])
        return Decision(fires, *_numbers(made), _notice(made)), _joined([own for _, own in answers])


@dataclass(frozen=True)
class _Several(Composed):
    """Of any number of members.

    >>> from aesam.parts.policies import Always, Never
    >>> AllOf((Always(), Never())).members()
    (Always(), Never())
    """

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", _agreed(_checked("policies", self.policies)))

    def members(self) -> tuple[Policy, ...]:
        return self.policies

    def of(self, members: Sequence[Policy]) -> "_Several":
        return replace(self, policies=tuple(members))


@dataclass(frozen=True)
class AllOf(_Several):
    """Fires where all members do: ``a & b``.

    Args:
        policies: the members, one or more. Where several ask for ``total_steps``, it is one number.

    >>> from aesam.parts.policies import Periodic
    >>> both = Periodic(2) & Periodic(3)
    >>> [t for t in range(8) if both.decide(Observation(t, 1.0), {})[0].use_sam]
    [0, 6]
    """

    @property
    def never_fires(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a member never does."""
        return any(member.never_fires for member in self.policies)

    def fires(self, now: Observation, wanted: Sequence[bool]) -> bool:
        return all(wanted)


@dataclass(frozen=True)
class AnyOf(_Several):
    """Fires where at least one member does: ``a | b``.

    Args:
        policies: the members, one or more. Where several ask for ``total_steps``, it is one number.

    >>> from aesam.parts.policies import Periodic
    >>> either = Periodic(2) | Periodic(3)
    >>> [t for t in range(8) if either.decide(Observation(t, 1.0), {})[0].use_sam]
    [0, 2, 3, 4, 6]
    """

    @property
    def never_fires(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether no member ever does."""
        return all(member.never_fires for member in self.policies)

    def fires(self, now: Observation, wanted: Sequence[bool]) -> bool:
        return any(wanted)


@dataclass(frozen=True)
class Not(Composed):
    """Fires where the policy does not: ``~a``.

    Args:
        policy: whose answer is turned round.

    >>> from aesam.parts.policies import Periodic
    >>> other = ~Periodic(3)
    >>> [t for t in range(8) if other.decide(Observation(t, 1.0), {})[0].use_sam]
    [1, 2, 4, 5, 7]
    """

    policy: Policy

    def __post_init__(self) -> None:
        _checked("policy", (self.policy,))

    def members(self) -> tuple[Policy, ...]:
        return (self.policy,)

    def of(self, members: Sequence[Policy]) -> "Not":
        return replace(self, policy=members[0])

    def fires(self, now: Observation, wanted: Sequence[bool]) -> bool:
        return not wanted[0]


@dataclass(frozen=True)
class Warmup(Composed):
    """No second gradient in the first steps, then what the policy decides.

    The policy watches from the first step on, so that its running mean or its draws are where they
    would be without the warm-up. A budget that is to spend after the warm-up what it saved in it is
    ``Budget(share, late=…, total_steps=…)``.

    Args:
        policy: what decides after the warm-up.
        steps: without a second gradient, a whole number from 0.

    >>> from aesam.parts.policies import Always
    >>> policy = Warmup(Always(), steps=3)
    >>> [policy.decide(Observation(t, 1.0), {})[0].use_sam for t in range(5)]
    [False, False, False, True, True]
    """

    policy: Policy
    steps: int

    def __post_init__(self) -> None:
        _checked("policy", (self.policy,))
        self._keep(steps=checks.whole("steps", self.steps, least=0))

    def members(self) -> tuple[Policy, ...]:
        return (self.policy,)

    def of(self, members: Sequence[Policy]) -> "Warmup":
        return replace(self, policy=members[0])

    @property
    def never_fires(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the policy never does."""
        return self.policy.never_fires

    def fires(self, now: Observation, wanted: Sequence[bool]) -> bool:
        return now.step >= self.steps and wanted[0]


#: Those that look at what members decided and at nothing else.
_BY_MEMBERS = {AllOf.fires, AnyOf.fires, Not.fires, Warmup.fires}

OPERATORS.update({"&": AllOf, "|": AnyOf, "~": Not})


# What members are given, and what is made of their answers -----------------------------------


def _checked(name: str, given: Any) -> tuple[Policy, ...]:
    """The members, if each can be one."""
    several = isinstance(given, tuple | list)
    members = tuple(cast(list[Any], given)) if several else (given,)
    if not members:
        raise ValueError(f"{name} must have at least one policy, got none")
    for member in members:
        if not isinstance(member, Policy):
            raise TypeError(f"{name} must be of policies, such as Periodic(2), got {member!r}")
        for hook in ("before_pass", "after_base_step"):
            if getattr(type(member), hook) is not getattr(Part, hook):
                raise TypeError(
                    f"{name} cannot have {member!r}, which moves weights in {hook}: nobody would "
                    "call it there. Use it alone."
                )
    return members


def _agreed(members: tuple[Policy, ...]) -> tuple[Policy, ...]:
    """Members that know of the same length of the training, if one of them knows it."""
    known: list[int | None] = [getattr(member, "total_steps", None) for member in members]
    told = {total for total in known if total is not None}
    if len(told) > 1:
        raise ValueError(
            f"total_steps must be one number for all policies, got {sorted(told)}: it is the "
            "number of optimizer steps of the whole training"
        )
    return tuple(m.with_total_steps(*told) if told and m.needs_total_steps else m for m in members)


def _seen_by(i: int, member: Policy, now: Observation) -> Observation:
    """What the member would look at alone."""
    return replace(
        now,
        generator=now.generators.get(str(i)),
        generators=_below(i, now.generators),
        loss=now.loss if member.looks_at_loss else None,
    )


def _below(i: int, found: Mapping[str, Any]) -> dict[str, Any]:
    """What stands under a member's number, by the names that it knows itself."""
    start = f"{i}."
    return {name[len(start) :]: found[name] for name in found if name.startswith(start)}


def _joined(states: Sequence[State]) -> State:
    return {f"{i}.{name}": own[name] for i, own in enumerate(states) for name in own}


def _numbers(made: Sequence[Decision]) -> tuple[float | None, float | None, float | None]:
    """Mean, deviation and threshold of the one member that has any; of several, nobody's."""
    found = [(d.mean, d.std, d.threshold) for d in made]
    having = [numbers for numbers in found if numbers != (None, None, None)]
    return having[0] if len(having) == 1 else (None, None, None)


def _notice(made: Sequence[Decision]) -> str | None:
    """What members have to say, each sentence once."""
    said = dict.fromkeys(d.notice for d in made if d.notice is not None)
    return "\n".join(said) or None
