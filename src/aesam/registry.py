"""Methods by name: one record for each, and what is made of it.

Everything that lists, makes, searches or explains a method reads its record, here and in the lab.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Generic, TypeVar, cast

import torch
from torch import nn

from aesam._core.construction import Parts
from aesam.optimizer import SharpnessAware
from aesam.searching.ranges import Range

#: Keywords of :class:`SharpnessAware` that every method hands on.
COMMON = tuple(
    parameter.name
    for parameter in inspect.signature(SharpnessAware).parameters.values()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    and parameter.name not in {"rho", "normalize", *(f.name for f in fields(Parts))}
)

#: Those of them that change what is computed; a record has those that do so in its method.
_COMMON_SETTINGS = ("compensate",)

#: Keywords of methods that say nothing of what is computed, or that a training knows by itself.
_NO_SETTINGS = {"total_steps", "seed", "base", "model", *COMMON} - {*_COMMON_SETTINGS}

#: Names of what only the lab has: not an optimizer, but a way in which its loop trains.
OF_THE_LAB = ("ema", "swa", "swad", "entropy-sgd", "saf", "erm-early")

Record = TypeVar("Record")
MethodClass = TypeVar("MethodClass", bound=Callable[..., SharpnessAware])


@dataclass(frozen=True)
class Setting:
    """One setting of a method.

    Args:
        name: the keyword that the method takes.
        default: its default, which also says its type; None for a real number that is left out
            unless it is given.
        help: what it does, in half a line.
        symbol: the paper's letter for it.
        phrase: how a label says it, with ``{}`` for the value; empty (the default) for
            ``symbol = value``.
        allowed: its range in words.
        least: its natural lower bound, -∞ by default; a search does not look for more below it.
        most: its natural upper bound, ∞ by default.
        is_open: whether the bounds themselves are not allowed; False by default.
        grid: the values that a search tries, in rising order; none if it is not searched.
        implied: whether a run of the lab names it only where it differs from its default. True for
            settings that came after runs were published, so that those stay the same runs.
        instead_of: the keywords of the method, settings or ``total_steps``, that have no meaning
            beside it; where it is given, their defaults stand back. None by default.

    >>> Setting("rho", 0.05, "radius of the ascent", symbol="ρ").but(0.5).default
    0.5
    """

    name: str
    default: bool | int | float | None
    help: str
    symbol: str = ""
    allowed: str = ""
    grid: tuple[float, ...] = ()
    implied: bool = False
    instead_of: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    is_open: bool = False
    phrase: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in _NO_SETTINGS:
            raise ValueError(f"name must be that of a keyword that is a setting, got {self.name!r}")
        if self.instead_of and self.default is not None:
            raise ValueError(f"{self.name} stands for others where it is given: default=None")
        for value in (*([] if self.default is None else [self.default]), *self.grid):
            if not isinstance(value, bool | int | float):  # pyright: ignore
                raise TypeError(f"{self.name} must have numbers or yes/no as values, got {value!r}")
        if not self.least < self.most:
            raise ValueError(f"least of {self.name} must be below most, got {self.least!r}")

    def but(self, default: bool | int | float, grid: tuple[float, ...] | None = None) -> "Setting":
        """The same setting with another default, and other values to try."""
        return replace(self, default=default, grid=self.grid if grid is None else grid)

    def range_from(self, start: Iterable[float], usual: float) -> Range:
        """What a search tries of it: values to start from, and where they may go."""
        values, bounds = (*start, usual), (self.least, self.most)
        if isinstance(self.default, bool):  # no and yes are all there is
            values, bounds = tuple(int(value) for value in values), (0, 1)
        elif isinstance(self.default, float):  # 1 and 1.0 are one value of it
            values = tuple(float(value) for value in values)
        return Range(self.name, values[:-1], values[-1], *bounds, self.is_open)


@dataclass(frozen=True)
class MethodRecord:
    """What is known of a method.

    Args:
        name: what commands and :func:`create` call it, in small letters.
        label: what readers call it.
        make: its class, or a function of ``(base, model, **settings)``.
        settings: its settings with their defaults, those to search first.
        paper: where it is from; empty for a control that is of no paper.
        rule: for a method beyond the paper, what it does otherwise than SAM, as a formula.
        cost: what a step costs, in words, where ``rule`` is given.
        only_for: which models it is for, in words; empty for all.
        needs_total_steps: whether it must know the number of optimizer steps of the whole training,
            with some of its settings at least.
        needs_seed: whether it draws random numbers of its own.
        instead: for keywords that it lacks and that one may expect, what to write instead.

    >>> method_record("looksam").defaults["k"]
    5
    """

    name: str
    label: str
    make: Callable[..., SharpnessAware]
    settings: tuple[Setting, ...]
    paper: str = ""
    rule: str = ""
    cost: str = ""
    only_for: str = ""
    needs_total_steps: bool = False
    needs_seed: bool = False
    instead: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def summary(self) -> str:
        """The first sentence of its documentation."""
        return (inspect.getdoc(self.make) or self.label).partition("\n")[0]

    @property
    def defaults(self) -> dict[str, Any]:
        """Its settings' defaults by name; None where it is left out unless it is given."""
        return {setting.name: setting.default for setting in self.settings}

    def defaults_beside(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults that hold beside what is given.

        Args:
            given: settings of the method by name; None stands for one that is not given.

        >>> sorted(method_record("ae-sam").defaults_beside({"budget": 0.2}))
        ['budget', 'compensate', 'normalize', 'rho']
        """
        back = self.standing_back(given)
        return {name: value for name, value in self.defaults.items() if name not in back}

    def standing_back(self, given: Mapping[str, Any]) -> set[str]:
        """The keywords that have no meaning beside what is given.

        Args:
            given: settings of the method by name; None stands for one that is not given.

        >>> "total_steps" in method_record("ae-sam").standing_back({"budget": 0.2})
        True
        """
        named = [s for s in self.settings if given.get(s.name) is not None]
        return {name for setting in named for name in setting.instead_of}


class Registry(Generic[Record]):
    """Records by name, in the order in which they were added; each name is used once.

    Args:
        kind: what one of them is called in errors: ``"method"``.
        error: what an unknown name raises.

    >>> colours = Registry[str]("colour")
    >>> colours.add("red", "#f00")
    >>> colours["red"], "blue" in colours, colours.names("r*")
    ('#f00', False, ['red'])
    """

    def __init__(self, kind: str, error: type[ValueError] = ValueError) -> None:
        self._kind, self._error = kind, error
        self._records: dict[str, Record] = {}

    def add(self, name: str, record: Record) -> None:
        """Make a record known; a name that is taken or no name is refused."""
        self.check_free(name)
        self._records[name] = record

    def check_free(self, name: str) -> None:
        """Refuse what is no name, or is another record's."""
        if name in self._records:
            raise ValueError(f"a {self._kind} {name!r} is registered already: choose another name")
        if name != name.lower() or not name.replace("-", "").isalnum():
            raise ValueError(f"name must be small letters, digits and hyphens, got {name!r}")

    def remove(self, name: str) -> None:
        """Take a record back; an unknown name is refused."""
        del self._records[self.known(name)]

    def known(self, name: str) -> str:
        """The name itself, if there is a record of it; else an error with the near ones."""
        if name not in self._records:
            raise self._error(f"unknown {self._kind} {name!r}: {did_you_mean(name, self._records)}")
        return name

    def names(self, pattern: str = "*") -> list[str]:
        """The names that match; ``*`` stands for anything, ``?`` for one letter."""
        return [name for name in self._records if fnmatchcase(name, pattern)]

    def values(self) -> list[Record]:
        """The records themselves."""
        return list(self._records.values())

    def __getitem__(self, name: str) -> Record:
        return self._records[self.known(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._records


_METHODS = Registry[MethodRecord]("method")


def register_method(
    name: str,
    *,
    label: str,
    settings: Iterable[Setting],
    paper: str = "",
    rule: str = "",
    cost: str = "",
    only_for: str = "",
    instead: Mapping[str, str] | None = None,
) -> Callable[[MethodClass], MethodClass]:
    """Make a class known by a name, to :func:`create` and to every command of the lab.

    Args:
        name: small letters, digits and hyphens; each name is used once.
        label: what readers call it.
        settings: those of its keywords that are settings; others, such as ``total_steps``,
            ``seed`` and ``nonfinite``, are no settings. Whether it takes the first two is seen
            from its constructor, and from those above it where it hands keywords on.
        paper: where it is from.
        rule: what it does otherwise than SAM, as a formula; with it the method is in the docs'
            table of variants.
        cost: what a step costs, in words, for that table.
        only_for: which models it is for, in words, where not for all: the lab, which has no PEFT
            models, refuses those methods by them.
        instead: for keywords that it lacks and that one may expect, what to write instead, in half
            a sentence; none by default.

    >>> from aesam import SAM
    >>> @register_method("tiny-sam", label="Tiny SAM", settings=[Setting("rho", 0.01, "radius")])
    ... class TinySAM(SAM):
    ...     def __init__(self, base, model=None, *, rho=0.01, **common):
    ...         super().__init__(base, model, rho=rho, **common)
    >>> list_methods("tiny*")
    ['tiny-sam']
    >>> forget_method("tiny-sam")
    """
    _METHODS.check_free(name)
    if name in OF_THE_LAB:
        raise ValueError(f"{name!r} is the name of a method of the lab: choose another name")

    def register(make: MethodClass) -> MethodClass:
        for setting in (own := tuple(settings)):
            if not _takes(make, setting.name, unsure=True):
                kind = getattr(make, "__name__", make)
                raise ValueError(f"{kind} does not take the setting {setting.name} of {name}")
        record = MethodRecord(
            name, label, make, own, paper, rule, cost, only_for,
            instead=dict(instead or {}),
            needs_total_steps=_takes(make, "total_steps"),
            needs_seed=_takes(make, "seed"),
        )  # fmt: skip
        _METHODS.add(name, record)
        _mark(make, name)
        return make

    return register


def _mark(make: object, name: str) -> None:
    """A class knows the first name that it was registered by, for what it says to users."""
    if isinstance(make, type) and "registered_as" not in vars(make):
        make.registered_as = name  # pyright: ignore[reportAttributeAccessIssue]


def _takes(make: Callable[..., Any], keyword: str, *, unsure: bool = False) -> bool:
    """Whether a class or function has a keyword; ``**others`` go to the class above.

    ``unsure`` is the answer for a function, which may hand them on to anywhere.
    """
    makers = [c.__init__ for c in make.__mro__] if isinstance(make, type) else [make]
    for maker in makers:
        parameters = inspect.signature(maker).parameters
        if keyword in parameters:
            return True
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return False
    return unsure


def forget_method(name: str) -> None:
    """Take a registration back; unknown names are refused."""
    _METHODS.remove(name)


def list_methods(pattern: str = "*") -> list[str]:
    """The names of all methods that match, in the order in which they were registered.

    Args:
        pattern: ``*`` stands for anything, ``?`` for one letter.

    >>> list_methods("ss-*")
    ['ss-sam']
    """
    return _METHODS.names(pattern)


def method_record(name: str) -> MethodRecord:
    """The record of a method; an unknown name is refused with the near ones.

    Args:
        name: one of :func:`list_methods`.

    >>> method_record("ae-sam").label
    'AE-SAM'
    """
    if name in OF_THE_LAB:
        raise ValueError(
            f"{name} is no optimizer but a way to train, which the lab has (pip install "
            f"'aesam[lab]'): aesam train --method {name}. Methods for a loop of your own are "
            f"{', '.join(list_methods())}"
        )
    return _METHODS[name]


def method_records() -> list[MethodRecord]:
    """The records of all methods, in the order in which they were registered."""
    return _METHODS.values()


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The rest of a sentence about a name that is none of ``known``: the near ones first.

    >>> did_you_mean("ae-sma", ["erm", "sam", "ae-sam"])
    'did you mean ae-sam? Known are erm, sam, ae-sam'
    """
    names = list(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{guess}Known are {', '.join(names)}"


def create(
    name: str,
    model: nn.Module,
    *,
    optimizer: str
    | type[torch.optim.Optimizer]
    | partial[torch.optim.Optimizer]
    | torch.optim.Optimizer = "sgd",
    **settings: Any,
) -> SharpnessAware:
    """A method by its name around an optimizer by its name, over all parameters of a model.

    Args:
        name: one of :func:`list_methods`.
        model: what is trained; its buffers are guarded in the second pass.
        optimizer: a name of ``torch.optim`` in any case (``"sgd"``, ``"adamw"``), a class, a
            ``functools.partial`` of one, or an optimizer that was made already.
        settings: settings of the method (``rho``, ``total_steps``, ``seed``, ``nonfinite``, …) and
            arguments of the optimizer (``lr``, ``weight_decay``, …). Any other is refused.

    >>> model = nn.Linear(2, 1)
    >>> opt = create("ae-sam", model, optimizer="adamw", lr=1e-3, rho=0.1, total_steps=100)
    >>> type(opt).__name__, type(opt.base).__name__, opt.param_groups[0]["rho"]
    ('AESAM', 'AdamW', 0.1)
    """
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    return make_by_name(name, model.parameters(), model, optimizer, settings)


def make_by_name(
    name: str, params: Any, model: nn.Module | None, optimizer: Any, settings: dict[str, Any]
) -> SharpnessAware:
    """A method around an optimizer over ``params``, or around one that was made already.

    ``settings`` are those of the method and arguments of the optimizer, each taken by one of them.
    """
    record = method_record(name)
    own = _keywords_of(record)
    if isinstance(optimizer, torch.optim.Optimizer):
        base = optimizer
        _refuse_foreign(record, type(base).__name__, settings, own, set())
    else:
        kind = _optimizer_class(optimizer)
        theirs = set(_named_parameters(kind)) - {"params"}
        _refuse_foreign(record, _name_of(kind), settings, own, theirs)
        base = kind(params, **{k: v for k, v in settings.items() if k in theirs})
    given = {k: v for k, v in settings.items() if k in own}
    return record.make(base, model, **{**record.defaults_beside(given), **given})


def _keywords_of(record: MethodRecord) -> set[str]:
    """All that a method may be given beside the optimizer and the model."""
    common = {word for word in COMMON if _takes(record.make, word, unsure=True)}
    own = {*record.defaults, *common}
    own |= {"total_steps"} if record.needs_total_steps else set()
    return own | ({"seed"} if record.needs_seed else set())


def _named_parameters(kind: Callable[..., Any]) -> list[str]:
    collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(kind).parameters.values()
    return [parameter.name for parameter in found if parameter.kind not in collecting]


def _name_of(kind: Any) -> str:
    return (kind.func if isinstance(kind, partial) else kind).__name__


def _optimizer_class(optimizer: object) -> Callable[..., torch.optim.Optimizer]:
    whole = cast(object, optimizer.func) if isinstance(optimizer, partial) else optimizer
    if isinstance(whole, type) and issubclass(whole, torch.optim.Optimizer):
        return cast(Callable[..., torch.optim.Optimizer], optimizer)
    if not isinstance(optimizer, str):
        raise TypeError(
            "optimizer must be a name of torch.optim, a class of optimizers (or a partial of one) "
            f"or an optimizer, got {optimizer!r}"
        )
    known = {
        kind.__name__.lower(): kind
        for kind in vars(torch.optim).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    del known["optimizer"]
    if optimizer.lower() not in known:
        near = did_you_mean(optimizer.lower(), known)
        raise ValueError(f"unknown optimizer {optimizer!r} of torch.optim: {near}")
    return known[optimizer.lower()]


def _refuse_foreign(
    record: MethodRecord,
    optimizer: str,
    settings: dict[str, Any],
    own: set[str],
    theirs: set[str],
) -> None:
    for name in settings:
        if name in own and name in theirs:
            raise ValueError(
                f"{name} is a setting of {record.name} and an argument of {optimizer}: make the "
                "optimizer yourself and pass it as optimizer="
            )
        if name not in own | theirs:
            takes = f"takes no {name}" if theirs else "is made already"
            near = record.instead.get(name) or did_you_mean(
                name, sorted(own) + sorted(theirs - own)
            )
            raise ValueError(f"{record.name} has no setting {name} and {optimizer} {takes}: {near}")
