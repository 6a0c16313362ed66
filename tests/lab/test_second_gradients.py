"""What second gradients saw: right in an epoch's line, over a run, over runs, and from any file."""

import json
import math
from dataclasses import replace

import pytest
import torch
from support.commands import SMALL, StopsAt, aesam, metrics_of, summary_of
from support.fixtures_report import compared, write_short_run
from support.small_runs import tiny_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.functional import cross_entropy

from aesam import StepRecord
from aesam.lab import models, second_gradients, summaries
from aesam.lab.data.run_samples import samples_of
from aesam.lab.show import as_json, write_report
from aesam.lab.show.figures import figures
from aesam.lab.show.health_table import health_sheet
from aesam.lab.training import run_checkpoint, sealed, trainer
from aesam.lab.training.engine import seed_all
from aesam.lab.training.interrupts import Stopped

HEALTH = {"percent_rise": 20.0, "cosine": 0.5, "bend": 1.5, "percent_time": 40.0, "seconds": 0.01}


def literal(run, rho):
    """Rise, cosine and bend at w + ε of the run's first weights on all its samples, written out."""
    samples = samples_of(run, None)
    seed_all(run.seed)
    net = models.build_for(run.model, samples.data_set).double()
    params = list(net.parameters())
    images, labels = samples.train.images.double() / 255.0, samples.train.labels
    mean, std = (torch.tensor(x).double() for x in (samples.data_set.mean, samples.data_set.std))
    images = (images - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)

    def loss_and_gradient():
        loss = cross_entropy(net(images), labels)
        return loss, torch.cat([g.flatten() for g in torch.autograd.grad(loss, params)])

    loss, g = loss_and_gradient()
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(
            torch.nn.utils.parameters_to_vector(params) + rho * g / g.norm(), params
        )
    away, g_s = loss_and_gradient()
    new = g_s - (g @ g_s) / (g @ g) * g
    return {
        "percent_rise": 100 * ((away - loss) / loss).item(),
        "cosine": (g @ g_s / (g.norm() * g_s.norm())).item(),
        "bend": (new.norm() / g.norm()).item(),
    }


@pytest.mark.parametrize("accumulate", [1, 4])
def test_an_epoch_of_one_step_tells_what_that_step_saw(accumulate, tmp_path):
    run = tiny_run("sam", epochs=1, batch_size=128, precision="float64", accumulate=accumulate)
    run = replace(run, data=replace(run.data, subset=128, augment=False))
    summary = trainer.train(run, tmp_path)
    (line,) = metrics_of(tmp_path)
    expected = literal(run, run.method.get("rho"))
    assert {name: line[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert {name: summary["health"][name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert 0.0 < summary["health"]["percent_time"] < 100.0
    assert 0.0 < summary["health"]["seconds"] < summary["seconds"]
    assert f"the loss rises by {expected['percent_rise']:.2g} %" in summary["health"]["verdict"]


def test_a_run_without_second_gradients_tells_nothing_of_them(tmp_path):
    assert trainer.train(tiny_run("erm"), tmp_path)["health"] is None
    assert not {*HEALTH, "percent_time"} - {"seconds"} & metrics_of(tmp_path)[0].keys()


def test_where_a_method_selects_rows_there_is_no_rise_and_the_angle_tells(tmp_path):
    health = trainer.train(tiny_run("esam"), tmp_path)["health"]
    assert "percent_rise" not in health
    assert "g and g_s" in health["verdict"]


def test_a_run_is_the_median_and_the_means_of_its_epochs():
    lines = [{"percent_rise": rise} for rise in (1.0, 2.0, 50.0)]
    lines[1] |= {"cosine": 0.25, "bend": 3.0}
    lines[2] |= {"cosine": 0.75, "percent_time": 30.0}
    told = second_gradients.of_run(lines, count=4, seconds=2.0)
    verdict = told.pop("verdict")
    expected = {"percent_rise": 2.0, "cosine": 0.5, "bend": 3.0}
    assert told == expected | {"percent_time": 30.0, "seconds": 0.5}
    assert verdict.startswith("the loss rises by 2 % at w + ε, and g and g_s have a cosine of 0.5")
    assert second_gradients.of_run(lines, count=0, seconds=0.0) is None


def test_what_no_number_can_hold_was_not_seen():
    seen = second_gradients.nothing_seen()
    for rise in (math.nan, math.inf, -math.inf, 1e300, None, 0.5):
        second_gradients.note(seen, StepRecord(0, True, 1.0, rise=rise))
    assert seen == {"rise": [0.5], "cosine": [], "bend": []}


@pytest.mark.slow
def test_trackers_get_the_numbers_and_the_console_the_sentence(tmp_path, capsys):
    words = ("train", *SMALL, "--method", "sam", "--epochs", 2, "--out", tmp_path)
    code, told = aesam(*words, "--track", "tensorboard", capsys=capsys)
    assert code == 0
    assert f"second gradients: {summary_of(tmp_path)['health']['verdict']}" in told
    every = [EventAccumulator(str(p)).Reload() for p in tmp_path.rglob("events.out.tfevents.*")]
    (kept,) = [one for one in every if "train_loss" in one.Tags()["scalars"]]
    for name in ("percent_rise", "cosine", "bend"):
        values = [event.value for event in kept.Scalars(name)]
        own = [line[name] for line in metrics_of(tmp_path)]
        assert values == pytest.approx(own, rel=1e-6)
    assert len(kept.Scalars("percent_time")) == 2


# Runs of before, and files that hold anything -----------------------------------------------------


def test_a_checkpoint_of_before_goes_on_and_tells_of_the_steps_from_there(tmp_path):
    run = tiny_run("sam")
    trainer.train(run, tmp_path / "whole")
    with pytest.raises(Stopped):
        trainer.train(run, tmp_path / "cut", reporter=StopsAt(1))
    path = tmp_path / "cut/checkpoint.pt"
    content = run_checkpoint.load(path)
    for name in ("seen", "second_seconds"):
        del content["progress"][name]
    path.write_bytes(sealed.sealed(content))
    trainer.train(run, tmp_path / "cut", resume=True)
    whole, cut = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "cut")
    assert [line["train_loss"] for line in whole] == [line["train_loss"] for line in cut]
    assert whole[1] == cut[1]
    assert cut[0]["percent_rise"] != whole[0]["percent_rise"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("seen", None), ("seen", {"rise": []}), ("seen", {"rise": [1.0], "cosine": 3, "bend": []}),
     ("seen", {"rise": [math.nan], "cosine": [], "bend": []}), ("second_seconds", -1.0),
     ("seen", {"rise": [], "cosine": [True], "bend": []})],
)  # fmt: skip
def test_a_checkpoint_that_no_run_can_have_left_is_refused(name, wrong, tmp_path):
    with pytest.raises(Stopped):
        trainer.train(tiny_run("sam"), tmp_path, reporter=StopsAt(3))
    path = tmp_path / "checkpoint.pt"
    content = run_checkpoint.load(path)
    content["progress"][name] = wrong
    path.write_bytes(sealed.sealed(content))
    with pytest.raises(ValueError, match="is damaged and was left as it is.*progress: "):
        trainer.train(tiny_run("sam"), tmp_path, resume=True)


@pytest.mark.parametrize(
    "wrong",
    ["well", [1], {"cosine": 1.5}, {"bend": -1}, {"percent_time": 101}, {"percent_rise": 10**400},
     {"percent_rise": math.nan}, {"cosine": True}, {"seconds": "1"}],
)  # fmt: skip
def test_a_summary_with_another_health_is_damaged(wrong):
    sound = {
        "test_accuracy": 1.0, "train_accuracy": 1.0, "percent_sam": 1.0, "steps": 1,
        "gradients": 1, "seconds": 1.0, "train_loss": 1.0,
    }  # fmt: skip
    for well in (sound, sound | {"health": None}, sound | {"health": HEALTH | {"verdict": "x"}}):
        assert summaries.fault(well) is None
    assert "health" in summaries.fault(sound | {"health": wrong})


# The report --------------------------------------------------------------------------------------


def of_before_and_now(root):
    """Two seeds of SAM with numbers, one of before, and ERM."""
    for seed, more in enumerate((0.0, 0.2, None)):
        own = {"percent_rise": 20.0 + 10 * (more or 0), "cosine": 0.5 + (more or 0)}
        health = {"health": HEALTH | own | {"verdict": "<b>"}} if more is not None else {}
        write_short_run(root, "sam", seed, percent_sam=100.0, **health)
    write_short_run(root, "erm", health=None)
    return compared(root)


def test_the_table_has_the_means_of_the_runs_that_know_and_a_sentence(tmp_path):
    comparisons = of_before_and_now(tmp_path)
    sheet = health_sheet(comparisons[0])
    (line,) = sheet.lines
    assert line.cells[:6] == ("SAM", "+21 %", "0.600", "1.50", "100.0", "40 %")
    assert line.cells[6].startswith("the loss rises by 21 % at w + ε, and g and g_s have a cosine")
    rows = {row["method"]: row for row in as_json(comparisons, "")["comparisons"][0]["rows"]}
    assert rows["erm"]["health"] is None
    assert rows["sam"]["health"]["rise"] == pytest.approx(0.21)
    assert rows["sam"]["health"]["verdict"] == line.cells[6]


@pytest.mark.slow
def test_runs_of_before_have_no_table_and_no_curve(tmp_path):
    write_short_run(tmp_path, "sam")
    (comparison,) = write_report([tmp_path], tmp_path / "out", command="")
    assert health_sheet(comparison) is None
    assert "second gradients at work" not in (tmp_path / "out/report.html").read_text()
    assert not [drawing for drawing in figures(comparison) if "rise" in drawing.name]


@pytest.mark.slow
def test_the_page_shows_the_table_and_the_curve_of_who_has_one(tmp_path):
    run = tiny_run("sam")
    for name in ("sam", "erm"):
        trainer.train(replace(run, method=tiny_run(name).method), tmp_path / name)
    (comparison,) = write_report([tmp_path], tmp_path / "out", command="")
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("Are the second gradients at work?") == 1
    health = json.loads((tmp_path / "sam/summary.json").read_text())["health"]
    assert health["verdict"] in page
    (curve,) = [drawing for drawing in figures(comparison) if "rise" in drawing.name]
    assert "rise of the loss at w + ε (%)" in curve.svg
    assert "SAM" in curve.svg
    assert "ERM" not in curve.svg
