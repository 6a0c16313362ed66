"""The paper's tables: ours beside the paper's, grouped by % SAM, with the claims judged."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from aesam.lab.show import Comparison, MethodRow, wording
from aesam.lab.show.comparison_tables import against, p_against
from aesam.lab.show.report_files import as_json
from aesam.lab.show.table import Line, Sheet
from aesam.paper import claims, paper_numbers
from aesam.paper.claims import Claim, Verdict
from aesam.paper.finished import Find, comparison_for
from aesam.paper.outcome import Result
from aesam.paper.plan import Panel, Row, control_names, method_rows, names_with, seeds_of
from aesam.paper.setups import Options, Setup, data_label, model_label

COLUMNS = (
    "method", "here: accuracy", "n", "bootstrap interval", "here: % SAM", "grads /step", "p vs SAM",
    "p vs baseline", "paper: accuracy", "paper: % SAM",
)  # fmt: skip
SPARE = ("grads /step", "n", "bootstrap interval", "p vs SAM", "p vs baseline", "paper: % SAM")
COST_CAPTION = (
    "Up is better, left is cheaper. Bars are one standard deviation over seeds. In seconds: "
    "aesam reproduce cost."
)
SHOWN = ("rho", "alpha", "k", "p", "lambda1", "lambda2", "beta", "gamma")
KS = (2, 3, 4, 5)
FEW = 3  # seeds whose bootstrap interval is their range


def cifar_panels(options: Options, found: Sequence[Setup]) -> list[Panel]:
    names, seeds = names_with(options, controls=False), seeds_of(options, 5)
    return [_panel(b, method_rows(b, names, seeds), "cifar", dataset=b.paper_data) for b in found]


def imagenet_panels(options: Options, found: Sequence[Setup]) -> list[Panel]:
    names, seeds = names_with(options, controls=False), seeds_of(options, 3)
    return [_panel(b, method_rows(b, names, seeds), "imagenet", dataset="imagenet") for b in found]


def noise_panels(options: Options, found: Sequence[Setup]) -> list[Panel]:
    names, seeds = names_with(options, controls=True), seeds_of(options, 5)
    return [
        _panel(b, method_rows(b, names, seeds), "label-noise", dataset="cifar10", noise=b.noise)
        for b in found
    ]


def looksam_k_panels(options: Options, found: Sequence[Setup]) -> list[Panel]:
    seeds = seeds_of(options, 5)
    controls = control_names() if options.controls else ()
    return [
        replace(
            _panel(b, _k_rows(b, seeds, controls), "looksam-k", dataset="cifar10", noise=b.noise),
            remark=f"the same ρ and α for every k, chosen at k = {b.chosen_at_k}",
        )
        for b in found
    ]


def _k_rows(setup: Setup, seeds: Sequence[int], controls: Sequence[str]) -> list[Row]:
    return [*(_with_k(setup, k, seeds) for k in KS), *method_rows(setup, controls, seeds)]


def _with_k(setup: Setup, k: int, seeds: Iterable[int]) -> Row:
    runs = tuple(setup.run("looksam", seed, k=k) for seed in seeds)
    return Row("looksam", f"LookSAM (k = {k})", runs)


def _panel(setup: Setup, rows: Sequence[Row], table: str, **paper: Any) -> Panel:
    notes = (*_settings_of(setup, rows), setup.how_chosen)
    where = {"model": setup.paper_model, **paper}
    return Panel(setup.title, tuple(rows), where, table, tuple(n for n in notes if n))


def _settings_of(setup: Setup, rows: Sequence[Row]) -> list[str]:
    """The settings of each row that has any, in one sentence."""
    shown = [
        f"{row.label} {wording.settings(own)}"
        for row in rows
        for own in [{n: row.runs[0].method.get(n) for n in SHOWN}]
        if any(value is not None for value in own.values())
    ]
    return [f"Settings, {setup.title}: {'; '.join(shown)}."] if shown else []


def show(panels: Sequence[Panel], find: Find, claimed: Sequence[Claim]) -> Result:
    """Tables, and verdicts on what the paper claims and on the controls."""
    every = (*claimed, *claims.CONTROL_CLAIMS)
    return _show(panels, find, lambda found: claims.judge(found, every))


def show_k(panels: Sequence[Panel], find: Find) -> Result:
    """LookSAM's k: the paper says that two is best."""
    return _show(panels, find, best_k)


def _show(
    panels: Sequence[Panel], find: Find, judge: Callable[[Comparison], list[Verdict]]
) -> Result:
    """Tables and verdicts of the panels that have finished runs."""
    found = [(panel, comparison_for(panel, find)) for panel in panels]
    there = [(panel, comparison) for panel, comparison in found if comparison is not None]
    verdicts = [
        replace(verdict, remark="; ".join(r for r in (verdict.remark, panel.remark) if r))
        for panel, comparison in there
        for verdict in judge(comparison)
    ]
    comparisons = [comparison for _, comparison in there]
    return Result(
        sheets=[sheet_of(panel, comparison) for panel, comparison in there],
        drawings=_drawings(comparisons),
        verdicts=verdicts,
        notes=_notes(panels),
        data={
            "comparisons": as_json(comparisons, "")["comparisons"],
            "verdicts": [verdict.as_json() for verdict in verdicts],
            "paper": [_papers(panel, comparison) for panel, comparison in there],
        },
        runs=[run for comparison in comparisons for row in comparison.rows for run in row.runs],
    )


def _drawings(comparisons: Sequence[Comparison]) -> list[Any]:
    from aesam.lab.show.canvas import Drawing
    from aesam.lab.show.tradeoff import accuracy_against_cost

    return [
        Drawing(
            f"cost-{i}",
            f"Accuracy against cost: {comparison.title}",
            COST_CAPTION,
            accuracy_against_cost(comparison, f"cost-{i}", times=False),
        )
        for i, comparison in enumerate(comparisons, 1)
    ]


def sheet_of(panel: Panel, comparison: Comparison) -> Sheet:
    """One panel as a table, ours beside the paper's."""
    several = all(row.n > 1 for row in comparison.rows)  # one seed has no winner
    groups = tuple(
        tuple(_line(panel, row, several) for row in group) for group in comparison.groups if group
    )
    return Sheet(panel.title, COLUMNS, groups, _caption(panel, comparison), spare=SPARE)


def _line(panel: Panel, row: MethodRow, marks: bool) -> Line:
    paper = paper_of(panel, row)
    interval = row.accuracy.interval
    cells = (
        row.label,
        wording.plus_minus(row.accuracy, 2),
        str(row.n),
        f"{interval[0]:.1f}–{interval[1]:.1f}" if interval else wording.NOTHING,
        wording.plus_minus(row.percent_sam, 1),
        f"{row.gradients_per_step:.2f}",
        p_against(row.against_sam),
        against(row.against_baseline),
        paper.shown() if paper else wording.NOTHING,
        f"{paper.percent_sam:.1f}" if paper else wording.NOTHING,
    )
    return Line(cells, marks and row.best_overall, marks and row.best_in_group)


def paper_of(panel: Panel, row: MethodRow) -> paper_numbers.PaperNumber | None:
    """What the paper reports where our row stands."""
    where = {"method": row.method, **panel.paper}
    if panel.table == "looksam-k":
        where["k"] = row.settings.get("k")
    return paper_numbers.find(panel.table, **where) if panel.table else None


def _caption(panel: Panel, comparison: Comparison) -> str:
    epochs = comparison.settings["training"]["epochs"]
    here = (
        f"Here: {panel.title}, {epochs} epochs, {comparison.measured_on} accuracy, "
        f"{_over_seeds(comparison)}"
    )
    n = 3 if panel.table == "imagenet" else 5
    model, data = model_label(panel.paper["model"]), data_label(panel.paper["dataset"])
    paper = f"Paper: {model} on {data}, n = {n}"
    baselines = (
        "p: two-sided paired t-test by seed, uncorrected for their number, against SAM and against "
        "the row's own baseline (of AE-SAM SS-SAM, of AE-LookSAM LookSAM, of a coin or inverted "
        "what it is set against, else ERM)"
    )
    return f"{here}. {paper}. {baselines}."


def _over_seeds(comparison: Comparison) -> str:
    seeds, most = comparison.seeds, max(row.n for row in comparison.rows)
    if most == 1:
        named = wording.whole_numbers(seeds)
        return f"n = 1 run of each, so nothing can be tested; seed ({named})"
    few = f", which with {most} seeds is no more than their range" if most <= FEW else ""
    return (
        f"mean ± standard deviation over n = {comparison.n} seeds ({wording.whole_numbers(seeds)})"
        f"; bootstrap intervals of the mean are by percentiles at 95 %{few}"
    )


def _notes(panels: Sequence[Panel]) -> list[str]:
    """What a reader must know before comparing anything."""
    small = [p for p in panels if not p.paper["model"].startswith(p.rows[0].runs[0].model.name)]
    notes = [note for panel in panels for note in panel.notes]
    if small:
        notes.append(
            "Here and in the paper are other networks, data and epochs: accuracies are not to be "
            "compared across, the order of the methods is."
        )
    if any(panel.paper["model"] == "resnet32" for panel in panels):
        notes.append(
            "ResNet-32 is the CIFAR one with 0.46 M parameters; the paper's numbers for it are "
            "more plausible for ResNet-34, which is there too (aesam train --model resnet34)."
        )
    return list(dict.fromkeys(notes))


def _papers(panel: Panel, comparison: Comparison) -> dict[str, Any]:
    rows = {row.label: paper_of(panel, row) for row in comparison.rows}
    shown = {label: vars(number) if number else None for label, number in rows.items()}
    return {"title": panel.title, "of": dict(panel.paper), "rows": shown}


def best_k(comparison: Comparison) -> list[Verdict]:
    """K = 2 against the best other k, by the same test as every other claim."""
    looksam = [row for row in comparison.rows if row.method == "looksam"]
    two = [row for row in looksam if row.settings["k"] == KS[0]]
    others = [row for row in looksam if row.settings["k"] != KS[0]]
    if not two or not others:
        return []
    best = max(others, key=lambda row: row.accuracy.mean)
    verdict = claims.compare_rows(two[0], best, Claim("", ""), comparison.title)
    return [verdict] if verdict else []
