"""``aesam train``: one run, stopped anywhere and gone on with."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.commands import SMALL, StopsAt, aesam, metrics_of, start, summary_of
from support.problems import FOR_ANY_MODEL

from aesam.lab import config
from aesam.lab.config import Method, Run, config_hash
from aesam.lab.data import data_record
from aesam.lab.folders import RunFolder
from aesam.lab.lab_methods import fill
from aesam.lab.own_methods import list_own_methods
from aesam.lab.training import run_checkpoint, trainer
from aesam.lab.training.interrupts import Stopped

pytestmark = pytest.mark.slow
METHODS = [*FOR_ANY_MODEL, *list_own_methods()]
WHOLE = {"erm-early": {"length": 1.0}}  # of few epochs it would have one
KEYS = {"test_accuracy", "train_loss", "percent_sam", "steps", "gradients", "seconds", "versions"}


def small_run(method="ae-looksam", **training_changes):
    usual = data_record("synthetic").usual
    changed = replace(usual.training, **({"epochs": 3} | training_changes))
    model = replace(usual.model, name="digits-cnn") if method == "sam-on" else usual.model
    chosen = fill(Method(method, **WHOLE.get(method, {})))
    return replace(usual, method=chosen, model=model, training=changed)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_digits_and_leaves_its_folder(method, tmp_path, capsys):
    code, told = aesam(
        "train", "--method", method, "--epochs", 3, "--noise", 0.2, "--out", tmp_path / "run",
        *(f"--{name}={value}" for name, value in WHOLE.get(method, {}).items()), capsys=capsys,
    )  # fmt: skip
    assert code == 0
    assert "test accuracy" in told
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "config.json", "metrics.jsonl", "summary.json", "checkpoint.pt",
    }  # fmt: skip
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary.keys() >= KEYS
    steps = 30 if method == "swad" else 33  # it keeps a tenth of the samples for itself
    assert summary["steps"] == steps
    assert summary["gradients"] == pytest.approx(steps * (1 + summary["percent_sam"] / 100))
    lines = metrics_of(tmp_path / "run")
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert len(lines[0]["trace"]["step"]) == steps // 3


def test_evaluating_less_often_changes_nothing_but_the_lines_without_it(tmp_path):
    often, seldom = small_run(epochs=5), small_run(epochs=5, evaluate_every=2)
    assert config_hash(often) == config_hash(seldom)
    ends = [trainer.train(run, tmp_path / str(i)) for i, run in enumerate((often, seldom))]
    assert ends[0]["test_accuracy"] == ends[1]["test_accuracy"]
    seen = [line["epoch"] for line in metrics_of(tmp_path / "1") if "test_accuracy" in line]
    assert seen == [2, 4, 5]
    assert "test_accuracy" in metrics_of(tmp_path / "0")[0]


def test_a_run_made_with_fewer_settings_or_with_empty_ones_is_still_that_run(tmp_path):
    run = small_run()
    trainer.train(run, tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    saved["method"] |= {"after": None, "k": None}  # as they were written once
    del saved["training"]["evaluate_every"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert RunFolder(tmp_path).is_finished(run)


def test_clean_digits_are_learned(tmp_path):
    assert aesam("train", "--method", "ae-sam", "--epochs", 8, "--out", tmp_path, "--quiet") == 0
    assert summary_of(tmp_path)["test_accuracy"] > 95


def test_the_same_run_gives_the_same_numbers_and_another_seed_others(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        aesam("train", *SMALL, "--seed", seed, "--noise", 0.3, "--out", tmp_path / name, "--quiet")
    assert metrics_of(tmp_path / "a") == metrics_of(tmp_path / "b") != metrics_of(tmp_path / "c")


def test_a_finished_folder_exits_at_once_with_resume_and_is_refused_without(tmp_path, capsys):
    words = ("train", *SMALL, "--epochs", 2, "--out", tmp_path)
    assert aesam(*words, "--resume") == 0  # an empty folder starts
    before = (tmp_path / "checkpoint.pt").stat().st_mtime_ns
    assert aesam(*words, "--resume") == 0
    assert (tmp_path / "checkpoint.pt").stat().st_mtime_ns == before
    capsys.readouterr()
    code, told = aesam(*words, capsys=capsys)
    assert code == 2
    assert "--resume" in told


def test_another_configuration_in_the_same_folder_is_refused_and_loses_nothing(tmp_path, capsys):
    words = ("train", *SMALL, "--epochs", 2, "--out", tmp_path, "--resume")
    aesam(*words, "--quiet")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    capsys.readouterr()
    code, told = aesam(*words, "--lr", 0.3, capsys=capsys)
    assert code == 2
    assert "training.lr is 0.3 here and 0.1 there" in told
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_where_the_data_lie_is_no_part_of_a_run(tmp_path):
    words = ("train", *SMALL, "--epochs", 2, "--out", tmp_path / "run", "--resume", "--quiet")
    assert aesam(*words) == aesam(*words, "--root", tmp_path / "elsewhere") == 0


def test_a_damaged_checkpoint_is_refused_and_left_as_it_is(tmp_path, capsys):
    words = ("train", *SMALL, "--epochs", 2, "--out", tmp_path, "--resume")
    aesam(*words, "--quiet")
    (tmp_path / "summary.json").unlink()
    for damage in (lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"not torch" * 99):
        broken = damage((tmp_path / "checkpoint.pt").read_bytes())
        (tmp_path / "checkpoint.pt").write_bytes(broken)
        capsys.readouterr()
        code, told = aesam(*words, capsys=capsys)
        assert code == 2
        assert "damaged" in told
        assert "Traceback" not in told
        assert (tmp_path / "checkpoint.pt").read_bytes() == broken


def test_a_refused_checkpoint_leaves_the_folder_as_it_was(tmp_path, capsys):
    words = ("train", *SMALL, "--epochs", 2, "--out", tmp_path, "--resume")
    aesam(*words, "--quiet")
    for name in ("config.json", "summary.json"):
        (tmp_path / name).unlink()
    code, told = aesam(*words, "--lr", 0.3, capsys=capsys)
    assert code == 2
    assert "of another run" in told
    assert aesam(*words, "--quiet") == 0
    assert summary_of(tmp_path)["steps"] == 16


@pytest.mark.parametrize("name", ["config.json", "summary.json", "checkpoint.pt"])
def test_each_file_may_be_damaged_without_a_traceback(name, tmp_path, capsys):
    words = ("train", *SMALL, "--epochs", 2, "--out", tmp_path, "--resume")
    aesam(*words, "--quiet")
    if name == "checkpoint.pt":
        (tmp_path / "summary.json").unlink()
        torch.save({"format": 1}, tmp_path / name)
    else:
        (tmp_path / name).write_text("{}")
    code, told = aesam(*words, capsys=capsys)
    assert code == 2
    assert "damaged" in told


def test_a_checkpoint_that_would_execute_code_is_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    torch.save({"format": 1, "bomb": Bomb()}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="damaged"):
        run_checkpoint.load(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "executed").exists()


# Stopping and going on ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_run_stopped_within_an_epoch_and_gone_on_with_is_one_that_was_not(method, tmp_path):
    run = small_run(method)
    trainer.train(run, tmp_path / "whole")
    for step in (3, 8, 13):
        with pytest.raises(Stopped, match="go on with --resume") as stop:
            trainer.train(run, tmp_path / "cut", resume=True, reporter=StopsAt(step))
        assert stop.value.exit_code == 128 + signal.SIGTERM
    trainer.train(run, tmp_path / "cut", resume=True)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "cut")
    assert summary_of(tmp_path / "whole") == summary_of(tmp_path / "cut")
    ends = [run_checkpoint.load(tmp_path / n / "checkpoint.pt")["model"] for n in ("whole", "cut")]
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])


def read_until_epoch(process, number):
    """Read the log of a run until it has finished so many epochs."""
    for line in process.stdout:
        if line.startswith(f"epoch {number}/"):
            return
    pytest.fail(f"the run ended before epoch {number}")


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_goes_on_to_the_same_numbers(kill, tmp_path):
    words = ("train", "--method", "ae-looksam", "--epochs", 12, "--noise", 0.6)
    with start(*words, "--out", tmp_path / "whole") as whole:
        whole.communicate()
    assert whole.returncode == 0
    for epochs in (2, 5):
        with start(*words, "--out", tmp_path / "cut", "--resume") as process:
            read_until_epoch(process, epochs)
            process.send_signal(kill)
            told = process.communicate()[0]
        assert process.returncode == (-9 if kill == signal.SIGKILL else 130), told
    assert not (tmp_path / "cut/summary.json").exists()
    with start(*words, "--out", tmp_path / "cut", "--resume") as last:
        told = last.communicate()[0]
    assert last.returncode == 0, told
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "cut")
    assert summary_of(tmp_path / "whole") == summary_of(tmp_path / "cut")
    assert {p.name for p in (tmp_path / "cut").iterdir()} >= {"checkpoint.pt", "summary.json"}


# Options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate": 4},
        {"precision": "bf16"},
        {"clip": 0.1},
        {"label_smoothing": 0.1},
        {"optimizer": "adamw", "lr": 0.001},
        {"warmup": 1},
        {"channels_last": True},
        {"precision": "float64"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_options_of_training_train(changes, tmp_path):
    summary = trainer.train(small_run("ae-looksam", **changes), tmp_path)
    assert summary["steps"] == 24
    assert summary["train_loss"] < metrics_of(tmp_path)[0]["train_loss"]


def test_accumulating_is_the_whole_batch(tmp_path):
    ends = []
    for accumulate in (1, 4):
        run = small_run("looksam", accumulate=accumulate)
        trainer.train(run, tmp_path / str(accumulate))
        ends.append(metrics_of(tmp_path / str(accumulate))[-1])
    assert ends[0]["train_loss"] == pytest.approx(ends[1]["train_loss"], rel=1e-4)


def test_esam_takes_rows_and_counts_every_step(tmp_path):
    assert trainer.train(small_run("esam"), tmp_path)["percent_sam"] == 100.0


def test_the_schedule_is_warm_up_and_cosine(tmp_path):
    trainer.train(small_run("erm", epochs=4, warmup=1), tmp_path)
    rates = [line["lr"] for line in metrics_of(tmp_path)]
    assert rates[0] == 0.1
    assert rates[0] > rates[1] > rates[2] > rates[3]


def test_a_validation_split_stands_in_for_the_test_set(tmp_path):
    run = small_run("sam")
    summary = trainer.train(replace(run, data=replace(run.data, holdout=0.25)), tmp_path)
    assert summary["test_accuracy"] is None
    assert summary["validation_accuracy"] > 0
    assert "test_accuracy" not in metrics_of(tmp_path)[0]


def test_tensorboard_gets_what_metrics_gets(tmp_path):
    assert aesam("train", *SMALL, "--out", tmp_path, "--track", "tensorboard", "--quiet") == 0
    assert list(tmp_path.rglob("events.out.tfevents.*"))


def test_a_tracker_that_cannot_begin_is_told_in_words(tmp_path, capsys):
    (tmp_path / "aesam").write_text("a file where its folder would be")
    assert aesam("train", *SMALL, "--out", tmp_path, "--track", "tensorboard", "--quiet") == 2
    assert "track could not begin" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, inside its compiler
def test_a_compiled_model_trains_to_the_same_loss(tmp_path):
    plain = trainer.train(small_run("sam"), tmp_path / "plain")
    compiled = trainer.train(small_run("sam", compile=True), tmp_path / "compiled")
    assert compiled["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-3)


def test_a_run_is_a_value():
    run = small_run()
    assert config.from_dict(json.loads(json.dumps(config.as_dict(run)))) == run
    assert config.config_hash(run) == config.config_hash(replace(run))
    assert config.config_hash(run) != config.config_hash(replace(run, seed=1))
    moved = replace(run, data=replace(run.data, root="elsewhere"))
    assert config.config_hash(run) == config.config_hash(moved)
    assert isinstance(hash(run), int)
    assert Run() == Run()


@pytest.mark.parametrize(
    "method", ["sam", 3, {"name": None}, {"rho": 0.1}, {"name": "sam", "rho": "a"}]
)
def test_a_damaged_method_in_a_config_is_said_to_be_damaged(method, tmp_path, capsys):
    words = ("train", *SMALL, "--epochs", 1, "--out", tmp_path, "--quiet")
    assert aesam(*words) == 0
    saved = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**saved, "method": method}))
    code, told = aesam(*words, "--resume", capsys=capsys)
    assert code == 2
    assert "is damaged" in told
