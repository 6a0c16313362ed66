"""The radius and the weight of each method, chosen on a tenth of the training set as in the paper.

The training is then repeated on all of it; the test set is never looked at.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aesam.lab.config import Run
from aesam.lab.folders import RunFolder
from aesam.lab.lab_methods import all_settings, lab_method, searched
from aesam.lab.summaries import is_diverged
from aesam.paper.finished import Find
from aesam.paper.setups import Setup
from aesam.registry import list_methods, method_record

SEED = 0
HOLDOUT = 0.1


def grid(setup: Setup, method: str) -> list[Run]:
    """The runs to choose from: every combination of what the method's record says to try.

    What the setup fixes (ImageNet's radius) is not searched.
    """
    points: list[dict[str, Any]] = [{}]
    for name, values in searched(method).items():
        if name not in setup.fixed:
            points = [{**point, name: value} for point in points for value in values]
    runs = [setup.run(method, SEED, **point) for point in points]
    return [replace(run, data=replace(run.data, holdout=HOLDOUT)) for run in runs]


def grids(setup: Setup, names: Iterable[str]) -> list[Run]:
    """All runs of the search; methods with nothing to choose need none."""
    found = (grid(setup, name) for name in _searched(names))
    return [run for runs in found if len(runs) > 1 for run in runs]


def chosen(setup: Setup, names: Iterable[str], find: Find) -> Setup:
    """The setup with each method's best radius and weight; a control takes its model's."""
    own = _searched(names)
    best = {name: _best(grid(setup, name), find) for name in own}
    for name in list_methods():
        lent = best.get(lab_method(name).borrows or "")
        if lent:
            best[name] = {k: v for k, v in lent.items() if k in method_record(name).defaults}
    how = _how(setup, grids(setup, own), find)
    k = setup.run("looksam", SEED).method.get("k")
    chosen_at_k = setup.chosen_at_k if k is None else int(k)
    return replace(setup.with_settings(best), how_chosen=how, chosen_at_k=chosen_at_k)


def _how(setup: Setup, runs: Sequence[Run], find: Find) -> str:
    """What was chosen and on how little, after what the setup says of a setting it fixes."""
    tried = {name for run in runs for name in searched(run.method.name)} - set(setup.fixed)
    what = " and ".join(s.symbol for s in all_settings() if s.name in tried)
    of = setup.base.data.subset
    size = "" if of is None else f" ({round(HOLDOUT * of)} images, so ties are many)"
    how = (
        f"{what} from the paper's grids by one run (seed {SEED}) on a held-out tenth of the "
        f"training set with clean labels{size}; of equal ones the first"
    )
    there = sum(find(run) is not None for run in runs)
    unfinished = f"; the search is not finished: {there} of its {len(runs)} runs are"
    before = f"{setup.how_chosen} " if setup.fixed else ""
    return f"{before}{how}{unfinished if there < len(runs) else ''}."


def _searched(names: Iterable[str]) -> list[str]:
    """The methods whose settings are searched: a control's are its model's."""
    lenders = (lab_method(name).borrows or name for name in names)
    return [n for n in dict.fromkeys(lenders) if n in list_methods() and searched(n)]


def _best(runs: Sequence[Run], find: Find) -> dict[str, Any]:
    finished = [(run, folder) for run in runs if (folder := find(run)) is not None]
    if not finished:
        return {}
    scored = [(_score(RunFolder(folder).read_summary(run)), run) for run, folder in finished]
    _, best = max(scored, key=lambda pair: pair[0])
    return {name: best.method.settings[name] for name in searched(best.method.name)}


def _score(summary: Mapping[str, Any]) -> tuple[bool, float]:
    """Settings that diverged come after those that did not, whatever their accuracy is."""
    return not is_diverged(summary), summary["validation_accuracy"]
