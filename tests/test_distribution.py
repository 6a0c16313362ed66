"""What is built from this tree has everything in it."""

from pathlib import Path

from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
MADE_HERE = {"data", "dist", "runs", "site", "PKG-INFO"}  # by make, by users, or by the build


def files_of(builder):
    return {file.distribution_path for file in builder(str(ROOT)).recurse_included_files()}


def files_in(folder):
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_the_sdist_has_all_that_its_tests_read():
    top = {path for path in ROOT.iterdir() if not path.name.startswith(".")}
    kept = {path for path in top if path.name not in MADE_HERE}
    wanted = {path for entry in kept for path in files_in(entry) or {entry} if path.is_file()}
    missing = {str(path.relative_to(ROOT)) for path in wanted} - files_of(SdistBuilder)
    assert missing == set(), "add it to the sdist's include in pyproject.toml"


def test_the_wheel_has_every_file_of_the_package_and_nothing_else():
    package = files_in(ROOT / "src/aesam")
    assert {str(path.relative_to(ROOT / "src")) for path in package} == files_of(WheelBuilder)
    assert "aesam/py.typed" in files_of(WheelBuilder)
