"""Puts measured numbers and the records of methods into README and docs, after their markers.

    python benchmarks/pages.py

A test calls :func:`tables` and :func:`filled`, and refuses pages that are out of step.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import torch

from aesam import SAM, MethodRecord, list_methods, method_record
from aesam.evidence import choosing, tested_claims, verdict
from aesam.evidence.benches import BENCHES, FRESH_SEEDS
from aesam.evidence.contenders import CONTENDERS, FINALISTS, SHARES
from aesam.evidence.frontier_page import label_of_row, sheet_of, shown_difference
from aesam.evidence.results import published
from aesam.evidence.settings import ranges_of
from aesam.lab.data import data_record, list_data_sets
from aesam.lab.lab_methods import all_methods, is_own, lab_method, label_of, record_of
from aesam.lab.models import list_models, model_help
from aesam.lab.own_methods import own_method

ROOT = Path(__file__).parents[1]
FRONTIER = ROOT / "results/frontier"
IMAGES = ROOT / "docs/images"


def read(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / name).read_text())


def step_overhead() -> str:
    heads = ["shapes of", "SGD step", "extra of a SAM step", "as a share of pytorch_optimizer's"]
    rows = _head(*heads, "extra of a skipped AE-SAM step, as a share of the SGD step")
    for name, found in read("step_overhead.json")["results"].items():
        ms, ratios = found["milliseconds"], found["ratios"]
        rows.append(
            f"| {name} | {ms['sgd']:.1f} ms | {ms['sam'] - ms['sgd']:.1f} ms "
            f"| {ratios['sam_over_theirs']:.2f} | {ratios['skipped_over_sgd']:.2f} |"
        )
    return "\n".join(rows)


def demo() -> str:
    (comparison,) = read("demo/results.json")["comparisons"]
    accuracy = f"{comparison['measured_on']} accuracy, % (n = {len(comparison['seeds'])})"
    heads = ["method", accuracy, "in training", "% SAM", "gradients per step", "time, × ERM"]
    rows = _head(*heads, "p against SAM", "p against its baseline")
    for row in comparison["rows"]:
        found = f"{row['accuracy']['mean']:.1f} ± {row['accuracy']['std']:.1f}"
        marked = f"**{found}**" if row["best_overall"] else found
        rows.append(
            f"| {row['label']} | {marked} | {row['train_accuracy']['mean']:.0f} "
            f"| {row['percent_sam']['mean']:.0f} | {row['gradients_per_step']:.2f} "
            f"| {row['times_erm']['mean']:.2f} | {_p(row['against_sam'])} "
            f"| {_p(row['against_baseline'])} |"
        )
    return "\n".join(rows)


def _head(*cells: str) -> list[str]:
    return [f"| {' | '.join(cells)} |", "|---" * len(cells) + "|"]


def _p(against: dict[str, Any] | None) -> str:
    if against is None or against["p_value"] is None:
        return "–"
    named = "" if against["label"] == "SAM" else f" ({against['label']})"
    p = against["p_value"]
    return f"{p:.3f}{named}" if p >= 0.001 else f"<0.001{named}"


def lab_overhead() -> str:
    heads = ["", "lab's ERM ÷ bare loop", "SAM ÷ 2 ERM", "AE-SAM ÷ (1 + share) ERM"]
    rows = _head(*heads, "AE-LookSAM ÷ (1 + share) ERM")
    for name, found in read("lab_overhead.json")["results"].items():
        methods = [found[m]["over_share_of_erm"] for m in ("sam", "ae-sam", "ae-looksam")]
        ratios = " | ".join(f"{r:.2f}" for r in methods)
        rows.append(f"| {name} | {found['erm']['over_bare']:.2f} | {ratios} |")
    return "\n".join(rows)


def noise(name: str) -> str:
    """The headline: 60 % label noise, ours beside the paper's."""
    found = read(f"{name}/results.json")
    (place,) = [i for i, p in enumerate(found["paper"]) if p["of"]["noise"] == 0.6]
    comparison, paper = found["comparisons"][place], found["paper"][place]["rows"]
    heads = ["method", "n", f"here: {comparison['measured_on']} accuracy, %", "bootstrap interval"]
    rows = _head(*heads, "% SAM", "gradients per step", "paper: accuracy, %")
    tested = min(row["n"] for row in comparison["rows"]) > 1  # one seed has no winner
    for row in comparison["rows"]:
        std, interval = row["accuracy"]["std"], row["accuracy"]["interval_95"]
        shown = f"{row['accuracy']['mean']:.1f}" + ("" if std is None else f" ± {std:.1f}")
        theirs = paper[row["label"]]
        cells = [
            row["label"],
            str(row["n"]),
            f"**{shown}**" if row["best_overall"] and tested else shown,
            "–" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}",
            f"{row['percent_sam']['mean']:.0f}",
            f"{row['gradients_per_step']:.2f}",
            "–" if theirs is None else f"{theirs['accuracy']:.1f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def cost() -> str:
    """Time as a multiple of ERM's, on the network that is heavy enough to tell."""
    heads = ["method", "1 process: time, × ERM", "2 processes: time, × ERM", "faster with two"]
    rows = _head(*heads, "% SAM")
    for name, row in read("cost-cifar10/results.json")["rows"].items():
        times = " | ".join(f"{row[of]:.2f}" for of in ("alone", "two", "speedup"))
        rows.append(f"| {method_record(name).label} | {times} | {row['percent_sam']:.0f} |")
    return "\n".join(rows)


VERDICTS = {  # how an entry's findings put it, by the column that counts it
    "holds": ("holds here", "better here", "not rejected"),
    "no difference found": ("no difference found",),
    "same direction, not significant": ("same direction",),
    "not seen": ("not seen",),
    "no fair test": ("every seed", "two seeds", "not tested", "cannot", "no sample", "remarked on"),
    "disagrees": ("disagrees",),
}
ENTRIES = (
    "table-cifar", "table-imagenet", "table-noise", "table-noise-cifar10", "table-looksam-k",
    "fig-variance", "fig-squared-norm", "fig-normality", "fig-noise-curves",
    "fig-noise-curves-cifar10", "fig-lambda", "fig-convergence",
)  # fmt: skip


def claims() -> str:
    """How many of the paper's claims came out which way; our own questions are not counted."""
    rows = _head("entry", *VERDICTS, "what is wrong with its ρ")
    for name in ENTRIES:
        found = read(f"{name}/results.json")
        words = _words(found)
        counts = [sum(word.startswith(heads) for word in words) for heads in VERDICTS.values()]
        if sum(counts) != len(words):
            raise ValueError(f"{name} has a verdict that belongs to no column: {words}")
        shown = " | ".join(str(n or "–") for n in counts)
        rows.append(f"| `results/{name}/table.txt` | {shown} | {_radius(name, found)} |")
    return "\n".join(rows)


#: Entries whose methods all have the ρ that was searched for SAM alone.
ONE_RADIUS = ("table-noise-cifar10", "fig-noise-curves-cifar10")


def _radius(name: str, found: Any) -> str:
    """Why an entry's ρ decides nothing: SAM's for all, or the smallest or largest of the grid."""
    if name in ONE_RADIUS:
        return "SAM's for all"
    rows = [row for comparison in found.get("comparisons", []) for row in comparison["rows"]]
    radii = {row["settings"]["rho"] for row in rows} & {0.01, 0.5}
    edges = ", ".join(f"{rho:g}" for rho in sorted(radii))
    return f"at the edge, {edges}" if edges else "–"


def _words(found: Any) -> list[str]:
    """How each claim of the paper came out; one with a remark was no fair test of it."""
    if "verdicts" not in found:
        return [said.split("→ ")[1] for said in found["findings"]]
    claimed = [v for v in found["verdicts"] if not v["claim"].endswith("?)")]
    return [f"remarked on: {v['remark']}" if v["remark"] else v["word"] for v in claimed]


def methods() -> str:
    """All methods by their records."""
    rows = _head("name", "label", "what it does", "settings", "also takes", "paper")
    for record in map(method_record, list_methods()):
        of_its_own = ", ".join(f"`{name}`" for name in record.defaults) or "–"
        besides = _total_steps(record) + ["`seed`"] * record.needs_seed
        cells = [f"`{record.name}`", record.label, _what(record), of_its_own]
        rows.append(f"| {' | '.join([*cells, ', '.join(besides) or '–', record.paper or '–'])} |")
    return "\n".join(rows)


def _total_steps(record: MethodRecord) -> list[str]:
    """Marked where it must be given, also with all settings at their defaults."""
    if not record.needs_total_steps:
        return []
    net = torch.nn.LayerNorm(1)
    made = record.make(torch.optim.SGD(net.parameters(), momentum=0.9), net)
    return ["**`total_steps`**" if made.needs_total_steps else "`total_steps`"]


def _what(record: MethodRecord) -> str:
    """Its summary, without the name that may stand before a colon."""
    said = record.summary.partition(": ")[2] or record.summary
    return said[0].upper() + said[1:].replace("``", "`")


def lab_groups() -> str:
    """All methods by the lab's records of them."""
    rows = _head("name", "group", "tested against", "takes the settings of")
    for name in all_methods():
        record = lab_method(name)
        borrows = f"`{record.borrows}`" if record.borrows else "–"
        rows.append(f"| `{name}` | {record.group} | `{record.baseline}` | {borrows} |")
    return "\n".join(rows)


def data_sets() -> str:
    """All data sets by their records."""
    rows = _head("`--dataset`", "what it is", "usual model", "usual epochs", "crops and flips")
    for record in map(data_record, list_data_sets()):
        epochs, augment = str(record.training.epochs), "yes" if record.augment else "no"
        cells = [f"`{record.name}`", escape(record.help), f"`{record.model}`", epochs, augment]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def models() -> str:
    """All models by their records, and the families of models."""
    rows = _head("`--model`", "what it is")
    rows += [f"| `{name}` | {model_help(name)} |" for name in list_models()]
    return "\n".join(rows)


def variants() -> str:
    """The methods beyond the paper: what each does otherwise than SAM, and by which parts."""
    rows = _head("name", "rule", "cost", "parts in the place of SAM's", "paper")
    for record in map(record_of, all_methods()):
        if record.rule:
            axes = f"lab: {own_method(record.name).where}" if is_own(record.name) else _axes(record)
            cells = [f"`{record.name}`", _cell(record.rule), record.cost, axes]
            rows.append(f"| {' | '.join([*cells, record.paper])} |")
    return "\n".join(rows)


#: Of methods that need a model which takes seconds to import; a test of theirs holds it to this.
AXES = {"bi-lora": "policy `Never`, ascent `AscentAdapters`"}


def _axes(record: MethodRecord) -> str:
    """The questions that it answers otherwise than SAM, with its parts."""
    if record.name in AXES:
        return AXES[record.name]
    needs = {"total_steps": 1} if record.needs_total_steps else {}
    own, usual = (
        make(torch.optim.SGD(net.parameters(), momentum=0.9), net, **given).parts.by_name
        for net in [torch.nn.LayerNorm(1)]
        for make, given in ((record.make, needs), (SAM, {}))
    )
    other = {q: type(p).__name__ for q, p in own.items() if type(p) is not type(usual[q])}
    return ", ".join(f"{question} `{part}`" for question, part in other.items()) or "–"


def settings() -> str:
    """All settings by the methods' records: the default of most, and who has another.

    A name that means something else elsewhere has a row for each meaning.
    """
    rows = _head("setting", "symbol", "what it is", "allowed", "default", "searched")
    records = [record_of(name) for name in all_methods()]
    for name, meaning in dict.fromkeys((s.name, s.help) for r in records for s in r.settings):
        of = {r.name: s for r in records for s in r.settings if (s.name, s.help) == (name, meaning)}
        first, *_ = of.values()
        default = _by_method(of, {n: _number(s.default) for n, s in of.items()})
        grids = {n: ", ".join(f"{v:g}" for v in s.grid) or "–" for n, s in of.items()}
        meant = any(s.name == name and s.help != meaning for r in records for s in r.settings)
        owners = f" ({', '.join(of)})" if meant else ""
        cells = [f"`{name}`", first.symbol or "–", _cell(meaning) + owners, first.allowed, default]
        rows.append(f"| {' | '.join([*cells, _by_method(of, grids)])} |")
    return "\n".join(rows)


def _by_method(of: Iterable[str], shown: dict[str, str]) -> str:
    """What is shown of the first method, and what of others where it differs."""
    first, *_ = (shown[name] for name in of)
    several = {text: [n for n in shown if shown[n] == text] for text in shown.values()}
    return "; ".join(
        text + (f" ({', '.join(names)})" if text != first else "")
        for text, names in several.items()
    )


def _number(value: bool | float | None) -> str:
    if value is None:
        return "not used"
    return str(value) if isinstance(value, bool) else f"{value:.4g}"


#: In this order on the page; what else there is comes behind, by its name.
STACKS = (
    "plain PyTorch", "Bases", "DDP", "FSDP2", "torch.distributed.checkpoint", "Lightning",
    "Lightning without the callback", "Fabric", "Accelerate", "Transformers' Trainer",
    "Transformers' Trainer, replay=True", "TRL", "PEFT", "skorch", "Ignite", "Keras 3 (torch)",
    "Ray Train", "Loggers",
)  # fmt: skip

#: What tests on a CPU cannot show, and why.
NOT_SHOWN = {
    "plain PyTorch": "GPUs, and float16 on hardware: none here; GradScaler is tested on the CPU",
    "DDP": "NCCL, SyncBatchNorm: they need GPUs; two gloo processes are tested",
    "FSDP2": "NCCL, mixed precision on hardware: they need GPUs; two gloo processes are tested",
    "Lightning": "`16-mixed` on hardware, FSDP: they need GPUs; a plugin for it is tested",
    "Fabric": "`16-mixed` on hardware, FSDP2 (`ModelParallelStrategy`): they need GPUs",
    "Accelerate": "its own fp16 scaler, FSDP2 in Accelerate: made on GPUs only",
    "Transformers' Trainer": "fp16 on hardware, FSDP, DeepSpeed: they need GPUs",
    "Ray Train": "more than one machine: one with two workers is tested (`make test-ray`)",
}


def compatibility() -> str:
    """What was tried in each stack, from the rows that the tests write; alike ones together."""
    found: dict[str, dict[str, list[str]]] = {}
    tried = read("compatibility.json")["rows"]
    for row in sorted(tried, key=lambda r: (r["outcome"] == "refused", r.get("within", 0.0))):
        found.setdefault(row["stack"], {}).setdefault(_outcome(row), []).append(row["use"])
    rows = _head("stack", "use", "outcome")
    for stack in sorted(found, key=lambda s: (_place(s), s)):
        cells = [("; ".join(uses), outcome) for outcome, uses in found[stack].items()]
        if stack in NOT_SHOWN:
            cells.append((NOT_SHOWN[stack], "not shown here"))
        for i, (uses, outcome) in enumerate(cells):
            named = "" if i else f"**{stack}**"
            rows.append(f"| {named} | {_cell(uses)} | {_cell(outcome)} |")
    return "\n".join(rows)


def _place(stack: str) -> int:
    return STACKS.index(stack) if stack in STACKS else len(STACKS)


def _outcome(row: dict[str, Any]) -> str:
    if row["outcome"] == "refused":
        return f"refused: “{row['says']}”"
    within = row["within"]
    return "right, to the bit" if within == 0.0 else f"right, within {within:g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def faults() -> str:
    """What the tests of faults tried, and how all of it ended."""
    rows = _head("fault", "tried", "how every one of them ended")
    for row in read("faults.json")["rows"]:
        rows.append(f"| {_cell(row['fault'])} | {row['tried']:,} | {_cell(row['outcome'])} |")
    return "\n".join(rows)


def mutants() -> str:
    """How many small changes of the core the tests noticed, and why the others are harmless."""
    found = read("mutants.json")
    counts = f"{found['noticed']} of {found['tried']} were noticed; not noticed:"
    rows = _head(counts, "why it is harmless")
    rows += [f"| `{_cell(what)}` | {_cell(why)} |" for what, why in found["reasons"].items()]
    return "\n".join(rows)


def finalists() -> str:
    """Who is compared where a run takes a minute, and why."""
    rows = _head("row", "why it is there")
    rows += [f"| {label_of_row(CONTENDERS[name])} | {why} |" for name, why in FINALISTS.items()]
    return "\n".join(rows)


@cache
def frontier(name: str) -> str:
    """Every finished row of a bench, the best first."""
    bench = BENCHES[name]
    found = published(bench, FRONTIER)
    columns = ("method", "score", "in training", "n", "− SAM, 95 %", "p (Holm)", "% SAM",
               "batches /step", "time, × ERM", "settings", "remark")  # fmt: skip
    unit = "test accuracy, %" if bench.measure == "accuracy" else "test loss"
    rows = _head(f"{bench.title}: method", unit, *columns[2:])
    if not found:
        return "\n".join([*rows, "| no row is finished yet |" + " |" * (len(columns) - 1)])
    sheet = sheet_of(bench, found, FRESH_SEEDS)
    places = [sheet.columns.index(column) for column in columns]
    for line in sheet.lines:
        rows.append(f"| {' | '.join(_cell(line.cells[place]) for place in places)} |")
    return "\n".join(rows)


def pictures() -> dict[str, Path]:
    """The drawn benches and where docs show each: its file in docs/, by the published one."""
    drawn = [FRONTIER / f"{name}.svg" for name in BENCHES]
    drawn += sorted(FRONTIER.glob("triggers-*.svg"))
    return {path.stem: IMAGES / f"frontier-{path.name}" for path in drawn if path.exists()}


def picture(name: str) -> str:
    """The picture of a bench, where it is drawn."""
    if name not in pictures():
        return ""
    bench = BENCHES.get(name)
    said = f"{bench.title}: {bench.measure} against cost" if bench else "paired differences"
    return f"![{said}](images/{pictures()[name].name})"


@cache
def shares() -> str:
    """A coin on ever fewer steps, each with a radius of its own; SAM is all of them, ERM none."""
    names = ("sam", "ss-sam", *(c.name for c in SHARES[:2]), "ss-sam-25", SHARES[2].name, "erm")
    rows = _head("second gradients on", "test accuracy, %", "n", "− SAM, 95 %", "best ρ")
    found = {s.name: s for s in published(BENCHES["digits-40"], FRONTIER)}
    sheet = sheet_of(BENCHES["digits-40"], list(found.values()), FRESH_SEEDS)
    cells = {line.cells[0].removeprefix("↟ "): line.cells for line in sheet.lines}
    for name in names:
        if name in found:
            own = cells[label_of_row(CONTENDERS[name])]
            score, n, apart = (own[sheet.columns.index(c)] for c in ("score", "n", "− SAM, 95 %"))
            rho = found[name].settings.get("rho")
            share = f"{found[name].percent_sam:.0f} % of the steps"
            rows.append(
                f"| {share} | {score} | {n} | {apart} | {'–' if rho is None else f'{rho:g}'} |"
            )
    return "\n".join(rows)


@cache
def everywhere() -> tuple[list[choosing.Candidate], dict[str, str]]:
    """The rows that are finished on every bench that is, and these benches' titles by name."""
    found = {name: published(bench, FRONTIER) for name, bench in BENCHES.items()}
    return choosing.candidates(found), {n: BENCHES[n].title for n in choosing.compared_on(found)}


def by_bench() -> str:
    """Their differences to tuned SAM, bench by bench; the least bad at its worst comes first."""
    among, titles = everywhere()
    rows = _head("− SAM, 95 %", "batches /step", *titles.values())
    for each in sorted(among, key=lambda c: -c.worst):
        apart = [
            shown_difference(BENCHES[bench], found) + "; edge" * (bench in each.at_edge)
            for bench, found in each.apart.items()
        ]
        label = label_of_row(CONTENDERS[each.name])
        rows.append(f"| {label} | {each.samples:.2f} | {' | '.join(apart)} |")
    return "\n".join(rows)


def choice() -> str:
    """What to take at a cost."""
    among, titles = everywhere()
    rows = _head("batches per step, at most", "take", "search", "at its worst, − SAM, 95 %")
    for cost in choosing.COSTS:
        found = choosing.best_at(cost, among)
        if found is not None:
            row, bench = CONTENDERS[found.name], found.worst_bench
            symbols = {s.name: s.symbol or s.name for s in record_of(row.method).settings}
            searched = [symbols.get(r.name, r.name) for r in ranges_of(BENCHES[bench], row)]
            apart = found.apart[bench]
            worst = "–" if apart is None else shown_difference(BENCHES[bench], apart)
            where = "" if apart is None else f", {titles[bench]}"
            cells = [f"{cost:g}", label_of_row(row), ", ".join(searched) or "–", worst + where]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


@cache
def claims_on_benches() -> str:
    """What the paper says of one method against another, bench by bench, and what critics ask."""
    found = {name: published(bench, FRONTIER) for name, bench in BENCHES.items()}
    cells = {(t.claim, t.bench.name): t for t in tested_claims.tested(found)}
    benches = [name for name in BENCHES if any(name == bench for _, bench in cells)]
    rows = _head("claim", "said by", *(BENCHES[name].title for name in benches))
    for claim in tested_claims.CLAIMS:
        here = [cells.get((claim, name)) for name in benches]
        shown = ["–" if t is None else f"**{t.word}**: {_tested(t)}" for t in here]
        by = "the paper" if claim.by_paper else "a reviewer"
        rows.append(f"| {claim.told} | {by} | {' | '.join(shown)} |")
    return "\n".join(rows)


def _tested(one: tested_claims.Tested) -> str:
    """The difference; where triggers fired on unequally many steps, how many."""
    ours, theirs = one.shares
    near = 1.0 < abs(ours - theirs) < 20.0
    shares = f"; {ours:.0f} against {theirs:.0f} % of the steps" if near else ""
    return shown_difference(one.bench, one.found) + shares


@cache
def verdicts() -> str:
    """Whether one cheap rule is as good as tuned SAM, in sentences."""
    told = verdict.of_books(FRONTIER)["sentences"]
    return "\n".join([*_head("what follows by script"), *(f"| {_cell(line)} |" for line in told)])


@cache
def triggers() -> str:
    """The adaptive trigger against others at equal cost, in sentences."""
    rows = _head("the adaptive trigger against others at equal cost")
    pages = sorted(FRONTIER.glob("triggers-*.txt"))
    told = [line[2:] for page in pages for line in page.read_text().splitlines()]
    told = [line for line in told if "adaptive against" in line] or ["no trigger is finished yet"]
    return "\n".join([*rows, *(f"| {_cell(line)} |" for line in told)])


def text_regimes() -> str:
    """What was tried before the text bench was fixed."""
    rows = _head("pieces", "parameters", "epochs", "batch", "lr", "method", "seed",
                 "loss in training", "validation loss", "its least on the way")  # fmt: skip
    for run in read("frontier/text-regimes.json")["runs"]:
        name, rho = label_of(run["method"]["name"]), run["method"].get("rho")
        rows.append(
            f"| {run['pieces']:,} | {run['parameters']:,} | {run['epochs']} | {run['batch_size']} "
            f"| {run['lr']:g} | {name}{'' if rho is None else f', ρ = {rho:g}'} | {run['seed']} "
            f"| {run['train_loss']:.2f} | {run['validation_loss']:.3f} "
            f"| {run['least_validation_loss']:.3f} |"
        )
    return "\n".join(rows)


def tables() -> dict[str, str]:
    """The text that belongs after each marker."""
    return {
        "by_bench": by_bench(),
        "choice": choice(),
        "claims": claims(),
        "claims_on_benches": claims_on_benches(),
        "compatibility": compatibility(),
        "cost": cost(),
        "data_sets": data_sets(),
        "demo": demo(),
        "faults": faults(),
        "finalists": finalists(),
        **{f"frontier_{name}": frontier(name) for name in BENCHES},
        **{f"picture_{name}": picture(name) for name in (*BENCHES, "triggers-digits-40")},
        "lab_methods": lab_groups(),
        "lab_overhead": lab_overhead(),
        "methods": methods(),
        "models": models(),
        "mutants": mutants(),
        "noise_cifar": noise("table-noise-cifar10"),
        "noise_digits": noise("table-noise"),
        "settings": settings(),
        "shares": shares(),
        "step_overhead": step_overhead(),
        "text_regimes": text_regimes(),
        "triggers": triggers(),
        "verdict": verdicts(),
        "variants": variants(),
    }


def pages() -> list[Path]:
    """README and everything in docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(page: str) -> str:
    """The page with every marked table as it should be."""
    for name, table in tables().items():
        marker = f"<!-- {name} -->\n"
        text = marker + (f"{table}\n" if table else "")
        page = re.sub(rf"{marker}((\||!\[).*\n)*", lambda _, t=text: t, page)
    return page


def main() -> None:
    for path in pages():
        path.write_text(filled(path.read_text()))
    for name, shown in pictures().items():
        shown.write_bytes((FRONTIER / f"{name}.svg").read_bytes())


if __name__ == "__main__":
    main()
