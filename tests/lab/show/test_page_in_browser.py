"""The report as a browser shows it, at a phone's size and at a desk's."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image
from support.fixtures_report import write_comparison

from aesam.lab.show import write_report

PHONE, DESK = (390, 844), (1280, 900)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
# Chromium's window is never narrower than 500 pixels, so the page stands in a frame of the wanted
# width, and a script at its end (in a copy) tells the frame's owner how wide it turned out.
FRAME = """<!doctype html><body style="margin:0"><p id="widths" hidden></p><script>
addEventListener("message", told => document.getElementById("widths").textContent = told.data)
</script><iframe src="{name}" style="border:0;display:block;width:{width}px;height:{height}px">
</iframe></body>"""
TELL = """<script>addEventListener("load", () => {
const boxes = [...document.querySelectorAll("main *:not(.scroll *):not(svg *)")]
parent.postMessage(JSON.stringify([document.documentElement.scrollWidth, innerWidth,
Math.ceil(Math.max(...boxes.map(box => box.getBoundingClientRect().right)))]), "*")})</script>"""


@pytest.fixture(scope="module")
def browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    hint = "no Chromium to look at the report with: apt-get install chromium, or your system's way"
    return pytest.fail(hint) if os.environ.get("CI") else pytest.skip(hint)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_report([write_comparison(folder / "runs", epochs=10)], folder, command="aesam compare")
    return folder / "report.html"


def browse(browser, page, size, *flags):
    """Open a page in a frame of the given size; the window has room for it."""
    frame = page.with_name(f"frame-{page.stem}-{size[0]}.html")
    frame.write_text(FRAME.format(name=page.name, width=size[0], height=size[1]))
    own = page.with_name("profile")
    window = f"--window-size={max(500, size[0])},{size[1]}"
    command = [browser, *FLAGS, f"--user-data-dir={own}", window, *flags, frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_report_shows_something_at(browser, report, size, tmp_path):
    picture = tmp_path / "screenshot.png"
    browse(browser, report, size, f"--screenshot={picture}")
    pixels = np.asarray(Image.open(picture).convert("RGB"))[: size[1], : size[0]]
    colours, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
    assert len(colours) > 100
    assert counts.max() / counts.sum() < 0.98


@pytest.mark.slow
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_report_does_not_scroll_sideways_at(browser, report, size):
    text = report.read_text(encoding="utf-8")
    # The page's own policy forbids scripts, so the copy that measures goes without it.
    text, policies = re.subn(r"<meta http-equiv[^>]*>", "", text)
    assert policies == 1
    copy = report.with_name(f"measured-{size[0]}.html")
    copy.write_text(text.replace("</body>", TELL + "</body>"), encoding="utf-8")
    dom = browse(browser, copy, size, "--virtual-time-budget=5000", "--dump-dom")
    scroll, inner, rightmost = map(int, re.findall(r"\d+", re.search(r"<p id=.*?</p>", dom)[0]))
    assert inner == size[0]
    assert scroll <= inner
    assert rightmost <= inner
