"""Methods in the lab: what a comparison must know of each, beside the library's record.

A method without a record here works in every command, with the defaults of :class:`LabMethod`,
unless its record in the library says that it is for other models than the lab's.
What only the lab has (:mod:`aesam.lab.own_methods`) stands beside the library's methods everywhere.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import nn

import aesam
from aesam.lab.companions.companion import Companion
from aesam.lab.config import Method, Run
from aesam.lab.errors import UsageError, unknown
from aesam.lab.own_methods import list_own_methods, own_method
from aesam.lab.settings_on_digits import ON_DIGITS
from aesam.parts.samples import Samples
from aesam.registry import (
    MethodRecord,
    Registry,
    Setting,
    list_methods,
    method_record,
    method_records,
)

Group = Literal["paper", "control", "variant"]

#: Okabe and Ito's colours, which people with any of the common colour-blindnesses can tell apart;
#: their yellow is left out because it is too faint on white. Controls are greys.
BLACK, BLUE, SKY, ORANGE = "#000000", "#0072B2", "#56B4E9", "#E69F00"
VERMILION, GREEN, PURPLE = "#D55E00", "#009E73", "#CC79A7"
GREY, LIGHT_GREY = "#767676", "#a0a0a0"


@dataclass(frozen=True)
class LabMethod:
    """What a comparison must know of a method.

    Args:
        group: ``"paper"`` for the seven that are compared by default, ``"control"`` for what they
            should be set against, ``"variant"`` for any other.
        baseline: the method that it is tested against, beside SAM.
        borrows: whose searched settings it takes, where it is not searched itself.
        tuned: its settings in a comparison on digits, found by a search.
        colour: ``#rrggbb`` in figures.
        marker: matplotlib's, in figures.
        label: what readers call it, for a row that is no method of the library's.
        in_default: whether it is compared by default beside the paper's; False by default.
    """

    group: Group = "variant"
    baseline: str = "erm"
    borrows: str | None = None
    tuned: Mapping[str, float] = field(default_factory=dict[str, float])
    colour: str = GREY
    marker: str = "h"
    label: str = ""
    in_default: bool = False

    def __post_init__(self) -> None:
        if self.group not in get_args(Group):
            raise ValueError(f"group must be one of {get_args(Group)}, got {self.group!r}")
        if not re.fullmatch("#[0-9a-fA-F]{6}", self.colour):
            raise ValueError(f"colour must be written as #rrggbb, got {self.colour!r}")
        if len(self.marker) != 1:
            raise ValueError(f"marker must be one letter of matplotlib's, got {self.marker!r}")


_LAB = Registry[LabMethod]("record of a method")


def register_lab_method(name: str, record: LabMethod) -> None:
    """Say how the lab draws, groups and tests a method; figures list them in this order."""
    _LAB.add(name, record)


def forget_lab_method(name: str) -> None:
    """Take a record back; unknown names are refused."""
    _LAB.remove(name)


def list_lab_methods() -> list[str]:
    """The names that have a record here, in the order in which figures list them."""
    return _LAB.names()


def lab_method(name: str) -> LabMethod:
    """The lab's record of a method, with defaults where there is none."""
    return _LAB[name] if name in _LAB else LabMethod()


def _register_own() -> None:
    """In the order of the paper's tables, then what they should be set against."""
    by_default = {
        "erm": LabMethod("paper", colour=BLACK, marker="o"),
        "erm-early": LabMethod("control", in_default=True),  # beside what it shortens
        "sam": LabMethod("paper", colour=BLUE, marker="s"),
        "esam": LabMethod("paper", colour=SKY, marker="D"),
        "ss-sam": LabMethod("paper", colour=ORANGE, marker="^"),
        "ae-sam": LabMethod("paper", "ss-sam", colour=VERMILION, marker="v"),
        "looksam": LabMethod("paper", colour=GREEN, marker="P"),
        "ae-looksam": LabMethod("paper", "looksam", colour=PURPLE, marker="X"),
    }
    plain, look = "ae-sam", "ae-looksam"  # tested against, and with the settings of, these
    controls = {
        "erm-long": LabMethod("control", marker="<", label="ERM, twice as long"),
        "late-sam": LabMethod("control", borrows="sam", marker=">"),
        "matched-sam": LabMethod("control", plain, plain, marker="p"),
        "inverted-sam": LabMethod("control", plain, plain, marker="d"),
        "matched-looksam": LabMethod("control", look, look, colour=LIGHT_GREY, marker="p"),
        "inverted-looksam": LabMethod("control", look, look, colour=LIGHT_GREY, marker="d"),
    }
    # Those of one kind share a colour: ascents, averages, combinations, radii.
    variants = {
        "asam": LabMethod(colour=BLUE, marker="8"),
        "fisher-sam": LabMethod(colour=BLUE, marker="H"),
        "f-sam": LabMethod(colour=SKY, marker="8"),
        "vasso": LabMethod(colour=SKY, marker="H"),
        "gsam": LabMethod(colour=GREEN, marker="8"),
        "wsam": LabMethod(colour=GREEN, marker="H"),
        "sam-on": LabMethod(colour=BLUE, marker="*"),
        "le-sam": LabMethod(colour=VERMILION, marker="8"),
        "gnp": LabMethod(colour=GREEN, marker="*"),
        "ema": LabMethod(colour=ORANGE, marker="8"),
        "swa": LabMethod(colour=ORANGE, marker="H"),
        "swad": LabMethod(colour=ORANGE, marker="*"),
        "entropy-sgd": LabMethod(colour=PURPLE, marker="8"),
        "saf": LabMethod(colour=PURPLE, marker="H"),
    }
    records = {**by_default, **controls, **variants}
    for name in dict.fromkeys((*records, *ON_DIGITS)):
        record = records.get(name, LabMethod())
        register_lab_method(name, replace(record, tuned=ON_DIGITS.get(name, {})))


_register_own()


# Names, and how they are shown -------------------------------------------------------------------


def all_methods() -> list[str]:
    """The names of all methods: the library's, then those that only the lab has."""
    return [*list_methods(), *list_own_methods()]


def all_records() -> list[MethodRecord]:
    """The records of all methods, in that order."""
    return [*method_records(), *(own_method(name).record for name in list_own_methods())]


def is_own(name: str) -> bool:
    """Whether only the lab has the method."""
    return name in list_own_methods()


def methods_of(group: Group) -> list[str]:
    """The methods that belong to a group.

    >>> methods_of("paper")
    ['erm', 'sam', 'esam', 'ss-sam', 'looksam', 'ae-sam', 'ae-looksam']
    """
    return [name for name in all_methods() if lab_method(name).group == group]


def default_methods() -> list[str]:
    """What is compared by default: the paper's, and the controls that belong beside them.

    >>> default_methods()[:3]
    ['erm', 'erm-early', 'sam']
    """
    kept = {name for name in all_methods() if lab_method(name).in_default}
    return sorted({*methods_of("paper"), *kept}, key=order_of)


def record_of(name: str) -> MethodRecord:
    """A method's record; an unknown name is a mistake of the user's, told with the near ones."""
    if name not in all_methods():
        raise unknown("method", name, all_methods())
    return own_method(name).record if is_own(name) else method_record(name)


def label_of(name: str) -> str:
    """The method's name as readers write it; a name that is nobody's stays as it is.

    >>> label_of("ae-looksam"), label_of("erm-long")
    ('AE-LookSAM', 'ERM, twice as long')
    """
    if name in all_methods():
        return record_of(name).label
    # Names come from files: control characters would upset terminals, and matplotlib leaves labels
    # with a leading underscore out of its legends.
    shown = "".join(c if c.isprintable() else "?" for c in name).lstrip("_")
    return lab_method(name).label or shown or "?"


def colour_of(name: str) -> str:
    """The method's colour as ``#rrggbb``; grey for one without a record here."""
    return lab_method(name).colour


def marker_of(name: str) -> str:
    """The method's matplotlib marker."""
    return lab_method(name).marker


def symbol_of(setting: str) -> str:
    """The paper's letter for a setting of any method; empty where it has none."""
    return next((s.symbol for s in all_settings() if s.name == setting), "")


def phrase_of(setting: str) -> str:
    """How a label says a setting of any method; empty where it is symbol = value."""
    return next((s.phrase for s in all_settings() if s.name == setting), "")


def order_of(name: str) -> tuple[int, str]:
    """A sort key: methods in the order of their records here, then others by name."""
    known = list_lab_methods()
    return (known.index(name) if name in known else len(known), name)


# Settings ----------------------------------------------------------------------------------------


def all_settings() -> list[Setting]:
    """Each setting of any method once, as the first method that has it describes it."""
    found: dict[str, Setting] = {}
    for record in all_records():
        for setting in record.settings:
            found.setdefault(setting.name, setting)
    return list(found.values())


def searched(name: str) -> dict[str, tuple[float, ...]]:
    """The settings of a method that are searched, with the values to try.

    >>> searched("looksam")["alpha"]
    (0.1, 0.3, 0.6, 0.9)
    """
    return {s.name: s.grid for s in record_of(name).settings if s.grid}


def tuned(name: str) -> dict[str, float]:
    """The method's settings in a comparison on digits; those that it borrows if it has none."""
    record = lab_method(name)
    found = record.tuned or (lab_method(record.borrows).tuned if record.borrows else {})
    return {k: v for k, v in found.items() if k in record_of(name).defaults}


def fill(method: Method, *, strict: bool = True) -> Method:
    """The method with its defaults filled in and nothing that it does not know.

    A setting that means nothing to it is an error, or dropped where ``strict`` is False, as when
    one value is given for several methods. So are defaults that stand back for a given setting.

    >>> fill(Method("looksam", k=2)).get("k"), fill(Method("looksam", k=2)).get("alpha")
    (2, 0.5)
    >>> fill(Method("ae-sam", budget=0.2))
    Method('ae-sam', rho=0.05, budget=0.2, normalize=True)
    """
    record = record_of(method.name)
    if strict:
        _refuse_foreign(method, record)
    values = {**record.defaults_beside(method.settings), **method.settings}
    filled: dict[str, float] = {}
    for setting in record.settings:
        value = values.get(setting.name)
        if value is not None and not (setting.implied and value == setting.default):
            filled[setting.name] = _as_default(setting, value)
    return Method(method.name, **filled)


def _as_default(setting: Setting, value: float) -> float:
    """The value in its setting's kind of number: 1, 1.0 and yes would be several runs."""
    if isinstance(setting.default, bool) and value in (0, 1):
        return bool(value)
    if isinstance(setting.default, float | None) and type(value) is int:
        return float(value)
    whole = type(setting.default) is int and isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _refuse_foreign(method: Method, record: MethodRecord) -> None:
    foreign = sorted(set(method.settings) - set(record.defaults))
    if foreign:
        there_are = f"it has {', '.join(record.defaults) or 'none'}"
        instead = [record.instead[name] for name in foreign if name in record.instead]
        raise UsageError(
            f"{method.name} has no setting {' or '.join(foreign)}: "
            f"{'; '.join([*instead, there_are])}"
        )


# From a method to its optimizer ------------------------------------------------------------------


def make(
    method: Method, base: torch.optim.Optimizer, model: nn.Module, *, total_steps: int, seed: int
) -> aesam.SharpnessAware:
    """The optimizer of the library that a method stands for."""
    record = record_of(method.name)
    given: dict[str, Any] = method.settings
    if record.needs_total_steps and "total_steps" not in record.standing_back(given):
        given["total_steps"] = total_steps
    if record.needs_seed:
        given["seed"] = seed
    try:
        return record.make(base, model, **given)
    except ValueError as error:  # a model that the method cannot train, for instance
        raise UsageError(f"{method.name}: {error}") from None


def companion_of(method: Method) -> Companion:
    """What goes with the method's optimizer through a run; of the library's methods, nothing."""
    if not is_own(method.name):
        return Companion()
    own = own_method(method.name)
    try:
        return own.companion(**{**own.record.defaults, **method.settings})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{method.name}: {error}") from None


def epochs_of(run: Run) -> int:
    """How many epochs a run has: those of its training, unless its method ends earlier.

    >>> epochs_of(Run(method=Method("erm"))), epochs_of(Run(method=Method("erm-early", length=0.5)))
    (60, 30)
    """
    return companion_of(run.method).epochs(run.training.epochs)


def takes_fewer_steps(name: str) -> bool:
    """Whether a method takes fewer steps than others, since it keeps samples or ends early."""
    return _keeps_samples(name) or companion_of(Method(name)).ends_early


def _keeps_samples(name: str) -> bool:
    return is_own(name) and own_method(name).keeps != ""


def kept_share(method: Method) -> float:
    """The share of the training samples that the method keeps for itself, mostly none."""
    if not _keeps_samples(method.name):
        return 0.0
    own = own_method(method.name)
    return {**own.record.defaults, **method.settings}[own.keeps]


def check_settings(method: Method) -> None:
    """Let the method refuse impossible settings before anything is loaded or trained."""
    _probe(method)
    companion_of(method)


def samples_of_method(method: Method) -> Samples:
    """On which rows of a batch the method takes its second gradient."""
    return _probe(method).parts.samples


def compares_outputs(method: Method) -> bool:
    """Whether a step compares its outputs with those of one more forward: it cannot accumulate."""
    return _probe(method).parts.compares is not None


def _probe(method: Method) -> aesam.SharpnessAware:
    record = record_of(method.name)
    if record.only_for:
        raise UsageError(
            f"{method.name} is for {record.only_for}, which the lab's models are not: "
            f"aesam.create({method.name!r}, model) in a training of your own"
        )
    _refuse_foreign(method, record)
    model = nn.LayerNorm(1)  # which all other methods can train
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    try:
        return make(method, base, model, total_steps=1, seed=0)
    except TypeError as error:
        raise UsageError(str(error)) from None
