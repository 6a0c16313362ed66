"""What an entry is made of: panels of rows, each row a method with its runs over seeds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aesam.lab.config import Run
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import is_own, label_of, methods_of
from aesam.paper.setups import Options, Setup

LONG = "erm-long"


@dataclass(frozen=True)
class Row:
    """One line of a table or one curve; ``method`` is what it is drawn as."""

    method: str
    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Panel:
    """Rows that are compared with each other; ``paper`` finds the paper's numbers for them."""

    title: str
    rows: tuple[Row, ...]
    paper: Mapping[str, Any] = field(default_factory=dict[str, Any])
    table: str | None = None
    notes: tuple[str, ...] = ()
    remark: str = ""  # on every verdict


def runs_of(panels: Iterable[Panel]) -> list[Run]:
    """Every run of the panels once."""
    every = (run for panel in panels for row in panel.rows for run in row.runs)
    return list(dict.fromkeys(every))


def seeds_of(options: Options, usual: int) -> tuple[int, ...]:
    """The seeds that were asked for; else the paper's number of them, three for small runs."""
    if options.seeds is not None:
        return options.seeds
    return tuple(range(3 if options.is_small else usual))


def only_seed(options: Options) -> int:
    """The one seed of an entry that is made from one run."""
    first, *more = options.seeds or (0,)
    if more:
        raise UsageError(f"--seeds takes one seed here, got {[first, *more]}")
    return first


def method_rows(setup: Setup, names: Iterable[str], seeds: Iterable[int]) -> list[Row]:
    """A row for each method with the setup's settings for it."""
    kept = tuple(seeds)
    return [
        Row(name, label_of(name), tuple(_run(setup, name, seed) for seed in kept)) for name in names
    ]


def _run(setup: Setup, name: str, seed: int) -> Run:
    return setup.run(name, seed) if name != LONG else longer(setup.run("erm", seed))


def longer(erm: Run) -> Run:
    """ERM for as many gradients as SAM takes, which is as much time: twice the epochs."""
    return replace(erm, training=replace(erm.training, epochs=2 * erm.training.epochs))


def names_with(options: Options, controls: bool) -> list[str]:
    """The paper's methods, and its controls where they are wanted."""
    wanted = controls if options.controls is None else options.controls
    return [*methods_of("paper"), *(control_names() if wanted else ())]


def control_names() -> list[str]:
    """What the paper's methods are set against: ERM for as long as SAM, and the library's controls.

    Those that only the lab has came after the tables were published.
    """
    return [LONG, *(name for name in methods_of("control") if not is_own(name))]
