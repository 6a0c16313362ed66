"""What the README and CONTRIBUTING show works as written."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_python_blocks_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_step_overhead_table_is_the_measured_one():
    measured = json.loads((ROOT / "results/step_overhead.json").read_text())["results"]
    page = (ROOT / "README.md").read_text()
    table = re.search(r"<!-- step_overhead -->\n(.*?)\n\n", page, re.DOTALL)
    rows = [
        f"| {name} | {r['milliseconds']['sgd']:.1f} ms "
        f"| {r['milliseconds']['sam'] - r['milliseconds']['sgd']:.1f} ms "
        f"| {r['ratios']['sam_over_theirs']:.2f} | {r['ratios']['skipped_over_sgd']:.2f} |"
        for name, r in measured.items()
    ]
    assert table.group(1).splitlines()[2:] == rows


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"(?:`|\n)make ([a-z]+)", (ROOT / page).read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
