"""``aesam tune``: good settings for each method, found on a held-out part of the training set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from aesam.lab import files, lab_methods, validation
from aesam.lab.cli.compare import check_all, finish, tell_failures
from aesam.lab.cli.console import command_line, console, is_given, say
from aesam.lab.cli.run_flags import RunFlags, RunnerFlags, grids_class, plural
from aesam.lab.config import Data
from aesam.lab.crew import Crew
from aesam.lab.data import data_record
from aesam.lab.data.data_records import Score
from aesam.lab.errors import UsageError
from aesam.lab.folders import folder_of
from aesam.lab.grid import Job, Outcome
from aesam.lab.method_search import MethodSearch, PlainGrid, Scored, scored
from aesam.lab.show import as_rich
from aesam.lab.show.search_curves import curve_svg, curves_sheet, in_words
from aesam.searching import Range

Search = MethodSearch | PlainGrid


@dataclass(frozen=True)
class Tune(RunFlags):
    """Search rho, alpha and what else a method has a grid for, never on the test set.

    The values of a setting are doubled and halved until the best one is inside them: rho first,
    then the others at the best rho, then rho around its best once more if they moved. All values
    are run with the first seed, those that do well with more. What counts is the accuracy, or on
    text the loss, on a held-out tenth of the training set. Shows the curves and the best settings,
    and writes tune.json and a figure for each setting. Finished runs are never run again: stopped,
    it goes on when it is typed again. The paper then repeats the training on all of the training
    set: use the settings with `aesam compare`.
    """

    data: Data = field(default_factory=lambda: Data(holdout=0.1))
    methods: tuple[str, ...] = field(
        default_factory=lambda: tuple(
            name for name in lab_methods.methods_of("paper") if lab_methods.searched(name)
        )
    )
    """What to search for."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """All values are run with the first, the best and its neighbours with all; the mean counts."""
    noise: float = 0.0
    """Share of the training labels that are wrong; those held out are right."""
    limit: int = 6
    """How many values may be added to those that each setting starts from."""
    fine: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Try values between the best and its neighbours, too, once the best is inside."""
    plain_grid: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Run every combination of the values with every seed and nothing else, as in the paper."""
    out: Path = Path("runs/tune")
    """Where the runs, tune.json and the figures go."""
    grids: tyro.conf.Suppress[Any] = None  # --rhos, --alphas, …: see `more_flags`
    runner: RunnerFlags = field(default_factory=RunnerFlags)

    METHOD_HELP: ClassVar[str] = "What to search for."

    @classmethod
    def more_flags(cls) -> list[tuple[str, Any, Any]]:
        kind = grids_class(lab_methods.all_methods())
        return [("grids", kind, kind())]

    def __call__(self) -> int:
        self._check()
        searches = [self.search_of(method) for method in dict.fromkeys(self.methods)]
        jobs = [job for search in searches for job in search.starting_jobs()]
        check_all(jobs, self.runner, self.out)
        with Crew() as crew:
            outcomes = self._finish(searches, crew)
        self._write(searches)
        return tell_failures(outcomes)

    def _check(self) -> None:
        grids = {f.name: getattr(self.grids, f.name) for f in fields(self.grids)}
        if not (self.methods and self.seeds) or () in grids.values():
            named = ", ".join(("methods", "seeds", *grids))
            raise UsageError(f"{named} must each name at least one")
        validation.check_whole(validation.OF_A_SEARCH, vars(self))
        for flag in ("--limit", "--fine"):
            if self.plain_grid and is_given(flag):
                raise UsageError(
                    f"a plain grid has no values added: leave out {flag} or --plain-grid"
                )
        if not self.data.holdout > 0.0:
            raise UsageError(f"holdout must be above 0 to tune on, got {self.data.holdout}")
        searched = {plural(s) for name in self.methods for s in lab_methods.searched(name)}
        foreign = [name for name, values in grids.items() if values and name not in searched]
        if foreign:
            raise UsageError(f"none of these methods is searched for {' or '.join(foreign)}")
        self.refuse_settings_of_none(self.methods)
        for name in self.given_settings():
            if plural(name) in grids:
                raise UsageError(f"tune searches {name}: give --{plural(name)}")

    def search_of(self, method: str) -> Search:
        """The search of one method, before its first run."""
        usual = self.run(method, self.seeds[0], self.noise, strict=False)

        def make_job(settings: Mapping[str, float], seed: int) -> Job:
            chosen = lab_methods.fill(usual.method.but(**settings))
            run = replace(usual, method=chosen, seed=seed)
            return Job(run, folder_of(run, self.out))

        ranges, seeds = (
            self._ranges(method, usual.method.settings),
            tuple(dict.fromkeys(self.seeds)),
        )
        score = data_record(self.data.name).score
        if self.plain_grid:
            return PlainGrid(method, ranges, seeds=seeds, make_job=make_job, score=score)
        return MethodSearch(
            method, ranges, seeds=seeds, limit=self.limit, make_job=make_job, score=score
        )

    def _ranges(self, method: str, usual: Mapping[str, float]) -> list[Range]:
        """The settings that the method's record says are searched, in its order."""
        ranges: list[Range] = []
        for setting in lab_methods.record_of(method).settings:
            if setting.grid and setting.default is not None:
                start = getattr(self.grids, plural(setting.name)) or setting.grid
                try:
                    own = setting.range_from(start, usual.get(setting.name, setting.default))
                except (TypeError, ValueError) as error:
                    raise UsageError(f"{method}: {error}") from None
                ranges.append(replace(own, is_fine=self.fine))
        if not ranges:
            known = [name for name in lab_methods.all_methods() if lab_methods.searched(name)]
            raise UsageError(f"{method} has nothing to search: take of {', '.join(known)}")
        return ranges

    def _finish(self, searches: Sequence[Search], crew: Crew) -> list[Outcome]:
        """Round by round, with the runs of all methods side by side."""
        outcomes: list[Outcome] = []
        number = 0
        while jobs := [job for search in searches for job in search.jobs]:
            number += 1
            if not self.runner.quiet:
                asked = "; ".join(str(search) for search in searches if search.jobs)
                say(f"round {number}: {asked}: {len(jobs)} run{'s' * (len(jobs) > 1)}")
            ended = finish(jobs, self.runner, crew)
            outcomes += ended
            failed = {outcome.job.folder for outcome in ended if outcome.error is not None}
            for search in searches:
                search.go_on(failed)
        return outcomes

    def _write(self, searches: Sequence[Search]) -> None:
        found = as_json(searches)
        about = {"command": command_line(), "search": "grid" if self.plain_grid else "widening"}
        files.write_json(self.out / "tune.json", files.without_nan({**about, **found}))
        written = [self.out / "tune.json"]
        for setting in dict.fromkeys(c["setting"] for m in found["methods"] for c in m["curves"]):
            written.append(self.out / f"tune-{setting}.svg")
            files.write_text(written[-1], curve_svg(found["methods"], setting) + "\n")
        console.print(as_rich(curves_sheet(found["methods"]), console.width))
        for method in found["methods"]:
            for line in in_words(method, found["rows"]):
                say(line)
        say(f"written: {', '.join(map(str, written))}")


def as_json(searches: Sequence[Search]) -> dict[str, Any]:
    """Everything that was tried and what came of it, as plain values.

    ``rows`` has every method with its settings, the chosen first, then by accuracy or loss; where
    one of its runs diverged, a setting comes after those where none did.
    """
    rows = [row for search in searches for row in _rows(search)]
    methods = [
        {
            "method": search.method,
            "chosen": search.chosen,
            "at_edge": search.at_edge,
            "notes": search.notes,
            "curves": [
                {
                    "setting": curve.setting,
                    "at": dict(curve.at),
                    "points": [
                        {"value": v, **_numbers(one, search.score)}
                        for v, one in curve.points.items()
                    ],
                }
                for curve in search.curves()
            ],
        }
        for search in searches
    ]
    return {"methods": methods, "rows": rows}


def _rows(search: Search) -> list[dict[str, Any]]:
    chosen = search.chosen
    rows = [
        {
            "method": one.method.name,
            "settings": one.method.settings,
            **_numbers(one, search.score),
            "rung": search.rung_of(one.n),
            "best": chosen is not None and chosen.items() <= one.method.settings.items(),
        }
        for one in scored(search.done, search.score)
    ]
    name, sign = f"validation_{search.score}", 1 if search.score == "loss" else -1
    return sorted(rows, key=lambda r: (not r["best"], r["diverged"] > 0, sign * r[name]))


def _numbers(one: Scored, score: Score) -> dict[str, Any]:
    return {
        f"validation_{score}": one.score,
        "std": one.std,
        "n": one.n,
        "diverged": one.diverged,
    }
