"""``aesam sharpness`` on runs that were really trained, and on what it must refuse."""

import json
import shutil
import xml.etree.ElementTree as ET

import pytest
import torch
from support.commands import SMALL, aesam
from torch.nn.functional import cross_entropy

from aesam.lab.data.run_samples import samples_of
from aesam.lab.training.restored import load_run

pytestmark = pytest.mark.slow
MEASURES = (
    "gradients", "full-gradient", "eigenvalues", "trace", "average", "worst-case", "slice-1d",
    "slice-2d",
)  # fmt: skip
QUICK = ("--samples", 100, "--k", 2, "--trace-samples", 3, "--grid", 3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two epochs on a noisy subset, with part of it held out."""
    folder = tmp_path_factory.mktemp("sharpness") / "run"
    train = ("train", *SMALL, "--epochs", 2, "--subset", 300, "--noise", 0.2, "--holdout", 0.1)
    assert aesam(*train, "--label-smoothing", 0.1, "--quiet", "--cpu", "--out", folder) == 0
    return folder


def copied(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    return folder


def test_a_finished_run_is_measured_printed_and_drawn(finished, tmp_path, capsys):
    code, told = aesam(
        "sharpness", finished, *QUICK, "--out", tmp_path, "--rho", 0.1, capsys=capsys
    )
    assert code == 0, told
    assert "measured on 100 of 270 training samples" in told
    for number, name in enumerate(MEASURES, start=1):  # without a terminal, no bar but lines
        assert f"{number}/8 {name}: " in told
    for words in ("Hessian eigenvalue 2", "Hessian trace", "gradient variance", "ρ = 0.1"):
        assert words in told
    found = json.loads((tmp_path / "sharpness.json").read_text())
    assert found["samples"] == 100
    assert found["command"].startswith("aesam sharpness")
    assert {"aesam", "torch"} <= found["versions"].keys()
    assert set(found["measures"]) == set(MEASURES)
    assert len(found["measures"]["slice-2d"]["losses"]) == 3
    assert found["measures"]["worst-case"]["radii"][-1] == pytest.approx(0.1)
    for name in MEASURES:
        assert ET.parse(tmp_path / f"sharpness-{name}.svg").getroot().tag.endswith("svg")


def test_one_batch_has_no_variance_to_print(finished, tmp_path, capsys):
    words = ("--samples", 8, *QUICK[2:], "--out", tmp_path)
    code, told = aesam("sharpness", finished, *words, capsys=capsys)
    assert code == 0
    assert "all 8 samples are one batch: for the gradient variance raise --samples" in told
    (row,) = [line for line in told.splitlines() if "gradient variance (Eq. 3)" in line]
    assert row.split()[-1] == "–"
    summary = json.loads((tmp_path / "sharpness.json").read_text())["summary"]
    assert summary["gradient variance (Eq. 3)"] is None


def test_the_numbers_are_those_of_the_trained_weights_on_its_noisy_samples(finished, tmp_path):
    everything = ("--samples", 10**6, *QUICK[2:])
    assert aesam("sharpness", finished, *everything, "--out", tmp_path) == 0
    found = json.loads((tmp_path / "sharpness.json").read_text())
    run = load_run(finished)
    expected = samples_of(run.run).train
    assert len(expected) == found["samples"] == 270
    saved = torch.load(finished / "checkpoint.pt", weights_only=True)["model"]
    assert all(torch.equal(saved[name], t) for name, t in run.model.state_dict().items())
    batches = run.training_batches(10**6)
    assert sorted(torch.cat([y for _, y in batches]).tolist()) == sorted(expected.labels.tolist())
    with torch.no_grad():
        loss = sum(
            cross_entropy(run.model(x), y, reduction="sum", label_smoothing=0.1) for x, y in batches
        )
    assert found["summary"]["loss"] == pytest.approx(loss.item() / 270, rel=1e-5)


def test_measuring_leaves_the_run_and_its_files_as_they_were(finished, tmp_path):
    folder = copied(finished, tmp_path)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert aesam("sharpness", folder, *QUICK) == 0
    after = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert before.items() <= after.items()
    assert set(after) - set(before) == {
        "sharpness.json", *(f"sharpness-{name}.svg" for name in MEASURES)
    }  # fmt: skip
    assert aesam("sharpness", folder, *QUICK) == 0
    again = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert again == after, "the seed decides, and figures carry no dates"


def test_bringing_a_run_back_does_not_draw_from_the_random_state(finished):
    before = torch.get_rng_state()
    load_run(finished)
    assert torch.equal(before, torch.get_rng_state())


def refused(capsys, *words):
    code, told = aesam("sharpness", *words, capsys=capsys)
    assert code == 2, told
    assert "Traceback" not in told
    return " ".join(told.split())


def test_a_run_that_is_not_there_or_not_whole_is_refused(finished, tmp_path, capsys):
    assert "holds no run" in refused(capsys, tmp_path / "nowhere")
    folder = copied(finished, tmp_path)
    (folder / "checkpoint.pt").rename(tmp_path / "kept.pt")
    assert "has no checkpoint.pt" in refused(capsys, folder)
    (folder / "checkpoint.pt").write_bytes(b"not a checkpoint")
    assert "is damaged" in refused(capsys, folder)
    shutil.copy(tmp_path / "kept.pt", folder / "checkpoint.pt")
    (folder / "summary.json").unlink()
    assert "is not finished" in refused(capsys, folder)


def test_a_checkpoint_of_another_run_or_model_is_refused(finished, tmp_path, capsys):
    folder = copied(finished, tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "seed": 9}))
    assert "are of different runs" in refused(capsys, folder)
    (folder / "config.json").write_text(json.dumps(settings))
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    saved["model"].popitem()
    torch.save(saved, folder / "checkpoint.pt")
    assert "weights are not of this model" in refused(capsys, folder)


def test_a_run_that_diverged_is_refused(finished, tmp_path, capsys):
    folder = copied(finished, tmp_path)
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    next(iter(saved["model"].values())).fill_(float("nan"))
    torch.save(saved, folder / "checkpoint.pt")
    assert "not finite" in refused(capsys, folder, *QUICK)


def test_a_run_is_measured_wherever_it_lies(finished, tmp_path):
    folder = copied(finished, tmp_path / "results")
    assert aesam("sharpness", folder, *QUICK) == 0
    assert (folder / "sharpness.json").is_file()


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (("--samples", 0), "samples must be at least 1, got 0"),
        (("--k", 0), "k must be at least 1"),
        (("--k", 50_000), "k must be at most the model's"),
        (("--rho", -1), "rho must be above 0"),
        (("--grid", 1), "grid must be at least 2"),
        (("--trace-samples", 1), "trace-samples must be at least 2"),
        (("--threads", 0), "threads must be at least 1"),
        (("--seed", -1), "seed must be at least 0"),
        (("--rho", 1e308), "rho must be above 0 and at most 1e+30"),
        (("--samples", 10**20), "samples must be at most"),
        (("--k", 10**20), "k must be at most"),
        (("--grid", 10**20), "grid must be at most"),
        (("--trace-samples", 10**20), "trace-samples must be at most"),
        (("--threads", 10**20), "threads must be at most"),
        (("--seed", 2**63), "seed must be at most 9223372036854775807"),
    ],
)
def test_flags_out_of_range_are_refused(finished, flags, hint, capsys):
    assert hint in refused(capsys, finished, *flags)


def test_a_file_in_place_of_the_folder_is_refused(finished, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refused(capsys, finished, "--out", tmp_path / "file")


def test_help_names_every_flag(capsys):
    code, told = aesam("sharpness", "--help", capsys=capsys)
    assert code == 0
    for flag in ("--samples", "--k", "--rho", "--trace-samples", "--grid", "--root", "--out"):
        assert flag in told
