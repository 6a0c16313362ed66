"""One self-contained page: tables, figures, and how they were made.

It needs no scripts and asks nobody for anything, and its content policy says so to the browser.
Everything that comes from a file is escaped.
"""

import re
from collections.abc import Sequence
from html import escape

from aesam.lab.show import tables, wording
from aesam.lab.show.comparison import Comparison, MethodRow
from aesam.lab.show.document import document
from aesam.lab.show.finished_runs import FinishedRun
from aesam.lab.show.page_tables import comparison_table, key, runs_table, settings_table
from aesam.lab.show.results_json import versions_of


def html_report(
    comparisons: Sequence[Comparison],
    runs: Sequence[FinishedRun],
    *,
    title: str,
    command: str,
    notes: Sequence[str],
) -> str:
    """The report as the text of one HTML file."""
    sections = "\n".join(_comparison(c, f"c{i}") for i, c in enumerate(comparisons, 1))
    body = f"""<header>
<h1>{escape(title)}</h1>
<p class="lede">{escape(_lede(runs))}</p>
{_contents(comparisons)}
</header>
{sections}
{_how_made(comparisons, runs, command, notes)}"""
    return document(title, body)


def _lede(runs: Sequence[FinishedRun]) -> str:
    methods, seeds = {run.method for run in runs}, {run.seed for run in runs}
    counted = [(len(methods), "method"), (len(seeds), "seed"), (len(runs), "finished run")]
    return ", ".join(f"{number} {name}{'s' * (number != 1)}" for number, name in counted) + "."


def _contents(comparisons: Sequence[Comparison]) -> str:
    """Links to the comparisons, where there are several."""
    if len(comparisons) < 2:
        return ""
    links = "".join(
        f'<li><a href="#c{i}">{escape(c.title)}</a>: {_key_label(c.best)} '
        f"{wording.plus_minus(c.best.accuracy, 2)} %</li>\n"
        for i, c in enumerate(comparisons, 1)
    )
    return f'<nav aria-label="Comparisons"><p>Most accurate in each:</p><ul>\n{links}</ul></nav>'


def _comparison(comparison: Comparison, name: str) -> str:
    return f"""<section id="{name}" aria-labelledby="{name}-title">
<h2 id="{name}-title">{escape(comparison.title)}</h2>
{_tiles(comparison)}
{comparison_table(comparison)}
<p class="soft">{escape(_sentence(tables.subtitle(comparison)))} \
<span class="overall">Bold</span>: the best of all; \
<span class="group">underlined</span>: the best of several with similar % SAM. \
{escape(tables.EXPLANATION)}</p>
<h3>Figures</h3>
<div class="figures">
{_figures(comparison, name)}
</div>
<details><summary>Every run</summary>
{runs_table(comparison)}
</details>
</section>"""


def _tiles(comparison: Comparison) -> str:
    """The most accurate method in a few numbers: each a name, a value and a remark in HTML."""
    best = comparison.best
    split = "" if comparison.measured_on == "test" else f"{comparison.measured_on} accuracy, "
    tiles = [
        ("Most accurate", f"{best.accuracy.mean:.1f} %", f"{split}{_key_label(best)}"),
        *_gain(best),
        *_time(best, comparison),
        ("SAM used on", f"{best.percent_sam.mean:.0f} %", "of its steps"),
    ]
    items = "\n".join(
        f'<li><span class="name">{name}</span><span class="value">{value}</span>'
        f'<span class="name">{remark}</span></li>'
        for name, value, remark in tiles
    )
    return f'<ul class="tiles">\n{items}\n</ul>'


def _gain(best: MethodRow) -> list[tuple[str, str, str]]:
    against = best.against_sam or best.against_baseline
    if against is None or against.test is None:
        return []
    points = f"{against.test.difference:+.1f}".replace("-", "−")
    remark = f"points, {wording.p_statement(against.test)}"
    return [(f"Against {escape(against.label)}", points, escape(remark))]


def _time(best: MethodRow, comparison: Comparison) -> list[tuple[str, str, str]]:
    if best.times_erm is None:
        return []
    sam = [row for row in comparison.rows if row.method == "sam"]
    beside = f" (SAM: {wording.times(sam[0].times_erm)})" if sam and best.method != "sam" else ""
    return [("Training time", wording.times(best.times_erm), f"ERM's{beside}")]


def _figures(comparison: Comparison, name: str) -> str:
    from aesam.lab.show.figures import figures  # matplotlib only when something is drawn

    return "\n".join(
        f"""<figure id="{figure.name}-figure">
<h4>{escape(figure.heading)}</h4>
<div class="card">{_inline(figure.svg, f"{figure.heading}. {figure.caption}")}</div>
<figcaption>{escape(figure.caption)}</figcaption>
</figure>"""
        for figure in figures(comparison, name)
    )


def _inline(svg: str, label: str) -> str:
    """The SVG as a part of the page: named for those who do not see it, without namespaces."""
    named = f'<svg role="img" aria-label="{escape(label)}"'
    return named + re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg.removeprefix("<svg"), count=2)


def _how_made(
    comparisons: Sequence[Comparison],
    runs: Sequence[FinishedRun],
    command: str,
    notes: Sequence[str],
) -> str:
    seeds = sorted({run.seed for run in runs})
    versions = ", ".join(f"{name} {number}" for name, number in versions_of(runs).items())
    facts = {
        "Runs": str(len(runs)),
        "Seeds": f"{len(seeds)} ({wording.whole_numbers(seeds)})",
        "Versions": wording.printable(versions) or wording.NOTHING,
    }
    items = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>\n" for name, text in facts.items())
    own = "".join(f"<li>{escape(note)}</li>\n" for note in (*notes, *STATISTICS))
    return f"""<section aria-labelledby="how-made">
<h2 id="how-made">How this was made</h2>
<pre><code>{escape(command)}</code></pre>
<dl>
{items}</dl>
<h3>Notes</h3>
<ul>
{own}</ul>
{"".join(_settings(comparison) for comparison in comparisons)}
</section>"""


STATISTICS = (
    "± is the sample standard deviation over seeds (n − 1 in the denominator).",
    "The 95 % intervals of means are by percentile bootstrap; with few seeds they are too narrow.",
    "p is of a two-sided t-test on differences paired by seed, not corrected for many comparisons.",
    "Of a baseline with several settings, the most accurate one with similar % SAM is taken.",
    "Times are training seconds without evaluation, as measured where the runs ran.",
)


def _settings(comparison: Comparison) -> str:
    shared = "".join(
        f"<dt>{name}</dt><dd>{escape(wording.settings(comparison.settings[name]))}</dd>\n"
        for name in ("data", "model", "training")
    )
    return f"""<h3>Settings: {escape(comparison.title)}</h3>
<dl>
{shared}</dl>
{settings_table(comparison)}
"""


def _key_label(row: MethodRow) -> str:
    return f"{key(row.method)}{escape(row.label)}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
