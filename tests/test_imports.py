"""`import aesam` loads torch and the standard library, and the layers point one way."""

import ast
import graphlib
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path

import aesam
from aesam.parts.part import Part

SOURCE = Path(aesam.__file__).parent
LOADED = """
import sys, torch
before = {name.partition(".")[0] for name in sys.modules}
import aesam, aesam.sharpness
after = {name.partition(".")[0] for name in sys.modules}
print(*sorted(after - before - set(sys.stdlib_module_names)))
"""

#: Each room may import only from those before it, and from itself.
ROOMS = [
    {
        "parts.checks",
        "_core.adapters",
        "_core.tensors",
        "_core.joined",
        "_core.normals",
        "_core.pieces",
        "_core.messages",
    },
    {"parts", "together"},
    {"searching.ranges", "searching.widening"},
    {"_core"},
    {"optimizer"},
    {"inspection"},
    {"registry"},
    {"from_params"},
    {"methods"},
    {
        "fewer_rows",
        "functional",
        "bi_lora",
        "noisy",
        "single_gradient",
        "mesa",
        "variants",
    },
    {"searching"},
    {"integrations"},
    {"sharpness"},
    {"integrations"},
    {"lab"},
    {"paper"},
    {"evidence"},
    {"__main__"},
]


def test_import_loads_torch_and_nothing_else_beyond_the_standard_library():
    found = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, check=True, text=True
    )
    assert found.stdout.split() == ["aesam"]


def imported_by(path):
    """The modules of ours that a file imports, by their dotted names without `aesam`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aesam":
            package = SOURCE.parent / node.module.replace(".", "/")
            for name in node.names:
                module = f"{node.module}.{name.name}" if is_module(package, name.name) else None
                yield (module or node.module).partition(".")[2]


def is_module(package, name):
    return (package / f"{name}.py").exists() or (package / name / "__init__.py").exists()


def room_of(module):
    """The place of a module in `ROOMS`, by the longest name that it starts with."""
    found = [
        (len(name), place)
        for place, names in enumerate(ROOMS)
        for name in names
        if f"{module}.".startswith(f"{name}.")
    ]
    return max(found)[1]


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if module == "__init__":
            continue
        for other in filter(None, imported_by(path)):
            assert room_of(other) <= room_of(module), f"{module} imports {other}"


def test_no_module_imports_itself_by_a_detour():
    names = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
        for path in SOURCE.rglob("*.py")
        if path.stem != "__init__"
    }
    graph = {name: {m for m in imported_by(path) if m in names} for name, path in names.items()}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_sharpness_stands_on_checks_tensors_and_guards_only():
    allowed = {"parts.checks", "_core.tensors", "_core.guards"}
    for path in (SOURCE / "sharpness").glob("*.py"):
        others = {m for m in imported_by(path) if m.partition(".")[0] != "sharpness"}
        assert others <= allowed, path


def test_the_lab_and_the_paper_stand_on_what_is_public():
    for path in [*(SOURCE / "lab").rglob("*.py"), *(SOURCE / "paper").rglob("*.py")]:
        private = {m for m in imported_by(path) if m.partition(".")[0] == "_core"}
        assert not private, f"{path} imports {private}"


def test_a_writer_of_parts_needs_nothing_private():
    bases = {"Policy", "Ascent", "Samples", "Between", "Combine"}
    handed_and_returned = {"Gradient", "Memory", "Direction", "Decision", "Observation"}
    assert bases | handed_and_returned <= set(aesam.__all__) & set(aesam.parts.__all__)
    assert {"Draws", "Tensors", "Workspace", "global_norm", "checks"} <= set(aesam.parts.__all__)


def test_every_public_name_exists_and_is_documented():
    for name in aesam.__all__:
        assert getattr(aesam, name) is not None
        assert name == "__version__" or getattr(aesam, name).__doc__


def test_every_part_and_method_has_an_example_that_runs():
    modules = (
        aesam.parts.policies,
        aesam.parts.budget,
        aesam.parts.composed,
        aesam.parts.controls,
        aesam.parts.ascents,
        aesam.parts.scaled_ascents,
        aesam.parts.averaged_ascents,
        aesam.parts.chosen_ascents,
        aesam.parts.radii,
        aesam.parts.samples,
        aesam.parts.between,
        aesam.parts.combine,
        aesam.parts.noise,
        aesam.parts.low_rank,
        aesam.parts.trajectory,
    )
    shown = [vars(aesam)[name] for name in aesam.__all__]
    classes = [c for m in modules for c in vars(m).values() if is_dataclass(c)]
    classes = [c for c in classes if issubclass(c, Part)]
    for thing in [*shown, *classes]:
        assert not isinstance(thing, type) or ">>>" in thing.__doc__, thing


def test_no_module_assigns_to_param_data():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign):
                assert not any(getattr(t, "attr", "") == "data" for t in node.targets), path
            assert not isinstance(node, ast.Assert), f"{path} validates with assert"
