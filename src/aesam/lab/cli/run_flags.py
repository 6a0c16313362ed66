"""Flags that several commands share, and the runs that they describe.

The flags of the data, the model and the training are the fields of :mod:`aesam.lab.config`; those
of methods follow from the methods' records, also of methods that were registered from outside.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args

import tyro

from aesam.lab import data, lab_methods, models, validation
from aesam.lab.cli.console import is_given
from aesam.lab.config import Data, Method, Model, Run, Training
from aesam.lab.errors import UsageError
from aesam.lab.grid import EngineName, check_engine
from aesam.registry import Setting

Command = TypeVar("Command", bound="RunFlags")


@dataclass(frozen=True)
class RunFlags:
    """What is trained and how; the defaults are the usual ones for the data set."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    settings: tyro.conf.Suppress[Any] = None  # what was given, see `with_defaults`

    METHOD_HELP: ClassVar[str] = "The method."

    @classmethod
    def usual_settings(cls, method: str, dataset: str) -> dict[str, float]:  # noqa: ARG003
        """The settings of a method that no flag is given for."""
        return lab_methods.record_of(method).defaults

    @classmethod
    def more_flags(cls) -> list[tuple[str, Any, Any]]:
        """Fields of a command that follow from the records: name, type, default."""
        return []

    def given_settings(self) -> dict[str, float]:
        """The settings of methods that flags were given for, by name."""
        values = _values(self.settings) if self.settings is not None else {}
        return {name: value for name, value in values.items() if value is not None}

    def refuse_settings_of_none(self, methods: Iterable[str]) -> None:
        """Where several methods share the flags, each takes what it has: one of them must."""
        known = {name for method in methods for name in lab_methods.record_of(method).defaults}
        foreign = [name for name in self.given_settings() if name not in known]
        if foreign:
            raise UsageError(f"none of these methods has a setting {' or '.join(foreign)}")

    def run(
        self, method: str, seed: int, noise: float, *, strict: bool = True, **tuned: float
    ) -> Run:
        """The run that the flags describe; ``tuned`` are settings that flags override.

        Those stand back that have no meaning beside what a flag was given for.
        """
        if self.training.optimizer == "adamw" and is_given("--momentum"):
            raise UsageError(
                f"adamw has no momentum to set, got --momentum {self.training.momentum:g}: leave "
                "it out, or use --optimizer sgd"
            )
        given = self.given_settings()
        back = lab_methods.record_of(method).standing_back(given)
        usual = {name: value for name, value in tuned.items() if name not in back}
        wanted = Method(method, **{**usual, **given})
        return Run(
            data=replace(Data(**_values(self.data)), noise=noise),
            model=Model(**_values(self.model)),
            method=lab_methods.fill(wanted, strict=strict),
            training=self.training,
            seed=seed,
        )


@dataclass(frozen=True)
class RunnerFlags:
    """How many runs are made at the same time, and where."""

    jobs: int = 2
    """Runs at the same time."""
    engine: EngineName = "local"
    """local (this machine's cores), dask or ray (a cluster)."""
    address: Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="")] = None
    """The scheduler of the dask or ray cluster; one is started on this machine if left out."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Say nothing on the way, only where the result is."""

    def check(self) -> None:
        """Refuse what cannot be, also where there turns out to be nothing to run."""
        validation.check_whole(validation.OF_A_GRID, vars(self))
        check_engine(self.jobs, self.engine, self.address)


def with_defaults(command: type[Command], dataset: str) -> Command:
    """The command with all its defaults: a data set's usual ones, and a flag for every setting."""
    usual = data.data_record(dataset).usual
    flags = _setting_flags(command, dataset)
    more = [("settings", flags, flags()), *_method_flags(command), *command.more_flags()]
    own = replace(usual.data, holdout=command().data.holdout)  # some hold out by themselves
    named = {
        "data": _with_choices(own, "dataset", data.list_data_sets()),
        "model": _with_choices(usual.model, "model", models.list_models()),
    }
    more += [(name, type(value), value) for name, value in named.items()]
    kind = make_dataclass(command.__name__, more, bases=(command,), frozen=True)
    kind.__doc__ = command.__doc__
    return cast(Command, kind(training=usual.training))


def _with_choices(value: Data | Model, flag: str, names: Iterable[str]) -> Any:
    """The same value as an instance whose flag for ``name`` shows which there are."""
    shown = tyro.conf.arg(name=flag, metavar="{" + ",".join(names) + "}", help=f"The {flag}.")
    kind: type[Any] = type(value)
    more = make_dataclass(
        kind.__name__, [("name", Annotated[str, shown], value.name)], bases=(kind,), frozen=True
    )
    more.__doc__ = kind.__doc__
    return more(**_values(value))


def _values(flags: Any) -> dict[str, Any]:
    return {f.name: getattr(flags, f.name) for f in fields(flags)}


def _method_flags(command: type[RunFlags]) -> list[tuple[str, Any, Any]]:
    """``--method`` or ``--methods`` of a command, with the names there are."""
    names = "{" + ",".join(lab_methods.all_methods()) + "}"
    groups = {group: lab_methods.methods_of(group) for group in get_args(lab_methods.Group)}
    shown = "; ".join(f"{group}: {', '.join(own)}" for group, own in groups.items() if own)
    about = f"{command.METHOD_HELP} By group – {shown}."
    kinds = {
        "method": Annotated[str, tyro.conf.arg(metavar=names, help=about)],
        "methods": Annotated[tuple[str, ...], tyro.conf.arg(metavar=f"[{names} ...]", help=about)],
    }
    usual = command()  # plugins may have added to what is usual
    return [
        (f.name, kinds[f.name], getattr(usual, f.name)) for f in fields(command) if f.name in kinds
    ]


def _setting_flags(command: type[RunFlags], dataset: str) -> type[Any]:
    """A dataclass with a field for each setting of any method, None where no flag was given."""
    settings = lab_methods.all_settings()
    kinds = (command, Data, Model, Training, RunnerFlags)
    taken = {f.name for kind in kinds for f in fields(kind)}
    for setting in settings:
        if taken & {setting.name, plural(setting.name)}:
            raise UsageError(
                f"the setting {setting.name} of {_owners(setting.name)} has the name of another "
                "flag: register it under another name"
            )
    usual = {name: command.usual_settings(name, dataset) for name in lab_methods.all_methods()}
    flags = [_setting_flag(setting, usual) for setting in settings]
    kind = make_dataclass("Settings", flags, frozen=True)
    kind.__doc__ = "Settings of methods; each is for those that are named with it."
    return kind


def _setting_flag(
    setting: Setting, usual: Mapping[str, Mapping[str, float]]
) -> tuple[str, Any, None]:
    kind = _kind_of(setting.name)
    switch = kind is bool
    shown = tyro.conf.arg(
        metavar=None if switch else kind.__name__.upper(),
        help=f"{'; or '.join(_meanings(setting.name, switch))}.",
        help_behavior_hint=f"(default: {_defaults(setting.name, usual)})",
    )
    return setting.name, tyro.conf.DisallowNone[Annotated[kind | None, shown]], None


def _meanings(name: str, switch: bool) -> list[str]:
    """What a setting is, for its help: one name may mean something else to another method."""
    meant: dict[str, list[tuple[str, Setting]]] = {}
    for record in lab_methods.all_records():
        for setting in record.settings:
            if setting.name == name:
                meant.setdefault(setting.help, []).append((record.name, setting))
    shown: list[str] = []
    for about, found in meant.items():
        first = found[0][1]
        symbol = f"{first.symbol}, " if first.symbol else ""
        allowed = f"; {first.allowed}" if first.allowed and not switch else ""
        owners = _owners(name) if len(meant) == 1 else ", ".join(owner for owner, _ in found)
        shown.append(f"{symbol}{about}{allowed} ({owners})")
    return shown


def grids_class(names: Iterable[str]) -> type[Any]:
    """A dataclass with the values to try for each searched setting: ``--rhos``, ``--alphas``."""
    grids: dict[str, list[tuple[float, ...]]] = {}
    for name in names:
        for setting, values in lab_methods.searched(name).items():
            grids.setdefault(setting, []).append(values)
    kind = make_dataclass(
        "Grids",
        [(plural(name), _grid_flag(name, found), None) for name, found in grids.items()],
        frozen=True,
    )
    kind.__doc__ = "What to try; without, each method's own grid."
    return kind


def _grid_flag(setting: str, grids: list[tuple[float, ...]]) -> Any:
    several = " (and others)" if len(set(grids)) > 1 else ""
    kind = _kind_of(setting)
    shown = tyro.conf.arg(
        metavar="[{0} [{0} ...]]".format(kind.__name__.upper()),
        help=f"Values of {setting} to try.",
        help_behavior_hint=f"(default: {' '.join(f'{v:g}' for v in grids[0])}{several})",
    )
    return tyro.conf.DisallowNone[Annotated[tuple[kind, ...] | None, shown]]


def plural(setting: str) -> str:
    """The flag for several values of a setting.

    >>> plural("rho"), plural("radius")
    ('rhos', 'radiuses')
    """
    return f"{setting}es" if setting.endswith("s") else f"{setting}s"


def _kind_of(setting: str) -> type[Any]:
    """What a setting's values are: real where methods differ in it."""
    every = [s for record in lab_methods.all_records() for s in record.settings]
    defaults = [s.default for s in every if s.name == setting]
    kinds: set[type[Any]] = {float if d is None else type(d) for d in defaults}
    return kinds.pop() if len(kinds) == 1 else float


def _owners(setting: str) -> str:
    """The methods that have a setting, for its help."""
    having = {record.name: setting in record.defaults for record in lab_methods.all_records()}
    lacking = [name for name, has in having.items() if not has]
    if len(lacking) < 2:
        return "all" + "".join(f" but {name}" for name in lacking)
    return ", ".join(name for name, has in having.items() if has)


def _defaults(setting: str, usual: Mapping[str, Mapping[str, float]]) -> str:
    """A setting's default, and those of the methods that have another one."""
    found: dict[str, list[str]] = {}
    for name, settings in usual.items():
        if setting in settings:
            found.setdefault(_shown(settings[setting]), []).append(name)
    first, *others = found.items()
    more = [f"; {value} for {', '.join(names)}" for value, names in others]
    return first[0] + "".join(more)


def _shown(value: float | None) -> str:
    if value is None:
        return "not used"
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value:g}"
