"""``aesam tune``: widens until the best is inside, says where it is not, goes on after a kill.

Most of these runs are not trained: their folders are written as if they were finished, with
accuracies of a curve that is known.
"""

import json
import math
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import SMALL, aesam, start

from aesam.lab import config, files, method_search
from aesam.lab.cli import COMMANDS, parse
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.lab_methods import fill
from aesam.lab.show import search_curves
from aesam.registry import method_record

PAPER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
RHOS = sorted({rho * 2.0**i for rho in PAPER for i in range(-2, 7)})
WORDS = ("tune", *SMALL, "--epochs", 1)


def peak(at):
    """Accuracy that falls on both sides of a radius, and of α = 0.6; seeds differ by a tenth."""

    def accuracy(rho, alpha=0.6, seed=0, **_):
        return 90 - 5 * abs(math.log2(rho / at)) - 20 * abs(alpha - 0.6) + 0.1 * (seed % 2)

    return accuracy


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Puts finished runs of a method where ``tune`` looks for them, and tunes."""
    monkeypatch.chdir(tmp_path)

    def tune(method, accuracy, *words, alphas=(None,), rhos=RHOS, seeds=range(3)):
        monkeypatch.setattr(sys, "argv", ["aesam", *map(str, WORDS)])
        usual = parse(COMMANDS).run(method, 0, 0.0, strict=False)
        for rho in rhos:
            for alpha in alphas:
                for seed in seeds:
                    own = fill(usual.method.but(rho=rho, alpha=alpha), strict=False)
                    run = replace(usual, method=own, seed=seed)
                    write_finished(run, accuracy(**own.settings, seed=seed))
        code = aesam(*WORDS, "--methods", method, *words)
        assert not list(tmp_path.rglob("checkpoint.pt")), "nothing was trained"
        return code, json.loads(Path("runs/tune/tune.json").read_text())

    return tune


def write_finished(run, accuracy):
    folder = RunFolder(folder_of(run, Path("runs/tune")))
    summary = {
        "config_hash": config.config_hash(run), "validation_accuracy": max(0.0, accuracy or 10.0),
        "test_accuracy": None, "train_accuracy": 90.0, "percent_sam": 100.0, "steps": 8,
        "gradients": 16, "seconds": 1.0, "train_loss": 0.5, "diverged": accuracy is None,
    }  # fmt: skip
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.config.write_text(json.dumps(config.as_dict(run)))
    folder.summary.write_text(json.dumps(summary))


def of(found, method):
    (one,) = [each for each in found["methods"] if each["method"] == method]
    return one


# What is found -----------------------------------------------------------------------------------


def test_a_radius_beyond_the_paper_s_grid_is_found(pretend, capsys):
    code, found = pretend("sam", peak(2.0))
    told = " ".join(capsys.readouterr().out.split())
    assert code == 0
    sam = of(found, "sam")
    assert (sam["chosen"], sam["at_edge"], sam["notes"]) == ({"rho": 2.0}, [], [])
    assert found["search"] == "widening"
    assert found["command"].startswith("aesam tune --dataset synthetic")
    (curve,) = sam["curves"]
    assert [p["value"] for p in curve["points"]] == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4]
    assert [p["n"] for p in curve["points"]] == [1, 1, 1, 1, 2, 2, 3, 3, 3]
    assert "round 1: sam rho 0.01 0.02 0.05 0.1 0.2 0.5 with 1 seed: 6 runs" in told
    assert "round 2: sam rho 1 with 1 seed: 1 run" in told
    assert "SAM: best rho 2 (90.03 ± 0.06 %, n = 3)" in told
    assert "finished before" in told


def test_a_fine_search_tries_what_is_between_the_best_and_its_neighbours(pretend):
    code, found = pretend("sam", peak(2.7), "--fine", rhos=(*RHOS, 1.41, 2.83))
    sam = of(found, "sam")
    assert (code, sam["chosen"], sam["at_edge"]) == (0, {"rho": 2.83}, [])
    (curve,) = sam["curves"]
    assert [p["value"] for p in curve["points"]][-5:] == [1, 1.41, 2, 2.83, 4]


def test_the_rows_are_those_of_before_with_more(pretend):
    """Who read tune.json before the search widened finds what was there."""
    _, found = pretend("sam", peak(0.1), "--seeds", 0, 1, "--noise", 0)
    first, *others = found["rows"]
    before = {"method", "settings", "validation_accuracy", "n", "best", "diverged"}
    assert all(before | {"std", "rung"} == set(row) for row in found["rows"])
    assert (first["best"], first["settings"]) == (True, {"rho": 0.1, "normalize": True})
    assert first["validation_accuracy"] == pytest.approx(peak(0.1)(0.1) + 0.05)
    assert first["std"] == pytest.approx(0.1 / math.sqrt(2))
    assert (first["n"], first["rung"]) == (2, 2)
    assert not any(row["best"] for row in others)
    assert {row["rung"] for row in others} == {1, 2}
    assert [row["validation_accuracy"] for row in others] == sorted(
        (row["validation_accuracy"] for row in others), reverse=True
    )


def test_alpha_is_searched_at_the_best_rho_and_rho_once_more_around_it(pretend):
    alphas = (0.1, 0.3, 0.5, 0.6, 0.9)
    _, found = pretend("looksam", peak(1.0), alphas=alphas)
    look = of(found, "looksam")
    assert look["chosen"] == {"rho": 1.0, "alpha": 0.6}
    of_rho, of_alpha, again = look["curves"]
    assert (of_rho["setting"], of_rho["at"]) == ("rho", {"alpha": 0.5})
    assert (of_alpha["setting"], of_alpha["at"]) == ("alpha", {"rho": 1.0})
    assert [point["value"] for point in of_alpha["points"]] == list(alphas)
    assert (again["setting"], again["at"]) == ("rho", {"alpha": 0.6})
    assert [point["value"] for point in again["points"]] == [0.5, 1.0, 2.0]
    points = [len(curve["points"]) for curve in look["curves"]]
    assert len(found["rows"]) == sum(points) - 2  # where two curves meet


def test_the_curves_are_drawn_and_shown(pretend, capsys, tmp_path):
    pretend("looksam", peak(1.0), alphas=(0.1, 0.3, 0.5, 0.6, 0.9))
    told = capsys.readouterr().out
    for name in ("rho", "alpha"):
        svg = (tmp_path / f"runs/tune/tune-{name}.svg").read_text()
        assert svg.startswith("<svg")
        assert "validation accuracy (%)" in svg
        assert "LookSAM" in svg
        assert f"tune-{name}.svg" in told
    lines = [line for line in told.splitlines() if "LookSAM  rho" in line]
    shown = {line.split()[2].strip(","): line.count("█") for line in lines}
    assert shown["1"] == max(shown.values()) == 12
    assert shown["0.01"] == 1


def test_a_radius_at_the_edge_is_said_to_be_there(pretend, capsys):
    code, found = pretend("sam", peak(1000.0), "--limit", 2, "--rhos", 0.1, 0.2)
    assert code == 0
    sam = of(found, "sam")
    assert (sam["chosen"], sam["at_edge"]) == ({"rho": 0.8}, ["rho"])
    told = " ".join(capsys.readouterr().out.split())
    assert "SAM: the best rho is still at the edge, 0.8: a larger one may be better" in told


def test_what_diverges_is_never_the_best(pretend, capsys):
    _, found = pretend("sam", lambda rho, **_: None if rho > 0.7 else 100 * rho)
    sam = of(found, "sam")
    assert (sam["chosen"], sam["at_edge"]) == ({"rho": 0.5}, [])
    assert found["rows"][-1]["settings"]["rho"] == 1.0
    assert (found["rows"][-1]["diverged"], found["rows"][-1]["n"]) == (1, 1)
    assert "1 of 1 diverged" in capsys.readouterr().out


def test_where_all_diverge_there_is_no_best(pretend, capsys):
    _, found = pretend("sam", lambda **_: None, "--limit", 1)
    sam = of(found, "sam")
    assert sam["chosen"] is None
    assert "every rho that was tried diverged" in sam["notes"][0]
    assert not any(row["best"] for row in found["rows"])
    assert "SAM: no best setting" in capsys.readouterr().out


def test_the_plain_grid_is_every_combination_with_every_seed(pretend, capsys):
    words = ("--plain-grid", "--seeds", 0, 1, "--rhos", 0.1, 0.2, "--alphas", 0.1, 0.6)
    code, found = pretend("looksam", peak(2.0), *words, alphas=(0.1, 0.6))
    assert code == 0
    assert found["search"] == "grid"
    assert [row["n"] for row in found["rows"]] == [2] * 4
    look = of(found, "looksam")
    assert look["chosen"] == {"rho": 0.2, "alpha": 0.6}
    assert look["at_edge"] == ["rho", "alpha"]
    assert "the best rho is at the edge of its grid, 0.2" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_value_that_the_method_refuses_counts_as_worst(tmp_path):
    """λ1 may not be above λ2, which no bound of its own says."""
    lambda1 = method_record("ae-sam").settings[1]
    each = replace(lambda1, grid=(0.5, 1.0)).range_from((0.5, 1.0), 0.5)

    def make_job(settings, seed):
        run = config.Run(method=fill(config.Method("ae-sam", **settings)), seed=seed)
        folder = folder_of(run, tmp_path)
        return method_search.Job(run, folder)

    search = method_search.MethodSearch("ae-sam", [each], seeds=[0], limit=3, make_job=make_job)
    asked = []
    while search.jobs:
        for job in search.jobs:
            asked.append(job.run.method.get("lambda1"))
            summary = {"validation_accuracy": 50 * asked[-1], "test_accuracy": None, "steps": 1,
                       "train_accuracy": 1, "percent_sam": 1, "gradients": 1,
                       "seconds": 1}  # fmt: skip
            files.write_json(job.folder / "summary.json", summary)
        search.go_on(set())
    assert (search.chosen, asked) == ({"lambda1": 1.0}, [0.5, 1.0])
    assert search.at_edge == []
    assert any(
        "cannot be tried counts as worst: ae-sam: lambda1 <= lambda2" in note
        for note in search.notes
    )


# What is refused ---------------------------------------------------------------------------------

REFUSED = {
    "a limit below 0": (("--limit", -1), "limit must be at least 0, got -1"),
    "a limit beyond all": (("--limit", 65), "limit must be at most 64, got 65"),
    "a limit of a grid": (("--plain-grid", "--limit", 3), "leave out --limit or --plain-grid"),
    "a fine plain grid": (("--plain-grid", "--fine"), "leave out --fine or --plain-grid"),
    "a radius below 0": (("--rhos", -1), "sam: rho must be at least 0, got -1.0"),
    "a radius that is none": (("--rhos", "nan"), "sam: rho must be a finite number, got nan"),
    "a factor below 1": (
        ("--methods", "ss-sam", "--compensate", 0.5),
        "ss-sam: compensate must be a finite number >= 1, the largest factor on rho",
    ),
    "a setting of none": (("--compensate", 2), "none of these methods has a setting compensate"),
    "nothing to search": (("--methods", "erm"), "erm has nothing to search: take of sam"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_searched_is_refused_before_any_run(case, tmp_path, capsys):
    words, hint = REFUSED[case]
    code, told = aesam(*WORDS, "--methods", "sam", *words, "--out", tmp_path, capsys=capsys)
    assert code == 2
    assert hint in " ".join(told.split())
    assert not list(tmp_path.iterdir())


# Real runs ---------------------------------------------------------------------------------------

DIGITS = (
    "tune", "--dataset", "digits", "--model", "mlp", "--subset", 256, "--batch-size", 64,
    "--methods", "sam", "--rhos", 0.1, 0.4, "--seeds", 0, "--epochs", 2, "--limit", 1,
    "--noise", 0.4, "--jobs", 1,
)  # fmt: skip


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A search of real runs that nobody disturbed; its folder."""
    here = tmp_path_factory.mktemp("undisturbed")
    with start(*DIGITS, cwd=here) as process:
        told = process.communicate()[0]
    assert process.returncode == 0, told
    return here / "runs/tune"


@pytest.mark.slow
def test_real_runs_hold_out_and_never_see_the_test_set(tuned):
    found = json.loads((tuned / "tune.json").read_text())
    summaries = [json.loads(path.read_text()) for path in tuned.rglob("summary.json")]
    assert len(summaries) == sum(row["n"] for row in found["rows"])
    assert all(summary["test_accuracy"] is None for summary in summaries)
    best = found["rows"][0]
    means = [row["validation_accuracy"] for row in found["rows"] if row["n"] == best["n"]]
    assert best["validation_accuracy"] == max(means)
    assert of(found, "sam")["chosen"] == {"rho": best["settings"]["rho"]}


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_to_the_same_result(tuned, tmp_path):
    with start(*DIGITS, cwd=tmp_path) as process:
        end = time.monotonic() + 120
        while process.poll() is None and not any(tmp_path.rglob("summary.json")):
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "runs/tune/tune.json").exists()
    with start(*DIGITS, cwd=tmp_path) as process:
        told = process.communicate()[0]
    assert process.returncode == 0, told
    assert "finished before" in told
    for name in ("tune.json", "tune-rho.svg"):
        assert (tmp_path / "runs/tune" / name).read_bytes() == (tuned / name).read_bytes()


@pytest.mark.slow
def test_a_run_that_fails_ends_the_search_and_is_tried_when_it_is_typed_again(
    tuned, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tuned, tmp_path / "runs/tune")
    expected = (tuned / "tune.json").read_bytes()
    first = next(p for p in sorted(tmp_path.rglob("*-seed0-*")) if "sam" in p.name)
    (first / "config.json").rename(first / "kept")
    (first / "config.json").write_text("{ damaged")
    code, told = aesam(*DIGITS, capsys=capsys)
    assert code == 1
    assert "SAM: no best setting" in told
    assert "SAM: runs failed (1): the search is not over; run it again to go on" in told
    found = json.loads((tmp_path / "runs/tune/tune.json").read_text())
    assert of(found, "sam")["chosen"] is None
    (first / "kept").replace(first / "config.json")
    assert aesam(*DIGITS) == 0
    assert (tmp_path / "runs/tune/tune.json").read_bytes() == expected


# Figures ---------------------------------------------------------------------------------------

VALUES = {
    "none": [], "nothing but 0": [0.0], "both signs": [-2.0, 3.0], "whole numbers": [1, 2, 4],
    "the smallest": [1e-320], "the largest": [1e308], "all there are": [5e-324, 1e308],
    "whole and large": [2**62],
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", VALUES)
def test_any_values_can_be_drawn_and_shown(case):
    numbers = {"validation_accuracy": 50.0, "std": None, "n": 1, "diverged": 0}
    points = [{"value": value, **numbers} for value in VALUES[case]]
    curve = {"setting": "rho", "at": {}, "points": points}
    method = {"method": "sam", "chosen": None, "notes": [], "curves": [curve]}
    assert search_curves.curve_svg([method], "rho").startswith("<svg")
    assert len(search_curves.curves_sheet([method]).lines) == len(points)
