"""The paper's tables: ours beside the paper's, grouped by % SAM, with the claims judged."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from aesam.lab.report import Comparison, MethodRow, paired_t_test, wording
from aesam.lab.report.results import as_json
from aesam.lab.report.tables import against, missing, p_against
from aesam.lab.reproduce import claims, paper_numbers
from aesam.lab.reproduce.benches import Bench, Options
from aesam.lab.reproduce.claims import Claim, Verdict
from aesam.lab.reproduce.finished import Find, comparison_for
from aesam.lab.reproduce.plan import Panel, Row, method_rows, names_with, seeds_of
from aesam.lab.reproduce.results import Result
from aesam.lab.reproduce.sheet import Line, Sheet

COLUMNS = (
    "method", "here: accuracy", "95 % interval", "here: % SAM", "grads /step", "p vs SAM",
    "p vs baseline", "paper: accuracy", "paper: % SAM",
)  # fmt: skip
COST_CAPTION = (
    "Up is better, left is cheaper. Bars are one standard deviation over seeds. In seconds: "
    "aesam reproduce cost."
)
KS = (2, 3, 4, 5)


def cifar_panels(options: Options, found: Sequence[Bench]) -> list[Panel]:
    names, seeds = names_with(options, controls=False), seeds_of(options, 5)
    return [_panel(b, method_rows(b, names, seeds), "cifar", dataset=b.paper_data) for b in found]


def imagenet_panels(options: Options, found: Sequence[Bench]) -> list[Panel]:
    names, seeds = names_with(options, controls=False), seeds_of(options, 3)
    return [_panel(b, method_rows(b, names, seeds), "imagenet", dataset="imagenet") for b in found]


def noise_panels(options: Options, found: Sequence[Bench]) -> list[Panel]:
    names, seeds = names_with(options, controls=True), seeds_of(options, 5)
    return [
        _panel(b, method_rows(b, names, seeds), "label-noise", dataset="cifar10", noise=b.noise)
        for b in found
    ]


def looksam_k_panels(options: Options, found: Sequence[Bench]) -> list[Panel]:
    """The paper's first network only: its table has no other."""
    seeds, model = seeds_of(options, 5), found[0].base.model
    return [
        _panel(b, [_with_k(b, k, seeds) for k in KS], "looksam-k", dataset="cifar10", noise=b.noise)
        for b in found
        if b.base.model == model
    ]


def _with_k(bench: Bench, k: int, seeds: Iterable[int]) -> Row:
    runs = tuple(bench.run("looksam", seed, k=k) for seed in seeds)
    return Row("looksam", f"LookSAM (k = {k})", runs)


def _panel(bench: Bench, rows: Sequence[Row], table: str, **paper: Any) -> Panel:
    return Panel(bench.title, tuple(rows), {"model": bench.paper_model, **paper}, table)


def show(panels: Sequence[Panel], find: Find, claimed: Sequence[Claim]) -> Result:
    """Tables and verdicts of the panels that have finished runs."""
    found = [(panel, comparison_for(panel, find)) for panel in panels]
    there = [(panel, comparison) for panel, comparison in found if comparison is not None]
    verdicts = [v for _, c in there for v in claims.judge(c, (*claimed, *claims.CONTROLS))]
    comparisons = [comparison for _, comparison in there]
    return Result(
        sheets=[sheet_of(panel, comparison) for panel, comparison in there],
        drawings=_drawings(comparisons),
        findings=[verdict.sentence() for verdict in verdicts],
        notes=[_stands_for(panels[0])] if panels else [],
        data={
            "comparisons": as_json(comparisons, "")["comparisons"],
            "verdicts": [_verdict(v) for v in verdicts],
            "paper": [_papers(panel, comparison) for panel, comparison in there],
        },
        runs=[run for comparison in comparisons for row in comparison.rows for run in row.runs],
    )


def _drawings(comparisons: Sequence[Comparison]) -> list[Any]:
    from aesam.lab.report.figures import Drawing, accuracy_against_cost

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
    groups = tuple(
        tuple(_line(panel, row) for row in group) for group in comparison.groups if group
    )
    return Sheet(panel.title, COLUMNS, groups, _caption(panel, comparison))


def _line(panel: Panel, row: MethodRow) -> Line:
    paper = paper_of(panel, row)
    interval = row.accuracy.interval
    cells = (
        row.label,
        wording.plus_minus(row.accuracy, 2),
        f"{interval[0]:.1f}–{interval[1]:.1f}" if interval else wording.NOTHING,
        wording.plus_minus(row.percent_sam, 1),
        f"{row.gradients_per_step:.2f}",
        p_against(row.against_sam),
        against(row.against_baseline),
        paper.shown() if paper else wording.NOTHING,
        f"{paper.percent_sam:.1f}" if paper else wording.NOTHING,
    )
    return Line(cells, row.best_overall, row.best_in_group)


def paper_of(panel: Panel, row: MethodRow) -> paper_numbers.PaperNumber | None:
    """What the paper reports where our row stands."""
    where = {"method": row.method, **panel.paper}
    if panel.table == "looksam-k":
        where["k"] = row.settings["k"]
    return paper_numbers.find(panel.table, **where) if panel.table else None


def _caption(panel: Panel, comparison: Comparison) -> str:
    seeds = comparison.seeds
    over = f"mean ± standard deviation over n = {len(seeds)} seeds"
    over = over if len(seeds) > 1 else "n = 1 run of each, so nothing can be tested; seed"
    here = (
        f"Here: {panel.title}, {comparison.measured_on} accuracy, {over} "
        f"({wording.whole_numbers(seeds)}), percentile bootstrap intervals"
    )
    gone = "; ".join(missing(comparison))
    paper = f"Paper: {panel.paper['model']} on {panel.paper['dataset']}"
    baselines = (
        "p: two-sided paired t-test by seed, against SAM and against the row's own baseline "
        "(of AE-SAM SS-SAM, of AE-LookSAM LookSAM, of a control what it controls, else ERM)"
    )
    return f"{here}{'; ' + gone if gone else ''}. {paper}. {baselines}."


def _stands_for(panel: Panel) -> str:
    return (
        "The columns “paper” are other networks, more data and more epochs unless the preset is "
        f"paper: “{panel.title}” is not what the paper trained, and accuracies are not to be "
        "compared across; the order of the methods is."
    )


def _papers(panel: Panel, comparison: Comparison) -> dict[str, Any]:
    rows = {row.label: paper_of(panel, row) for row in comparison.rows}
    shown = {label: vars(number) if number else None for label, number in rows.items()}
    return {"title": panel.title, "of": dict(panel.paper), "rows": shown}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "where": verdict.where,
        "claim": f"{verdict.claim.better} / {verdict.claim.worse}",
        "word": verdict.word,
        "difference": verdict.difference,
        "interval_95": list(verdict.interval),
        "p_value": verdict.p_value,
        "n": verdict.n,
    }


def show_k(panels: Sequence[Panel], find: Find) -> Result:
    """LookSAM's k: which one is best at each level; the paper says two."""
    result = show(panels, find, ())
    comparisons = [c for panel in panels if (c := comparison_for(panel, find)) is not None]
    return replace(result, findings=[_best_k(comparison) for comparison in comparisons])


def _best_k(comparison: Comparison) -> str:
    best, two = comparison.best, next(r for r in comparison.rows if r.settings["k"] == KS[0])
    test = paired_t_test(best.accuracies, two.accuracies)
    if best is two:
        return f"{comparison.title}: “k = 2 is best” holds here ({best.accuracy.mean:.2f} %)."
    p = f", p = {test.p_value:.3f}, n = {test.n}" if test else ""
    return (
        f"{comparison.title}: “k = 2 is best” does not hold here: {best.label} has "
        f"{best.accuracy.mean:.2f} % against {two.accuracy.mean:.2f} %{p}."
    )
