"""Small changes to the core, each of which a test should notice.

    python benchmarks/mutants.py --count 200 --out results/mutants.json

A comparison is turned round, a constant is another, a statement is left out: one at a time, drawn
by a seed from the files that a step goes through, each tried by the tests of the core until one
fails. Those that no test notices are listed; ``reasons`` in the file, kept when it is written
again, say why each is harmless. Needs a system that can fork: torch is imported once.
"""

import argparse
import ast
import copy
import importlib
import json
import os
import random
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CORE = ROOT / "src/aesam"
FILES = (
    "optimizer.py", "_core/ledger.py", "_core/step.py", "_core/blocks.py", "_core/tensors.py",
    "_core/guards.py", "_core/closures.py", "_core/backwards.py", "_core/bystanders.py",
    "_core/around_base.py", "_core/checkpoint.py", "_core/base_state.py", "_core/layout.py",
    "_core/recording.py", "_core/replay_check.py", "parts/part.py", "parts/policies.py",
    "parts/ascents.py", "parts/between.py", "parts/combine.py", "parts/samples.py",
)  # fmt: skip
#: Each is for those that the ones before have not noticed, the fastest first. Tests that start
#: processes would see no change, and slow ones and those of other bases take long: left out.
ROUNDS = (
    ("tests/test_twin.py", "tests/test_limits.py", "tests/_core/test_failures.py", "tests/parts"),
    ("tests/_core/test_guards.py", "tests/_core/test_checkpoint.py", "tests/_core/test_before.py",
     "tests/_core/test_bystanders.py", "tests/test_parameters.py", "tests/test_amp.py",
     "tests/test_torch_conventions.py", "tests/test_schedules.py", "tests/test_total_steps.py"),
    ("tests/test_replay.py", "tests/_core/test_cost.py", "tests/_core/test_state_machine.py"),
)  # fmt: skip
#: Who notices a change of these files first.
NEAREST = {
    "_core/blocks.py": "tests/faults/test_interrupted_steps.py",
    "_core/backwards.py": "tests/test_replay.py",
    "_core/recording.py": "tests/test_replay.py",
    "_core/replay_check.py": "tests/test_replay.py",
    "_core/bystanders.py": "tests/_core/test_bystanders.py",
    "_core/guards.py": "tests/_core/test_guards.py",
    "_core/checkpoint.py": "tests/_core/test_checkpoint.py",
    "_core/layout.py": "tests/_core/test_checkpoint.py",
    "_core/base_state.py": "tests/faults/test_state_dicts.py",
    "_core/around_base.py": "tests/test_torch_conventions.py",
    "_core/tensors.py": "tests/test_parameters.py",
}
PYTEST = ("-q", "-p", "no:xdist", "-Wignore::pytest.PytestAssertRewriteWarning")
LIMIT = 300  # seconds; a mutant that hangs is noticed

OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What can be done to a node: in words, and a function that gives the other node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in OTHER:
            yield "comparison turned round", lambda n: _set(n, ops=[OTHER[type(op)]()])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in OTHER:
            yield "operator changed", lambda n: _set(n, op=OTHER[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not left out", lambda _: operand
        case ast.Constant(value=bool() as value):
            yield "switch turned", lambda n: _set(n, value=not value)
        case ast.Constant(value=int() | float() as value):
            yield "number changed", lambda n: _set(n, value=value + 1)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "statement left out", lambda _: ast.Pass()
        case _:
            return


def _set(node: ast.AST, **fields: Any) -> ast.AST:
    for name, value in fields.items():
        setattr(node, name, value)
    return node


class Mutator(ast.NodeTransformer):
    """Makes the change with this number, and counts those that there are."""

    def __init__(self, wanted: int = -1) -> None:
        self._wanted, self.count, self.made = wanted, 0, ""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Raise | ast.JoinedStr):  # words for users
            return node
        if isinstance(node, ast.arg | ast.AnnAssign) and getattr(node, "annotation", None):
            return node if isinstance(node, ast.arg) else self._value_of(node)
        node = self.generic_visit(node)
        for what, change in changes(node):
            self.count += 1
            if self.count - 1 == self._wanted:
                line = ast.unparse(node).splitlines()[0]
                changed = change(copy.deepcopy(node))
                self.made = f"line {getattr(node, 'lineno', 0)}: {what}: {line}"
                return ast.copy_location(changed, node)
        return node

    def _value_of(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        return node


def mutants() -> list[tuple[str, int]]:
    """Every change that there is, by file and number."""
    found: list[tuple[str, int]] = []
    for name in FILES:
        counter = Mutator()
        counter.visit(ast.parse((CORE / name).read_text()))
        found += [(name, i) for i in range(counter.count)]
    return found


def put_in_place(name: str, source: str) -> None:
    """Let the module that is imported do what the changed source says, function by function."""
    module = importlib.import_module("aesam." + name.removesuffix(".py").replace("/", "."))
    changed = types.ModuleType(module.__name__)
    changed.__dict__.update({"__file__": module.__file__, "__package__": module.__package__})
    sys.modules[module.__name__] = changed  # where dataclasses look up the names of types
    exec(compile(source, str(CORE / name), "exec"), changed.__dict__)
    sys.modules[module.__name__] = module
    _put(module, vars(changed), module.__name__)


def _put(owner: Any, changed: dict[str, Any], module: str) -> None:
    for name, new in list(changed.items()):
        old = vars(owner).get(name)
        if isinstance(new, type):
            if new.__module__ == module and isinstance(old, type):
                _put(old, dict(vars(new)), module)
        elif isinstance(new, bool | int | float | tuple | frozenset) and not name.startswith("__"):
            setattr(owner, name, new)
        else:
            for one, other in zip(_functions(old), _functions(new), strict=False):
                one.__code__, one.__defaults__ = other.__code__, other.__defaults__
                one.__kwdefaults__ = other.__kwdefaults__


def _functions(value: Any) -> list[Any]:
    """The functions of a method, a property or a decorated function."""
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset) if f is not None]
    value = getattr(value, "__func__", None) or getattr(value, "func", None) or value
    while hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return [value] if isinstance(value, types.FunctionType) else []


def source_of(name: str, number: int) -> tuple[str, str]:
    """The changed source of a file, and what was changed in it."""
    mutator = Mutator(number)
    tree = mutator.visit(ast.parse((CORE / name).read_text()))
    return ast.unparse(ast.fix_missing_locations(tree)), mutator.made


def is_noticed(name: str, source: str) -> bool:
    """Whether a test fails with this source of the file; the fastest tests are asked first."""
    nearest = ((NEAREST[name],),) if name in NEAREST else ()
    return any(_fails(name, source, tests) for tests in (*nearest, *ROUNDS))


def _fails(name: str, source: str, tests: tuple[str, ...]) -> bool:
    """In a process of its own; one that hangs is ended, and has failed."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        code = 99
        try:
            code = _run(name, source, tests)
        finally:
            os._exit(code)
    ends = time.monotonic() + LIMIT
    while time.monotonic() < ends:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended and os.waitstatus_to_exitcode(status) == 99:
            raise RuntimeError(f"a change of {name} cannot be put in place")
        if ended:
            return status != 0
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _run(name: str, source: str, tests: tuple[str, ...]) -> int:
    """In a process where everything is imported already, so that only the tests take time."""
    import pytest

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    put_in_place(name, source)
    quick = ("-m", "not slow") if len(tests) > 1 else ()
    return int(pytest.main(["-x", *PYTEST, *quick, *tests]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results/mutants.json")
    given = parser.parse_args()
    os.chdir(ROOT)
    import pytest
    import torch

    torch.set_num_threads(1)
    # All of it is imported once, before any process is forked.
    pytest.main(["--collect-only", "-qq", *PYTEST, *(t for tests in ROUNDS for t in tests)])
    if is_noticed(FILES[0], (CORE / FILES[0]).read_text()):
        raise RuntimeError("the tests fail without any change: mend that first")
    every = mutants()
    chosen = random.Random(given.seed).sample(every, min(given.count, len(every)))
    before = json.loads(given.out.read_text()) if given.out.exists() else {}
    reasons, survivors = before.get("reasons", {}), list[str]()
    for i, (name, number) in enumerate(chosen, 1):
        source, made = source_of(name, number)
        noticed = is_noticed(name, source)
        if not noticed:
            survivors.append(f"{name}, {made}")
        print(
            f"{i}/{len(chosen)} {'noticed' if noticed else 'SURVIVED'} {name}, {made}", flush=True
        )
    found = {
        "command": f"python benchmarks/mutants.py --count {given.count} --seed {given.seed}",
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
        "of": len(every),
        "tried": len(chosen),
        "noticed": len(chosen) - len(survivors),
        "survivors": survivors,
        "reasons": {s: reasons.get(s, "") for s in survivors},
    }
    given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
