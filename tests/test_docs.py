"""What README, docs and CONTRIBUTING show works as written, and nothing public is left out."""

import importlib.util
import inspect
import json
import os
import pkgutil
import re
import runpy
import shlex
import statistics
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState

import aesam
from aesam import parts, registry, sharpness
from aesam.evidence.benches import BENCHES
from aesam.evidence.book import Book
from aesam.evidence.frontier_page import differences
from aesam.evidence.results import published
from aesam.evidence.standing import difference
from aesam.lab import data, lab_methods, models
from aesam.lab.cli import COMMANDS, parse
from aesam.paper.reproduce import Reproduce

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
}
CODE = {page: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for page, text in PAGES.items()}
SHELL = [
    line.partition("#")[0].strip()
    for text in PAGES.values()
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    for line in block.splitlines()
]


def program(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def left_as_found(tmp_path, monkeypatch):
    """Files go into an empty folder; methods and Accelerate's state are as before afterwards."""
    monkeypatch.chdir(tmp_path)
    registries = {
        registry.forget_method: aesam.list_methods,
        data.forget_data_set: data.list_data_sets,
        models.forget_model: models.list_models,
        lab_methods.forget_lab_method: lab_methods.list_lab_methods,
    }
    before = {forget: known() for forget, known in registries.items()}
    yield
    for forget, known in registries.items():
        for name in set(known()) - set(before[forget]):
            forget(name)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.fixture
def warnings_of_trainers():
    """Lightning warns of its own and its dependencies' doings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# Code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page, blocks in CODE.items() if blocks])
@pytest.mark.usefixtures("left_as_found", "warnings_of_trainers")
def test_the_python_blocks_of_a_page_run_one_after_the_other(page):
    names = {"__name__": "page"}
    for block in CODE[page]:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("sign", ["-", "+"])
def test_both_sides_of_the_readme_s_diff_train(sign):
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGES["README.md"], re.DOTALL)
    side = [line[1:] for line in diff.splitlines() if line[0] in (" ", sign)]
    names = {}
    exec(CODE["README.md"][0], names)
    names |= {"criterion": names["torch"].nn.CrossEntropyLoss(), "steps": 100}
    before = [p.detach().clone() for p in names["model"].parameters()]
    exec("\n".join(side), names)
    assert isinstance(names["opt"], aesam.AESAM) == (sign == "+")
    after = names["model"].parameters()
    assert not any(old.equal(new) for old, new in zip(before, after, strict=True))


#: Keras is told its backend before it is imported, and keeps it: it has a process of its own.
ALONE = {"with_keras.py"}
#: Ray is large: `make test-ray` runs its example.
ELSEWHERE = {"with_ray.py"}
EXAMPLES = sorted({path.name for path in ROOT.glob("examples/*.py")} - ELSEWHERE)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.usefixtures("left_as_found", "warnings_of_trainers")
def test_the_examples_learn_to_read_digits(example, capsys, tmp_path):
    path = str(ROOT / "examples" / example)
    if example in ALONE:
        environment = os.environ | {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
        said = subprocess.run(
            [sys.executable, path], env=environment, stdout=subprocess.PIPE, check=True, text=True
        ).stdout
    else:
        runpy.run_path(path, run_name="__main__")
        said = capsys.readouterr().out
    found = [float(percent) for percent in re.findall(r"([\d.]+) ?% correct", said)]
    assert found
    assert min(found) > 90
    assert "second gradient on" in said


def commands_in_text():
    """Whole command lines in running text: those without a placeholder."""
    text = "\n".join(PAGES.values())
    found = re.findall(
        r"`(aesam (?:train|compare|tune|report|sharpness|data|reproduce) [^`]+)`", text
    )
    return [line for line in found if not re.search(r"[A-Z]{2}|…", line)]


@pytest.mark.parametrize(
    "line", dict.fromkeys([s for s in SHELL if s.startswith("aesam ")] + commands_in_text())
)
def test_command_lines_are_understood(line, monkeypatch):
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    assert callable(parse({**COMMANDS, "reproduce": Reproduce}))


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    for page, text in PAGES.items():
        for target in re.findall(r"(?:`|\n)make ([a-z-]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{target} in {page}"


# Numbers --------------------------------------------------------------------------------------


def test_the_tables_are_the_measured_ones_and_those_of_the_records():
    pages = program("pages")
    for page in pages.pages():
        text = page.read_text()
        assert pages.filled(text) == text, "run: python benchmarks/pages.py"
    for name, table in pages.tables().items():
        assert any(f"<!-- {name} -->\n{table}\n" in text for text in PAGES.values()), name
    for name, shown in pages.pictures().items():
        published = pages.FRONTIER / f"{name}.svg"
        assert shown.read_text() == published.read_text(), "run: python benchmarks/pages.py"


def test_a_default_is_shown_as_what_it_is_to_the_fourth_digit():
    """An average that keeps 0.9995 is not one that keeps 1, which is not allowed."""
    shown = re.findall(
        r"^\| `decay` .*\(mesa\) \| [^|]+ \| (\S+) \|", PAGES["docs/methods.md"], re.MULTILINE
    )
    assert shown == ["0.9995"]


def test_the_picture_is_of_the_measured_numbers():
    picture = program("picture")
    assert picture.description() in picture.PICTURE.read_text(), "run: benchmarks/picture.py"


def test_the_numbers_of_the_readme_are_the_measured_ones():
    said = " ".join(PAGES["README.md"].split())
    found = {s.name: s for s in published(BENCHES["digits-40"], ROOT / "results/frontier")}
    score = {name: f"{each.spread.mean:.1f} %" for name, each in found.items()}
    assert f"SAM has {score['sam']} and plain training {score['erm']}" in said
    assert f"*stopped early* has {score['erm-early']} at a twelfth of the cost" in said
    assert found["erm-early"].samples == pytest.approx(1 / 12, abs=0.01)
    for told, name in (
        ("LookSAM, a direction reused from every 5th step", "looksam-5"),
        ("MSAM, with a ρ that must be met closely", "msam"),
        ("SS-SAM, a coin on half of the steps", "ss-sam"),
        ("AE-LookSAM, the paper's", "ae-looksam"),
        ("LookSAM, reused from every 20th step", "looksam-20"),
        ("ERM, stopped early", "erm-early"),
        ("AE-SAM, the paper's", "ae-sam"),
    ):
        apart = differences(list(found.values()))[name]
        interval = f"{-apart.high:.1f} to {-apart.low:.1f}".replace("-", "−")
        row = f"| {told} | {found[name].samples:.2f} | {-apart.mean:.1f} ({interval}) |"
        assert row in said
    (looksam,) = [
        line for line in PAGES["docs/methods.md"].split("\n\n") if "LookSAM with k = 5" in line
    ]
    apart = differences(list(found.values()))["looksam-5"]
    assert f"{-apart.mean:.1f} points below SAM" in looksam
    assert f"({apart.low:.1f} to +{apart.high:.1f})".replace("-", "−") in looksam


def test_what_is_said_of_clean_cifar_is_measured():
    found = {s.name: s for s in published(BENCHES["cifar-clean"], ROOT / "results/frontier")}
    apart = differences(list(found.values()))
    readme, methods, evidence = (
        " ".join(PAGES[name].split())
        for name in ("README.md", "docs/methods.md", "docs/evidence.md")
    )
    score = {name: f"{each.spread.mean:.1f}" for name, each in found.items()}
    assert (
        f"SAM has {score['sam']} %, plain training {score['erm']} and stopped early "
        f"{score['erm-early']}; there the paper's AE-SAM is as good as SAM at "
        f"{found['ae-sam'].samples:.2f} × the gradients {within(apart['ae-sam'])}"
    ) in readme
    assert apart["ae-sam"].low > -0.5
    coin = difference(found["ae-sam"].scores, found["ss-sam"].scores)
    assert f"could not be told apart there {within(coin)}" in methods
    rho = {name: found[name].settings["rho"] for name in ("sam", "ss-sam", "ae-sam")}
    assert rho["ss-sam"] / rho["sam"] == pytest.approx(2.0, abs=0.1)
    assert 2.7 < rho["ae-sam"] / rho["sam"] < 3.0
    gains = [-apart[name].mean for name in ("erm", "erm-early")]
    assert (
        "SAM gains {:.1f} points on plain training and {:.1f} on plain".format(*gains) in evidence
    )
    assert f"AE-LookSAM is {-apart['ae-looksam'].mean:.1f} below SAM" in evidence
    assert f"sub-batch SAM's interval, {within(apart['sub-sam']).split(', ')[1][:-1]}" in evidence
    cheap = [name for name, each in found.items() if each.samples <= 1.15 and name in apart]
    assert cheap
    assert all(apart[name].low < -0.5 for name in cheap)
    gained = 1.0 - gains[1] / gains[0]
    assert gained == pytest.approx(0.2, abs=0.05)  # a fifth


def within(apart):
    """A difference with its interval, as it stands in a sentence."""
    told = f"({apart.mean:+.1f}, {apart.low:+.1f} to {apart.high:+.1f})"
    return told.replace("-", "−")


def test_what_is_said_of_stopping_early_is_measured():
    bench = BENCHES["digits-40"]
    runs = list(Book(ROOT / "results/frontier/digits-40.json", bench))
    plain = bench.search.training

    def held_out(epochs):
        found = [
            each.summary["validation_accuracy"]
            for each in runs
            if each.run.method.name == "erm"
            and each.run.training == replace(plain, epochs=epochs)
            and each.run.data.holdout > 0.0
        ]
        return statistics.fmean(found)

    best, quarter = held_out(plain.epochs // 12), held_out(plain.epochs // 4)
    said = " ".join(PAGES["docs/methods.md"].split())
    assert f"a quarter is already {best - quarter:.0f} points worse on held-out samples" in said


def test_what_is_said_of_triggers_is_measured():
    told = (ROOT / "results/frontier/triggers-digits-40.txt").read_text()
    half = "digits, 40 % wrong labels, half of the steps, no reuse: adaptive against"
    lines = {line.split("adaptive against ")[1].split(" ")[0]: line
             for line in told.splitlines() if f"- {half}" in line}  # fmt: skip
    assert "as good as each other, within 0.5" in lines["coin"]
    assert "periodic +1.10 " in lines["periodic"]
    assert "better" in lines["periodic"]
    assert "inverted +0.54 " in lines["inverted"]
    assert "better" in lines["inverted"]
    reuse = [line for line in told.splitlines() if line.startswith("- ") and "steps, reuse" in line]
    assert len(reuse) == 6
    assert all("no difference was found" in line or "as good as" in line for line in reuse)
    (rate,) = [line for line in told.splitlines() if "adaptive against coin at one rate" in line]
    assert "−4.74" in rate
    assert "worse" in rate
    (inverted,) = [
        line for line in told.splitlines() if "rule, no reuse: adaptive against inverted" in line
    ]
    assert "inverted −2.02 " in inverted
    assert "worse" in inverted
    coins = [
        line for line in told.splitlines() if "paper's rule" in line and "against coin " in line
    ]
    alike = [line for line in coins if "coin at" not in line]
    assert ["no difference" in line for line in alike] == [True, False]
    assert "coin −0.57" in alike[1]
    assert "worse" in alike[1]


def test_the_cost_in_the_readme_is_the_measured_one():
    rows = json.loads((ROOT / "results/cost-cifar10/results.json").read_text())["rows"]
    said = " ".join(PAGES["README.md"].split())
    share = f"{rows['ae-sam']['percent_sam']:.0f} % of the steps {rows['ae-sam']['alone']:.2f} ×"
    assert f"SAM takes {rows['sam']['alone']:.2f} × the time" in said
    assert f"a second gradient on {share}" in said


def test_wherever_a_table_of_the_papers_grid_is_shown_it_is_said_that_it_decides_nothing():
    for text in PAGES.values():
        if "<!-- noise_digits -->" in text or "<!-- noise_cifar -->" in text:
            assert "edge of the paper's\n    grid" in text
            assert "made with SAM's ρ for all" in text
            assert "decide nothing between methods" in text


def test_results_are_small_and_say_how_they_were_made():
    for path in (ROOT / "results").rglob("*"):
        assert path.is_dir() or path.stat().st_size < 300_000, path
        if path.suffix == ".json" and "runs" not in path.parts:
            assert json.loads(path.read_text())["command"], path


# Names ----------------------------------------------------------------------------------------


def resolved(path):
    """The object that a page of the API names."""
    return pkgutil.resolve_name(path)  # integrations are imported when asked for


def documented():
    """All objects that the API pages show: those named, and the members of modules."""
    text = "".join(text for page, text in PAGES.items() if page.startswith("docs/api/"))
    for path, options in re.findall(r"^::: (\S+)\n(?:    options: (.*))?", text, re.MULTILINE):
        found = resolved(path)
        yield found
        if isinstance(found, ModuleType) and "members: false" not in options:
            yield from own_members(found)


def own_members(module):
    """Public classes and functions that are defined in the module."""
    for name, member in vars(module).items():
        if not name.startswith("_") and getattr(member, "__module__", None) == module.__name__:
            yield member


def public():
    modules = [m for m in vars(parts).values() if isinstance(m, ModuleType) and m is not parts.part]
    for module in (aesam, sharpness, parts):
        for name in set(module.__all__) - {"__version__", "parts"}:
            yield f"{module.__name__}.{name}", getattr(module, name)
    for module in modules:
        for member in own_members(module):
            if inspect.isclass(member) or inspect.isfunction(member):
                yield f"{module.__name__}.{member.__name__}", member


PUBLIC = dict(sorted(public()))


def test_every_public_name_is_in_the_api():
    shown = {id(found) for found in documented()}
    assert [name for name, found in PUBLIC.items() if id(found) not in shown] == []


def test_paths_and_links_that_are_named_exist():
    for page, text in PAGES.items():
        for path in re.findall(r"`((?:results|tests|docs|examples|benchmarks)/[\w./-]+)`", text):
            assert (ROOT / path).exists(), f"{path} in {page}"
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / page).parent.joinpath(link).exists(), f"{link} in {page}"


def test_the_walks_go_through_modules_that_exist():
    named = re.findall(r"`((?:_core|lab|paper|parts|sharpness)[.\w]*)`", PAGES["docs/walks.md"])
    assert named
    assert [name for name in named if importlib.util.find_spec(f"aesam.{name}") is None] == []


def test_the_readme_is_a_front_page():
    lines = PAGES["README.md"].splitlines()
    assert len(lines) <= 150
    assert "https://openreview.net/forum?id=6Wl7-M2BC-" in "".join(lines[:6])


def test_the_citation_is_of_this_version():
    assert f"\nversion: {aesam.__version__}\n" in (ROOT / "CITATION.cff").read_text()
