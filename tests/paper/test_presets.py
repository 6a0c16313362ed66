"""What the presets train: the paper's set-up to the letter, and its small relatives."""

import hashlib
import json
from importlib import resources
from pathlib import Path

import pytest

from aesam.lab import validation
from aesam.lab.errors import UsageError
from aesam.paper import paper_numbers, setups, tuning
from aesam.paper.entries import ENTRIES, Trained
from aesam.paper.plan import runs_of
from aesam.paper.setups import Options

PAPER = Options(preset="paper")
RESULTS = Path(__file__).parents[2] / "results"
TRAINED = [name for name, entry in ENTRIES.items() if isinstance(entry, Trained)]


def panels_of(name, options):
    entry = ENTRIES[name]
    return entry.panels(options, entry.setups(options))


def test_every_entry_of_the_paper_has_a_name():
    assert list(ENTRIES) == [
        "table-cifar", "table-imagenet", "table-noise", "table-looksam-k", "fig-variance",
        "fig-squared-norm", "fig-normality", "fig-noise-curves", "fig-lambda", "fig-convergence",
        "theorem", "cost",
    ]  # fmt: skip
    assert all(set(entry.needs) == {"small", "paper"} for entry in ENTRIES.values())


@pytest.mark.parametrize(
    "options",
    [Options(seeds=(0,)), Options(data="cifar10", seeds=(0,)), Options("paper", seeds=(0,))],
)
@pytest.mark.parametrize("name", TRAINED)
def test_every_planned_run_could_be_trained(name, options):
    runs = runs_of(panels_of(name, options))
    assert runs
    for run in runs:
        validation.check(run)


@pytest.mark.parametrize(
    ("model", "epochs", "beta"),
    [
        ("resnet18", 200, 0.6),
        ("wrn-28-10", 200, 0.5),
        ("pyramidnet-110", 300, 0.5),
        ("vit-s", 1200, 0.6),
    ],
)
def test_table_1_is_the_paper_s_to_the_letter(model, epochs, beta):
    runs = [r for r in runs_of(panels_of("table-cifar", PAPER)) if r.model.name == model]
    assert {r.data.name for r in runs} == {"cifar10", "cifar100"}
    assert {r.seed for r in runs} == set(range(5))
    assert len(runs) == 2 * 7 * 5
    for run in runs:
        training, method = run.training, run.method
        assert (training.epochs, training.batch_size) == (epochs, 128)
        assert (training.lr, training.momentum, training.weight_decay) == (0.1, 0.9, 1e-4)
        assert run.data.augment
        assert run.data.cutout is None
        assert training.label_smoothing == 0.0
        assert method.get("k") in (None, 5)
        assert method.get("beta") in (None, beta)
        assert run.model.patch == (4 if model == "vit-s" else None)
    thresholds = {(r.method.name, r.method.get("lambda1"), r.method.get("lambda2")) for r in runs}
    assert ("ae-sam", -1.0, 1.0) in thresholds
    assert ("ae-looksam", 0.0, 2.0) in thresholds


def test_table_2_is_imagenet_with_its_fixed_radius():
    runs = runs_of(panels_of("table-imagenet", PAPER))
    assert {r.model.name for r in runs} == {"resnet50"}
    assert {(r.training.epochs, r.training.batch_size) for r in runs} == {(90, 512)}
    assert {r.seed for r in runs} == {0, 1, 2}
    assert {r.method.get("rho") for r in runs} == {None, 0.05}


def test_table_3_takes_k_2_and_the_same_thresholds_for_both():
    runs = runs_of(panels_of("table-noise", PAPER))
    assert {r.model.name for r in runs} == {"resnet18", "resnet32"}
    assert {r.data.noise for r in runs} == {0.2, 0.4, 0.6, 0.8}
    assert {r.method.get("k") for r in runs if r.method.name == "looksam"} == {2}
    adaptive = [r.method for r in runs if r.method.name.startswith(("ae-", "matched", "inverted"))]
    assert {(m.get("lambda1"), m.get("lambda2")) for m in adaptive} == {(-1.0, 1.0)}


@pytest.mark.parametrize(
    "name", ["table-noise", "table-noise-cifar10", "table-looksam-k", "fig-noise-curves"]
)
def test_the_published_noise_tables_are_of_the_runs_that_are_planned(name):
    """What a comparison's default settings are today changes nothing of them."""
    published = json.loads((RESULTS / name / "results.json").read_text())["comparisons"]
    levels = tuple(each["settings"]["data"]["noise"] for each in published)
    data = "cifar10" if name.endswith("cifar10") else "digits"
    planned = panels_of(name.removesuffix("-cifar10"), Options(data=data, noise=levels))
    assert [
        {row.label: row.runs[0].method.settings for row in panel.rows} for panel in planned
    ] == [{row["label"]: _set(row["settings"]) for row in each["rows"]} for each in published]


def _set(settings):
    return {name: value for name, value in settings.items() if value is not None}


def test_the_noise_table_has_the_controls_by_itself_and_others_by_flag():
    names = {row.method for row in panels_of("table-noise", PAPER)[0].rows}
    controls = {"erm-long", "late-sam", "matched-sam", "inverted-sam", "matched-looksam",
                "inverted-looksam"}  # fmt: skip
    assert controls <= names
    assert "erm-early" not in names  # came after the tables were published
    assert not controls & {row.method for row in panels_of("table-cifar", PAPER)[0].rows}
    flagged = Options(preset="paper", controls=True)
    assert controls <= {row.method for row in panels_of("table-cifar", flagged)[0].rows}
    without = Options(preset="paper", controls=False)
    assert not controls & {row.method for row in panels_of("table-noise", without)[0].rows}


def test_every_table_takes_controls_by_flag():
    for name in ("table-cifar", "table-imagenet", "table-noise", "table-looksam-k"):
        (panel, *_) = panels_of(name, Options(controls=True))
        assert {row.method for row in panel.rows} >= {"erm-long", "late-sam", "matched-looksam"}


def test_equal_time_is_twice_the_epochs():
    rows = {row.method: row for row in panels_of("table-noise", PAPER)[0].rows}
    assert rows["erm-long"].runs[0].method == rows["erm"].runs[0].method
    assert rows["erm-long"].runs[0].training.epochs == 2 * rows["erm"].runs[0].training.epochs


def test_lambdas_are_all_ordered_pairs():
    for panel in panels_of("fig-lambda", PAPER):
        methods = [row.runs[0].method for row in panel.rows]
        pairs = {(m.get("lambda1"), m.get("lambda2")) for m in methods}
        assert len(pairs) == 15
        assert all(low <= high for low, high in pairs)
    noisy = [p for p in panels_of("fig-lambda", PAPER) if p.rows[0].method == "ae-looksam"]
    assert {p.rows[0].runs[0].data.noise for p in noisy} == {0.8}


def test_figures_share_their_runs():
    assert runs_of(panels_of("fig-variance", PAPER)) == runs_of(
        panels_of("fig-squared-norm", PAPER)
    )
    table = set(runs_of(panels_of("table-noise", PAPER)))
    assert set(runs_of(panels_of("fig-noise-curves", PAPER))) <= table


def test_the_search_is_the_paper_s_grid_on_a_tenth():
    setup = setups.cifar(PAPER)[0]
    grid = tuning.grid(setup, "ae-looksam")
    assert {r.method.get("rho") for r in grid} == {0.01, 0.02, 0.05, 0.1, 0.2, 0.5}
    assert {r.method.get("alpha") for r in grid} == {0.1, 0.3, 0.6, 0.9}
    assert len(grid) == 24
    assert {r.data.holdout for r in grid} == {0.1}
    assert len(tuning.grids(setup, ["erm", "erm-long", "sam", "matched-sam", "ae-sam"])) == 12
    imagenet = setups.imagenet(PAPER)[0]
    assert [r.method.get("rho") for r in tuning.grid(imagenet, "sam")] == [0.05]
    assert tuning.grids(imagenet, ["sam", "ae-sam"]) == []  # nothing to choose
    noisy = setups.noisy(Options())[0]
    radii = {r.method.get("rho") for r in tuning.grid(noisy, "sam")}
    assert radii == {0.01, 0.02, 0.05, 0.1, 0.2, 0.5}


def test_only_what_is_shown_is_searched():
    def searched(name):
        entry = ENTRIES[name]
        return [
            (setup.base.model.name, setup.noise, set(names))
            for setup, names in entry.searched(PAPER, entry.setups(PAPER))
        ]

    assert searched("table-looksam-k") == [
        ("resnet18", noise, {"looksam"}) for noise in (0.2, 0.4, 0.6, 0.8)
    ]
    assert {(noise, *names) for _, noise, names in searched("fig-lambda")} == {
        (0.0, "ae-sam"), (0.8, "ae-looksam"),
    }  # fmt: skip


def test_an_unfinished_search_is_said_to_be_one():
    setup = setups.cifar(PAPER)[0]
    chosen = tuning.chosen(setup, ["erm", "sam"], lambda run: None)
    assert "the search is not finished: 0 of its 6 runs are" in chosen.how_chosen
    assert "not finished" not in tuning.chosen(setup, ["erm"], lambda run: None).how_chosen
    imagenet = tuning.chosen(setups.imagenet(PAPER)[0], ["looksam"], lambda run: None).how_chosen
    assert imagenet.startswith("ρ = 0.05 as in the paper. α from the paper's grids")
    small = tuning.chosen(setups.cifar(Options())[0], ["sam"], lambda run: None).how_chosen
    assert small.startswith("ρ from")
    assert "40 images" in small
    noisy = tuning.chosen(setups.noisy(Options())[0], ["sam"], lambda run: None)
    assert noisy.how_chosen.startswith("ρ from the paper's grids")  # and nothing before it
    assert noisy.chosen_at_k == 2


@pytest.mark.parametrize(
    ("table", "where", "shown", "share"),
    [
        (
            "cifar",
            {"model": "resnet18", "dataset": "cifar10", "method": "ae-sam"},
            "96.63 ± 0.04",
            50.1,
        ),
        ("cifar", {"model": "vit-s16", "dataset": "cifar100", "method": "erm"}, None, 0),
        ("imagenet", {"method": "erm"}, "77.11 ± 0.14", 0),
        ("label-noise", {"model": "resnet18", "noise": 0.2, "method": "erm"}, "87.92", 0),
        ("looksam-k", {"k": 2, "noise": 0.2}, "92.72", 50),
    ],
)
def test_the_paper_s_numbers_ship_with_the_lab(table, where, shown, share):
    found = paper_numbers.find(table, **where)
    assert found.percent_sam == share
    assert shown is None or found.shown() == shown


def test_the_paper_s_tables_are_complete():
    text = (resources.files("aesam.paper") / "paper_results.json").read_text()
    # Read off the paper once; a number that is changed by mistake would look like any other.
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "6e6dab8448cbf54c094644371e5954c97151c6f24ff05a12434520b70e95bcff"
    )
    tables = {name: rows for name, rows in json.loads(text).items() if name != "source"}
    assert {name: len(rows) for name, rows in tables.items()} == {
        "cifar": 56, "imagenet": 7, "label-noise": 56, "looksam-k": 16,
    }  # fmt: skip
    for name in ("table-cifar", "table-imagenet", "table-noise"):
        for panel in panels_of(name, PAPER):
            for row in panel.rows[:7]:
                assert paper_numbers.find(panel.table, method=row.method, **panel.paper), panel
    assert paper_numbers.find("cifar", method="adam") is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"preset": "papr"}, "paper"),
        ({"data": "cifar"}, "cifar10"),
        ({"seeds": ()}, "seeds"),
        ({"noise": ()}, "noise"),
    ],
)
def test_wrong_options_are_refused(wrong, said):
    with pytest.raises(UsageError, match=said):
        Options(**wrong)
