"""The command where its packages are missing: a sentence that says what to install."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from support.commands import aesam

import aesam as library
from aesam.__main__ import PACKAGES

ROOT = Path(__file__).parents[1]
SOURCE = str(Path(library.__file__).parents[1])


def needed_by(name, found=None):
    """A distribution and all that it needs, by name."""
    found = {} if found is None else found
    try:
        found[name] = distribution(name)
    except PackageNotFoundError:  # for another system
        return found
    for needed in found[name].requires or ():
        other = re.match(r"[\w.-]+", needed)[0]
        if "extra ==" not in needed and other not in found:
            needed_by(other, found)
    return found


@pytest.fixture(scope="module")
def torch_only(tmp_path_factory):
    """A folder with torch and what it needs, as after `pip install .` in an empty environment."""
    folder = tmp_path_factory.mktemp("site-packages")
    for each in needed_by("torch").values():
        for name in {file.parts[0] for file in each.files if file.parts[0] != ".."}:
            there = Path(each.locate_file(name)).resolve()
            if there.exists() and not (folder / name).exists():
                (folder / name).symlink_to(there)
    return folder


@pytest.mark.slow
def test_with_torch_alone_the_command_says_what_to_install(torch_only):
    path = os.pathsep.join([SOURCE, str(torch_only)])
    found = subprocess.run(
        [sys.executable, "-S", "-m", "aesam", "--help"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert found.returncode == 1
    assert "pip install 'aesam[lab]'" in found.stderr
    assert "tyro" in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


@pytest.mark.parametrize("module", PACKAGES)
def test_each_missing_package_is_named(module, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    code, told = aesam("--version", capsys=capsys)
    assert code == 1
    assert told == (
        f"aesam: the command needs its extra: pip install 'aesam[lab]' "
        f"({PACKAGES[module]} missing)\n"
    )


def test_the_packages_looked_for_are_those_of_the_extra():
    (extra,) = re.findall(
        r"^lab = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
    )
    assert re.findall(r'"([\w-]+)', extra) == sorted(PACKAGES.values())


def test_the_version_is_told(capsys):
    assert aesam("--version", capsys=capsys) == (0, f"aesam {library.__version__}\n")
