"""The paper's kind of table, for a terminal and for plain text."""

import textwrap

from rich import box
from rich.table import Table
from rich.text import Text

from aesam.lab.show import wording
from aesam.lab.show.comparison import Against, Comparison, MethodRow

EXPLANATION = (
    "Rows with similar % SAM stand together. Time is a multiple of ERM's. p is of a two-sided "
    "paired t-test by seed, against SAM and against the method's own baseline "
    "(of AE-SAM: SS-SAM, of AE-LookSAM: LookSAM, of a coin or inverted: its model, else ERM)."
)
ACCURACY = 2  # the column with the marks for the best

NARROW = {  # two lines for headers that are wider than what stands under them
    "test accuracy": ("test", "accuracy"),
    "validation accuracy": ("validation", "accuracy"),
    "train accuracy": ("train", "accuracy"),
    "gradients per step": ("grads", "/step"),
    "p vs SAM": ("p vs", "SAM"),
    "p vs baseline": ("p vs", "baseline"),
}


def headers(comparison: Comparison) -> list[str]:
    """The columns' names, in the order of ``cells``."""
    return [
        "method",
        "n",
        f"{comparison.measured_on} accuracy",
        "% SAM",
        "time",
        "gradients per step",
        "train accuracy",
        "p vs SAM",
        "p vs baseline",
    ]


def cells(row: MethodRow) -> list[str]:
    """One row's numbers as they are shown, without the marks for the best."""
    return [
        row.label,
        str(row.n),
        wording.plus_minus(row.accuracy, 2),
        wording.plus_minus(row.percent_sam, 1),
        wording.times(row.times_erm),
        f"{row.gradients_per_step:.2f}",
        wording.plus_minus(row.train_accuracy, 2),
        p_against(row.against_sam),
        against(row.against_baseline),
    ]


def p_against(other: Against | None) -> str:
    """The p-value of a test that may not have been possible."""
    return wording.p_value(other.test if other else None)


def against(other: Against | None) -> str:
    """A p-value with the name of what it is against."""
    return f"{p_against(other)} {other.label}" if other and other.test else wording.NOTHING


def subtitle(comparison: Comparison) -> str:
    """What the numbers are of: which split, how many seeds, and which are missing."""
    seeds = comparison.seeds
    several = len(seeds) > 1
    text = (
        f"{comparison.measured_on} accuracy in %, "
        f"{'mean ± standard deviation over ' if several else ''}"
        f"{len(seeds)} seed{'s' if several else ''} ({wording.whole_numbers(seeds)})"
    )
    return "; ".join((text, *missing(comparison)))


def missing(comparison: Comparison) -> list[str]:
    """The rows that lack seeds which others have: their means are of fewer runs."""
    seeds = comparison.seeds
    lacking = {row.label: [s for s in seeds if s not in row.seeds] for row in comparison.rows}
    return [
        f"{label} lacks seed{'s' if len(gone) > 1 else ''} {wording.whole_numbers(gone)}"
        for label, gone in lacking.items()
        if gone
    ]


def rich_table(comparison: Comparison) -> Table:
    """The table for a terminal: the best of all in bold, the best of its group underlined.

    It is kept within 80 columns for methods with one setting: n is a column only where rows differ
    in it, and the baselines' names are left out.
    """
    same_n = len({row.n for row in comparison.rows}) == 1
    shown = [name for name in headers(comparison) if not (name == "n" and same_n)]
    table = Table(
        title=Text(comparison.title, style="bold"),
        caption=Text(f"{subtitle(comparison)}. {EXPLANATION}"),
        box=box.SIMPLE_HEAD,
        padding=0,
        title_justify="left",
        caption_justify="left",
    )
    for name in shown:
        header = Text("\n".join(_two_lines(name)).strip())
        table.add_column(header, justify="left" if name == "method" else "right")
    for group in comparison.groups:
        for row in group:
            values = dict(zip(headers(comparison), _styled_cells(row), strict=True))
            table.add_row(*(values[name] for name in shown))
        table.add_section()
    return table


def text_table(comparison: Comparison) -> str:
    """The table in plain text: ``*`` before the best of all, ``_`` around the best of its group."""
    names = [_two_lines(name) for name in headers(comparison)]
    lines = [[upper for upper, _ in names], [lower for _, lower in names]]
    rules: list[int] = []
    for group in comparison.groups:
        rules.append(len(lines))
        lines += [_marked_cells(row) for row in group]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    body = [_aligned(line, widths) for line in lines]
    for place in reversed(rules):
        body.insert(place, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    below = textwrap.wrap(f"* best of all, _best of its group_. {EXPLANATION}", 96)
    return "\n".join((comparison.title, subtitle(comparison), "", *body, "", *below, ""))


def _two_lines(name: str) -> tuple[str, str]:
    return NARROW.get(name, ("", name))


def _styled_cells(row: MethodRow) -> list[Text]:
    values = [Text(cell) for cell in (*cells(row)[:-1], p_against(row.against_baseline))]
    style = f"{'bold ' * row.best_overall}{'underline' * row.best_in_group}".strip()
    values[ACCURACY].stylize(style, 0, len(f"{row.accuracy.mean:.2f}"))
    return values


def _marked_cells(row: MethodRow) -> list[str]:
    values = cells(row)
    number = f"{row.accuracy.mean:.2f}"
    overall, group = "*" if row.best_overall else " ", "_" if row.best_in_group else " "
    values[ACCURACY] = values[ACCURACY].replace(number, f"{overall}{group}{number}{group}", 1)
    return values


def _aligned(line: list[str], widths: list[int]) -> str:
    last = len(line) - 1
    aligned = [
        cell.ljust(width) if column in (0, last) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(aligned).rstrip()
