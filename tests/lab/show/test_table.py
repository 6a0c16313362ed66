"""One table as data, in all the ways it is shown."""

import io
import re

import pytest
from rich.console import Console

from aesam.lab.show import Line, Sheet, colour_of, table
from aesam.lab.show.page import render

MARKED = Sheet(
    "A & B",
    ("name", "here: accuracy", "p vs one", "λ of it", "remark"),
    (
        (Line(("<b>", "12.00 ± 1", "0.031 <ERM>", "1", "x"), best=True, best_in_group=True),),
        (Line(("sam", "1.00", "–", "", "long words"), method="sam"),),
    ),
    "caption <i>",
    "subtitle",
    named=("p vs one",),
    words=("remark",),
    short={"p vs one": "one\np"},
)


def page_with(sheet):
    rest = dict.fromkeys(("title", "lede", "text", "command", "versions", "source"), "")
    return render("entry.html", sheets=[sheet], found=(), drawings=(), notes=(), **rest)


def test_plain_text_has_marks_rules_between_groups_and_words_to_the_left():
    assert table.as_text(MARKED).splitlines() == [
        "A & B",
        "subtitle",
        "",
        "             here:  one          λ of",
        "name      accuracy  p              it  remark",
        "-" * 49,
        "<b>   *_12.00_ ± 1  0.031 <ERM>     1  x",
        "-" * 49,
        "sam          1.00   –                  long words",
        "",
        "* best of all, _best of its group_. caption <i>",
    ]


def test_json_has_the_cells_as_they_are_shown():
    shown = table.as_json(MARKED)
    assert list(shown) == ["title", "caption", "columns", "groups"]
    assert shown["groups"][0] == [
        {"cells": list(MARKED.lines[0].cells), "best": True, "best_in_group": True}
    ]


def test_a_page_escapes_every_cell_and_marks_the_mean_alone():
    page = page_with(MARKED)
    assert '<th scope="row">&lt;b&gt;</th>' in page
    assert "<h3>A &amp; B</h3>" in page
    assert "caption &lt;i&gt;" in page
    assert '<td><span class="overall group">12.00</span><span class="pm"> ± 1</span></td>' in page
    assert '<td>0.031 <span class="of">&lt;ERM&gt;</span></td>' in page
    assert '<td class="words">long words</td>' in page
    assert page.count("<tbody>") == 2


def test_a_page_puts_a_methods_colour_before_its_row_and_capitals_on_words_but_not_on_symbols():
    page = page_with(MARKED)
    row = page[page.index("<tbody>", page.index("<tbody>") + 1) :]
    assert f'fill="{colour_of("sam")}"' in row[: row.index("sam</th>")]
    assert page.count('class="key"') == 1
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', page)
    assert heads == ["Name", "Here: accuracy", "p vs one", "λ of it", "Remark"]


WIDE = Sheet(
    "T",
    ("method", "accuracy", "spare one", "spare two"),
    ((Line(("ERM", "12.00 ± 1.00", "x" * 30, "y" * 30)),),),
    spare=("spare two", "spare one"),
)


@pytest.mark.parametrize(("width", "shown"), [(120, [0, 1, 2, 3]), (70, [0, 1, 2]), (40, [0, 1])])
def test_a_narrow_terminal_goes_without_spare_columns_and_says_so(width, shown):
    assert table.fitting(WIDE, width) == shown
    console = Console(width=width, file=io.StringIO())
    console.print(table.as_rich(WIDE, width))
    told = console.file.getvalue()
    assert "12.00 ± 1.00" in told
    assert max(map(len, told.splitlines())) <= width
    assert ("did not fit" in told.replace("\n", " ")) == (len(shown) < 4)
