"""What the README and CONTRIBUTING show works as written."""

import importlib.util
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


def test_the_tables_of_the_readme_are_the_measured_ones():
    page = (ROOT / "README.md").read_text()
    spec = importlib.util.spec_from_file_location("readme", ROOT / "benchmarks/readme.py")
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    for name, table in readme.tables().items():
        assert f"<!-- {name} -->\n{table}\n" in page, "run: python benchmarks/readme.py"


def test_results_are_small_and_say_how_they_were_made():
    for path in (ROOT / "results").rglob("*"):
        assert path.is_dir() or path.stat().st_size < 300_000, path
        if path.suffix == ".json" and "runs" not in path.parts:
            assert json.loads(path.read_text())["command"], path


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"(?:`|\n)make ([a-z]+)", (ROOT / page).read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
