"""A table as data, and the same table for terminals, plain text and pages."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich import box
from rich.table import Table
from rich.text import Text

GAP = 2  # around each column of a terminal's table


@dataclass(frozen=True)
class Line:
    """The cells of one row; ``best`` marks the best of all, ``best_in_group`` of its group."""

    cells: tuple[str, ...]
    best: bool = False
    best_in_group: bool = False


@dataclass(frozen=True)
class Sheet:
    """Named columns and groups of lines; marks stand on the column number ``marked``.

    ``spare`` are columns that a narrow terminal goes without, the first of them first.
    """

    title: str
    columns: tuple[str, ...]
    groups: tuple[tuple[Line, ...], ...]
    caption: str = ""
    marked: int = 1
    spare: tuple[str, ...] = ()
    prose: bool = False  # the first column holds sentences, which may be broken

    @property
    def lines(self) -> list[Line]:
        return [line for group in self.groups for line in group]


def as_text(sheet: Sheet) -> str:
    """Plain text: ``*`` before the best of all, ``_`` around the best of its group."""
    head = [_two_lines(name) for name in sheet.columns]
    body = [[_plain(line, i, sheet) for i in range(len(sheet.columns))] for line in sheet.lines]
    table = [[upper for upper, _ in head], [lower for _, lower in head], *body]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    shown = [_aligned(row, widths) for row in table[:2]]
    rows = iter(table[2:])
    for group in sheet.groups:
        shown.append(rule)
        shown += [_aligned(next(rows), widths) for _ in group]
    marks = "* best of all, _best of its group_. " if any(x.best for x in sheet.lines) else ""
    below = textwrap.wrap(f"{marks}{sheet.caption}", 100)
    return "\n".join((sheet.title, "", *shown, "", *below)).rstrip() + "\n"


def as_rich(sheet: Sheet, width: int) -> Table:
    """For a terminal: the best of all in bold, the best of its group underlined."""
    shown = fitting(sheet, width)
    gone = len(sheet.columns) - len(shown)
    left_out = f" {gone} columns did not fit here: table.txt and report.html have them."
    table = Table(
        title=Text(sheet.title, style="bold"),
        caption=Text(f"{sheet.caption}{left_out if gone else ''}"),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for i in shown:
        header = Text("\n".join(_two_lines(sheet.columns[i])).strip())
        table.add_column(header, justify="right" if i else "left")
    for group in sheet.groups:
        for line in group:
            cells = [Text(cell) for cell in line.cells]
            style = f"{'bold ' * line.best}{'underline' * line.best_in_group}".strip()
            cells[sheet.marked].stylize(style, 0, len(_number(line, sheet)))
            table.add_row(*(cells[i] for i in shown))
        table.add_section()
    return table


def fitting(sheet: Sheet, width: int) -> list[int]:
    """The columns that a terminal of this width has room for."""
    shown = list(range(len(sheet.columns)))
    for name in sheet.spare:
        if sum(_width(sheet, i) + GAP for i in shown) + GAP <= width:
            break
        shown.remove(sheet.columns.index(name))
    return shown


def _width(sheet: Sheet, column: int) -> int:
    head = _two_lines(sheet.columns[column])
    return max(len(cell) for cell in (*head, *(line.cells[column] for line in sheet.lines)))


def as_html(sheet: Sheet) -> str:
    """For a page: a body for each group, in a box that scrolls sideways."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in sheet.columns)
    bodies = "\n".join(
        "<tbody>\n" + "\n".join(_html_line(line, sheet) for line in group) + "\n</tbody>"
        for group in sheet.groups
    )
    kind = ' class="prose"' if sheet.prose else ""
    return (
        f"<h3>{escape(sheet.title)}</h3>\n"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(sheet.title)}">\n'
        f"<table{kind}>\n<thead><tr>{head}</tr></thead>\n{bodies}\n</table>\n</div>\n"
        f'<p class="soft">{escape(sheet.caption)}</p>'
    )


def as_json(sheet: Sheet) -> dict[str, object]:
    """The cells as they are shown, with their marks."""
    return {
        "title": sheet.title,
        "caption": sheet.caption,
        "columns": list(sheet.columns),
        "groups": [
            [
                {"cells": list(x.cells), "best": x.best, "best_in_group": x.best_in_group}
                for x in group
            ]
            for group in sheet.groups
        ],
    }


def _html_line(line: Line, sheet: Sheet) -> str:
    cells = [escape(cell) for cell in line.cells]
    classes = f"{'overall ' * line.best}{'group' * line.best_in_group}".strip()
    if classes:
        number = escape(_number(line, sheet))
        marked = f'<span class="{classes}">{number}</span>'
        cells[sheet.marked] = cells[sheet.marked].replace(number, marked, 1)
    rest = "".join(f"<td>{cell}</td>" for cell in cells[1:])
    return f'<tr><th scope="row">{cells[0]}</th>{rest}</tr>'


def _plain(line: Line, column: int, sheet: Sheet) -> str:
    cell = line.cells[column]
    if column != sheet.marked:
        return cell
    number = _number(line, sheet)
    star, rule = "*" if line.best else " ", "_" if line.best_in_group else " "
    return cell.replace(number, f"{star}{rule}{number}{rule}", 1)


def _number(line: Line, sheet: Sheet) -> str:
    """The part of the marked cell that the marks are for: its mean."""
    return line.cells[sheet.marked].partition(" ")[0]


def _two_lines(name: str) -> tuple[str, str]:
    upper, _, lower = name.rpartition(" ")
    return (upper, lower) if upper else ("", name)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
