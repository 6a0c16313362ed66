import re
from html.parser import HTMLParser

import pytest
from support.fixtures_report import write_comparison, write_short_run

from aesam.lab.show import compare, html_report, read_runs, write_report

pytestmark = pytest.mark.slow
COMMAND = "aesam compare --dataset digits --noise 0.6"
NOTE = "ρ was chosen on a <held-out> tenth"
HOSTILE = "<script>alert('x')</script><img src=x onerror=\"y\">$\\frac & \x1b[31m"


class Outline(HTMLParser):
    """Checks that every element is closed in order, and keeps what it saw."""

    VOID = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def values(self, wanted):
        return [value for _, name, value in self.attributes if name == wanted]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return write_comparison(root, methods=("erm", "sam", "ae-sam"), epochs=4, noises=(0.2, 0.6))


def page_of(root, notes=(), command=COMMAND):
    runs = read_runs([root])
    title = "Sharpness-aware training on digits"
    return html_report(compare(runs), runs, title=title, command=command, notes=list(notes))


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "new" / "folder"
    return out, write_report([folder], out, command=COMMAND, notes=(NOTE,))


@pytest.fixture(scope="module")
def page(written):
    return (written[0] / "report.html").read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_has_a_place_for_everything(page):
    outline = Outline(page)
    assert outline.tags.count("h1") == 1
    assert outline.tags.count("figure") == 2 * 7  # cost, % SAM, four curves, AE-SAM's decisions
    assert outline.tags.count("table") == 2 * 3  # results, every run, settings
    for wanted in ("20 % label noise", "60 % label noise", "How this was made", COMMAND):
        assert wanted in outline.text
    for wanted in (NOTE, "ρ = 0.15", "epochs = 4", "torch 2.13.0"):
        assert wanted in outline.text
    assert "18 finished runs" in outline.text


def test_every_figure_is_labelled_for_those_who_do_not_see_it(page):
    outline = Outline(page)
    images = [tag for tag, name, value in outline.attributes if (name, value) == ("role", "img")]
    assert images == ["svg"] * 14
    labels = [
        value for tag, name, value in outline.attributes if (tag, name) == ("svg", "aria-label")
    ]
    assert len(labels) == 14
    assert all(len(label) > 20 for label in labels)


def test_the_page_asks_nobody_for_anything_and_runs_nothing(page):
    outline = Outline(page)
    assert not {"script", "link", "iframe", "object", "embed", "img", "image"} & set(outline.tags)
    assert "http://" not in page
    assert "https://" not in page
    assert outline.values("src") == []
    assert all(
        value.startswith("#") for name in ("href", "xlink:href") for value in outline.values(name)
    )
    assert re.findall(r"url\((?!#)", page) == []
    assert not [name for _, name, _ in outline.attributes if name.startswith("on")]
    assert "default-src 'none'" in page


def test_ids_are_unique_and_links_lead_somewhere(page):
    outline = Outline(page)
    ids = outline.values("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in outline.values("href")} <= set(ids)


def test_the_page_is_made_for_phones_and_for_dark_rooms(page):
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "prefers-color-scheme: dark" in page


def test_whatever_stands_in_the_files_is_shown_and_never_obeyed(tmp_path):
    for seed in range(2):
        for rho in (0.1, HOSTILE):
            write_short_run(
                tmp_path,
                HOSTILE,
                seed,
                data={"name": HOSTILE},
                settings={"rho": rho, HOSTILE: 1.0},
                training={"optimizer": HOSTILE},
                versions={HOSTILE: HOSTILE},
                test_accuracy=60.0 + seed,
            )
    outline = Outline(page_of(tmp_path, [HOSTILE], HOSTILE))
    assert "script" not in outline.tags
    assert "img" not in outline.tags
    assert not [name for _, name, _ in outline.attributes if name.startswith("on")]
    assert "<script>alert('x')</script>" in outline.text


def test_the_page_is_the_same_every_time(folder, page):
    assert page_of(folder, [NOTE]) == page


def test_one_run_of_one_method_makes_a_page(tmp_path):
    write_short_run(tmp_path, "sam", test_accuracy=None, validation_accuracy=71.0)
    text = Outline(page_of(tmp_path)).text
    assert "1 method, 1 seed, 1 finished run" in text
    assert "Validation accuracy" in text
