"""Which runs belong together: comparisons, the settings of a method, and similar shares of SAM."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from aesam.lab.config import CIRCUMSTANCES
from aesam.lab.errors import UsageError
from aesam.lab.lab_methods import label_of, order_of
from aesam.lab.show import wording
from aesam.lab.show.finished_runs import FinishedRun

ANCHORS = (0.0, 20.0, 50.0, 100.0)  # the paper's groups of % SAM
REACH = 10.0  # points of % SAM


def shared_settings(run: FinishedRun) -> dict[str, Any]:
    """What runs of one comparison have in common: all but method, seed and circumstances."""
    shared = {k: v for k, v in run.config.items() if k not in ("method", "seed")}
    for section in ("data", "training"):
        own = run.config[section].items()
        shared[section] = {k: v for k, v in own if (section, k) not in CIRCUMSTANCES}
    return shared


def method_settings(run: FinishedRun) -> dict[str, Any]:
    """The method's own settings, without its name and without what it lacks."""
    own = run.config["method"].items()
    return {k: v for k, v in own if k != "name" and v is not None}


def comparable(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """Runs that differ only in method and seed, together; by data set, model and noise."""
    groups = _split(runs, lambda run: _canonical(shared_settings(run)))

    def order(group: list[FinishedRun]) -> tuple[str, str, tuple[int, float, str], str]:
        config = group[0].config
        noise = config["data"].get("noise")
        key = _canonical(shared_settings(group[0]))
        return (
            str(config["data"].get("name")),
            str(config["model"].get("name")),
            _sortable(noise),
            key,
        )

    return sorted(groups, key=order)


def variants(runs: Sequence[FinishedRun]) -> list[tuple[str, list[FinishedRun]]]:
    """The runs of each method and setting with their label, in the paper's order of methods.

    A method with one setting is called by its name; with several, each label has the settings in
    which they differ.
    """
    labelled: list[tuple[str, list[FinishedRun]]] = []
    for method in sorted({run.method for run in runs}, key=order_of):
        own = [run for run in runs if run.method == method]
        groups = _split(own, lambda run: _canonical(method_settings(run)))
        settings = [method_settings(group[0]) for group in groups]
        differing = differences(settings)
        order = sorted(
            range(len(groups)), key=lambda i: [_sortable(settings[i].get(k)) for k in differing]
        )
        labelled += [(_label(method, settings[i], differing), _by_seed(groups[i])) for i in order]
    return labelled


def differences(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not the same everywhere."""
    names = list(dict.fromkeys(name for each in settings for name in each))
    return [n for n in names if len({_canonical(each.get(n)) for each in settings}) > 1]


def by_percent_sam(shares: Sequence[float]) -> list[list[int]]:
    """Indices of similar mean % SAM together: first ERM's group, then from much SAM to little.

    A share within ten points of 0, 20, 50 or 100 belongs there, to the nearest; the others are
    together when they are within ten points of the lowest of them.

    >>> by_percent_sam([0.0, 100.0, 49.8, 20.0, 51.0, 75.0, 19.1])
    [[0], [1], [5], [2, 4], [3, 6]]
    """
    groups: dict[float, list[int]] = {}
    start = float("-inf")
    for index in sorted(range(len(shares)), key=lambda i: shares[i]):
        share = shares[index]
        anchor = min(ANCHORS, key=lambda a: abs(a - share))
        if abs(anchor - share) <= REACH:
            groups.setdefault(anchor, []).append(index)
            continue
        if share - start > REACH:
            start = share
        groups.setdefault(start, []).append(index)
    order = sorted(groups, key=lambda place: (place > 0, -place))
    return [sorted(groups[place]) for place in order]


def title_of(shared: Mapping[str, Any]) -> str:
    """A comparison's name: data set, model and noise level."""
    data = shared["data"]
    names = wording.printable(data.get("name")), wording.printable(shared["model"].get("name"))
    return " · ".join((*names, wording.noise(data.get("noise"))))


def titles_of(shared: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each comparison; those of the same name get the settings in which they differ."""
    names = [title_of(each) for each in shared]
    flat = [_flat(each) for each in shared]
    titles: list[str] = []
    for name, own in zip(names, flat, strict=True):
        alike = [f for n, f in zip(names, flat, strict=True) if n == name]
        more = [wording.setting(k.rpartition(".")[2], own.get(k)) for k in differences(alike)]
        titles.append(" · ".join((name, *more)))
    return titles


def _label(method: str, settings: Mapping[str, Any], differing: Sequence[str]) -> str:
    shown = ", ".join(wording.setting(name, settings.get(name)) for name in differing)
    return f"{label_of(method)} ({shown})" if shown else label_of(method)


def _by_seed(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs in the order of their seeds; a seed that is there twice would count double."""
    seen: dict[int, FinishedRun] = {}
    for run in runs:
        if run.seed in seen:
            raise UsageError(
                f"{str(run.folder)!r} and {str(seen[run.seed].folder)!r} are the same run "
                f"({run.method}, seed {run.seed}): report one of them, or it counts twice"
            )
        seen[run.seed] = run
    return [seen[seed] for seed in sorted(seen)]


def _split(
    runs: Sequence[FinishedRun], key: Callable[[FinishedRun], str]
) -> list[list[FinishedRun]]:
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _sortable(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return 1, float(value), ""
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))
