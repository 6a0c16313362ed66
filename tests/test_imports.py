"""`import aesam` loads torch and the standard library, and the layers point one way."""

import ast
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path

import aesam
from aesam.axis import Axis

SOURCE = Path(aesam.__file__).parent
LOADED = """
import sys, torch
before = {name.partition(".")[0] for name in sys.modules}
import aesam, aesam.sharpness
after = {name.partition(".")[0] for name in sys.modules}
print(*sorted(after - before - set(sys.stdlib_module_names)))
"""

#: Each layer may import only from those before it.
LAYERS = [
    {"checks", "tensors", "stack", "messages"},
    {"axis", "gradient"},
    {"policies", "ascents", "samples", "between", "combine", "guards", "closures"},
    {"controls"},
    {"displacement", "perturbed", "construction"},
    {"run"},
    {"parts"},
    {"checkpoint"},
    {"optimizer"},
    {"methods", "wrappers"},
]


def test_import_loads_torch_and_nothing_else_beyond_the_standard_library():
    found = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, check=True, text=True
    )
    assert found.stdout.split() == ["aesam"]


def imported_by(module):
    for node in ast.walk(ast.parse((SOURCE / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "aesam":
            yield from (a.name for a in node.names if is_module(a.name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aesam."):
            yield node.module.split(".")[1]


def is_module(name):
    return (SOURCE / f"{name}.py").exists() or (SOURCE / name).is_dir()


def test_imports_point_one_way():
    level = {module: i for i, layer in enumerate(LAYERS) for module in layer}
    assert set(level) == {p.stem for p in SOURCE.glob("*.py")} - {"__init__"}
    for module, height in level.items():
        for other in imported_by(module):
            assert other in level, f"{module} imports {other}, which stands on it"
            assert level[other] < height, f"{module} imports {other}"


def test_sharpness_stands_on_checks_tensors_and_guards_only():
    for path in (SOURCE / "sharpness").glob("*.py"):
        module = str(path.relative_to(SOURCE).with_suffix(""))
        assert set(imported_by(module)) <= {"checks", "tensors", "guards", "sharpness"}, path


def test_every_public_name_exists_and_is_documented():
    for name in aesam.__all__:
        assert getattr(aesam, name) is not None
        assert name == "__version__" or getattr(aesam, name).__doc__


def test_every_part_and_method_has_an_example_that_runs():
    modules = (
        aesam.policies,
        aesam.controls,
        aesam.ascents,
        aesam.samples,
        aesam.between,
        aesam.combine,
    )
    shown = [vars(aesam)[name] for name in aesam.__all__]
    classes = [c for m in modules for c in vars(m).values() if is_dataclass(c)]
    classes = [c for c in classes if issubclass(c, Axis)]
    for thing in [*shown, *classes]:
        assert not isinstance(thing, type) or ">>>" in thing.__doc__, thing


def test_no_module_assigns_to_param_data():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign):
                assert not any(getattr(t, "attr", "") == "data" for t in node.targets), path
            assert not isinstance(node, ast.Assert), f"{path} validates with assert"
