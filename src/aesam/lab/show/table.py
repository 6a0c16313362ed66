"""A table as data, and how it is shown: on terminals, in plain text, as JSON and on pages.

Whatever makes a table makes a ``Sheet``; whoever shows one uses this file (or, on pages, the macro
``table`` of ``templates/parts.html``, which gets its cells from here).
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.table import Table
from rich.text import Text

GAP = 2  # around each column of a terminal's table
WIDTH = 100  # of the lines under a table in plain text


@dataclass(frozen=True)
class Line:
    """The cells of one row; ``best`` marks the best of all, ``best_in_group`` of its group.

    Of a row that figures draw, ``method`` says whose colour and marker a page puts before it.
    """

    cells: tuple[str, ...]
    best: bool = False
    best_in_group: bool = False
    method: str = ""


@dataclass(frozen=True)
class Sheet:
    """Named columns and groups of lines; marks stand on the column number ``marked``.

    ``spare`` are columns that a narrow terminal goes without, the first of them first; ``words``
    are columns of text, which stand to the left; ``named`` are those of p-values with the name of
    what was tested against; ``short`` are narrower names for terminals and plain text.
    """

    title: str
    columns: tuple[str, ...]
    groups: tuple[tuple[Line, ...], ...]
    caption: str = ""
    subtitle: str = ""
    marked: int = 1
    spare: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    short: Mapping[str, str] = field(default_factory=dict[str, str])
    prose: bool = False  # the first column holds sentences, which may be broken
    tight: bool = False  # so many columns that a terminal has no room between them

    @property
    def lines(self) -> list[Line]:
        return [line for group in self.groups for line in group]


@dataclass(frozen=True)
class Cell:
    """A cell in two parts: what counts, and a deviation or a name that stands back behind it."""

    text: str
    rest: str = ""
    is_name: bool = False
    best: bool = False
    best_in_group: bool = False


def cells_of(sheet: Sheet, line: Line) -> list[Cell]:
    """The cells of a line with their marks; the marks are for the mean, not for its deviation."""
    cells: list[Cell] = []
    for place, (column, cell) in enumerate(zip(sheet.columns, line.cells, strict=True)):
        is_name = column in sheet.named
        text, sign, rest = cell.partition(" " if is_name else " ± ")
        marks = (line.best, line.best_in_group) if place == sheet.marked else (False, False)
        cells.append(Cell(text, f"{sign}{rest}", is_name, *marks))
    return cells


def as_text(sheet: Sheet, width: int = WIDTH) -> str:
    """Plain text: ``*`` before the best of all, ``_`` around the best of its group."""
    heads = [_head(sheet, name) for name in sheet.columns]
    body = [_plain(sheet, line) for line in sheet.lines]
    left = {0, *(sheet.columns.index(name) for name in (*sheet.words, *sheet.named))}
    table = aligned([[h[0] for h in heads], [h[1] for h in heads], *body], left)
    rows, rule = iter(table[2:]), "-" * max(len(row) for row in table)
    shown = [row.rstrip() for row in table[:2]]
    for group in sheet.groups:
        shown += [rule, *(next(rows).rstrip() for _ in group)]
    marks = "* best of all, _best of its group_. " if any(x.best for x in sheet.lines) else ""
    above = [line for line in (sheet.title, sheet.subtitle) if line]
    below = textwrap.wrap(f"{marks}{sheet.caption}", width)
    return "\n".join((*above, "", *shown, "", *below)).rstrip() + "\n"


def aligned(rows: Sequence[Sequence[str]], left: set[int]) -> list[str]:
    """A line for each row, all of one width; columns stand to the right but for those ``left``.

    >>> aligned([["a", "n"], ["long", "10"]], {0})
    ['a      n', 'long  10']
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def as_rich(sheet: Sheet, width: int) -> Table:
    """For a terminal: the best of all in bold, the best of its group underlined."""
    shown = fitting(sheet, width)
    below = _below(sheet, len(sheet.columns) - len(shown))
    table = Table(
        title=Text(sheet.title, style="bold") if sheet.title else None,
        caption=Text(below) if below else None,
        box=box.SIMPLE_HEAD,
        padding=0 if sheet.tight else (0, GAP - 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for i in shown:
        name = sheet.columns[i]
        head = Text("\n".join(_head(sheet, name)).strip())
        table.add_column(head, justify="right" if i and name not in sheet.words else "left")
    for group in sheet.groups:
        for line in group:
            cells = [_styled(cell) for cell in cells_of(sheet, line)]
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


def as_json(sheet: Sheet) -> dict[str, object]:
    """The cells as they are shown, with their marks."""
    groups = [
        [{"cells": list(x.cells), "best": x.best, "best_in_group": x.best_in_group} for x in group]
        for group in sheet.groups
    ]
    columns = list(sheet.columns)
    return {"title": sheet.title, "caption": sheet.caption, "columns": columns, "groups": groups}


def _below(sheet: Sheet, gone: int) -> str:
    subtitle = f"{sheet.subtitle}. " if sheet.subtitle else ""
    left_out = f" {gone} columns did not fit here: table.txt and report.html have them."
    return f"{subtitle}{sheet.caption}{left_out if gone else ''}"


def _width(sheet: Sheet, column: int) -> int:
    head = _head(sheet, sheet.columns[column])
    return max(len(cell) for cell in (*head, *(line.cells[column] for line in sheet.lines)))


def _head(sheet: Sheet, name: str) -> tuple[str, str]:
    """A column's name on two lines: its last word on the lower, or as the sheet breaks it."""
    short = sheet.short.get(name)
    upper, _, lower = name.rpartition(" ") if short is None else short.rpartition("\n")
    return upper, lower


def _styled(cell: Cell) -> Text:
    style = f"{'bold ' * cell.best}{'underline' * cell.best_in_group}".strip()
    return Text.assemble((cell.text, style), cell.rest)


def _plain(sheet: Sheet, line: Line) -> list[str]:
    """The cells with their marks, and room for the marks where others of the column have them."""
    shown = [f"{cell.text}{cell.rest}" for cell in cells_of(sheet, line)]
    marked = cells_of(sheet, line)[sheet.marked]
    star, rule = "*" if marked.best else " ", "_" if marked.best_in_group else " "
    shown[sheet.marked] = f"{star}{rule}{marked.text}{rule}{marked.rest}"
    return shown
