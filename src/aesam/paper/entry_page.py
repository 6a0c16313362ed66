"""One self-contained page for an entry: what the paper says, what was found here, and how."""

import re
from collections.abc import Sequence
from html import escape

from aesam.lab.show.document import document
from aesam.lab.show.figures import Drawing
from aesam.lab.show.results_json import versions_of
from aesam.lab.show.sheet import as_html
from aesam.paper.outcome import Result
from aesam.paper.paper_numbers import SOURCE
from aesam.paper.verdicts import sheets_of, summary


def page_of(title: str, lede: str, result: Result, command: str) -> str:
    """The text of the HTML file."""
    tables = "\n".join(as_html(sheet) for sheet in result.sheets)
    claims = "\n".join(as_html(sheet) for sheet in sheets_of(result.verdicts))
    plain = f"<pre>{escape(result.text)}</pre>" if result.text else ""
    body = f"""<header>
<h1>{escape(title)}</h1>
<p class="lede">{escape(lede)}</p>
</header>
{_found(result)}
{plain}
{tables}
{claims}
{_figures(result.drawings)}
<section aria-labelledby="how-made">
<h2 id="how-made">How this was made</h2>
<pre><code>{escape(command)}</code></pre>
<p class="soft">{escape(_versions(result))} The paper: {escape(SOURCE)}.</p>
{_list("Notes", result.notes)}
</section>"""
    return document(title, body)


def _found(result: Result) -> str:
    counted = [summary(result.verdicts)] if result.verdicts else []
    return _list("What was found here", [*counted, *result.findings])


def _versions(result: Result) -> str:
    shown = ", ".join(f"{name} {number}" for name, number in versions_of(result.runs).items())
    return f"{len(result.runs)} runs; {shown}." if shown else ""


def _list(heading: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>\n" for sentence in sentences)
    return f"<h2>{escape(heading)}</h2>\n<ul>\n{items}</ul>"


def _figures(drawings: Sequence[Drawing]) -> str:
    if not drawings:
        return ""
    shown = "\n".join(
        f"""<figure id="{d.name}-figure">
<h4>{escape(d.heading)}</h4>
<div class="card">{_inline(d)}</div>
<figcaption>{escape(d.caption)}</figcaption>
</figure>"""
        for d in drawings
    )
    return f'<h2>Figures</h2>\n<div class="figures">\n{shown}\n</div>'


def _inline(drawing: Drawing) -> str:
    """The SVG as a part of the page, named for those who do not see it."""
    named = f'<svg role="img" aria-label="{escape(f"{drawing.heading}. {drawing.caption}")}"'
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawing.svg.removeprefix("<svg"), count=2)
    return named + svg
