"""What was saved by an earlier version is still read: state dicts, a stopped run, published runs.

The files in ``before`` were written by version 0.1.0: as it was before its modules were moved, and
``optimizers_version_1.pt`` as it was before state dicts had the layout of version 2, that of
``optimizers_version_2.pt``; ``run_sealed`` is a run stopped at step 9, since checkpoints have a
seal. They must load for ever.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.problems import BASES, METHODS, Problem, mlp, weights

import aesam
from aesam.lab import lab_methods
from aesam.lab.config import Method, config_hash, from_dict
from aesam.lab.folders import RunFolder, folder_of
from aesam.lab.training.trainer import train
from aesam.parts.policies import Always

ROOT = Path(__file__).parents[2]
BEFORE = Path(__file__).parent / "before"
SAVED = torch.load(BEFORE / "optimizers.pt", weights_only=True)
VERSIONS = {
    (version, name): saved
    for version in (1, 2)
    for name, saved in torch.load(
        BEFORE / f"optimizers_version_{version}.pt", weights_only=True
    ).items()
}


@pytest.mark.parametrize("name", SAVED)
def test_a_state_dict_of_before_is_gone_on_with(name):
    saved, model = SAVED[name], mlp()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    given = {"k": 3} if name == "looksam" else {}
    filled = lab_methods.fill(Method(name, **given))
    opt = lab_methods.make(filled, base, model, total_steps=20, seed=7)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["optimizer"])
    Problem(model).train(opt, 9, start=11)
    torch.testing.assert_close(weights(model), saved["after"], rtol=1e-9, atol=1e-12)
    assert opt.sam_fraction == saved["sam_fraction"]


@dataclass(frozen=True)
class Remembering(aesam.Combine):
    """Adds a share of the last direction; counts its steps."""

    remembers = ("count",)

    def learn(self, first, params, second, memory, workspace):
        kept = {p: g_s.detach().clone() for p, g_s in zip(params, second, strict=True)}
        return aesam.Memory({"count": memory.number("count") + 1}, kept)

    def combine(self, first, params, second, memory, generator):
        for p, g_s in zip(params, second, strict=True):
            if p in memory.tensors:
                g_s.add_(memory.tensors[p], alpha=0.5 / memory.number("count"))


def remembering(base, model):
    return aesam.SharpnessAware(base, model, policy=Always(), combine=Remembering())


@pytest.mark.parametrize(("version", "name"), VERSIONS)
def test_a_state_dict_of_every_version_is_gone_on_with(version, name):
    saved, model = VERSIONS[version, name], mlp()
    make = remembering if name == "remembering" else METHODS[name]
    opt = make(BASES["adamw"](model.parameters()), model)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["optimizer"])
    Problem(model).train(opt, 9, start=11)
    torch.testing.assert_close(weights(model), saved["after"], rtol=1e-9, atol=1e-12)
    assert opt.sam_fraction == saved["sam_fraction"]


def test_a_run_that_was_stopped_before_goes_on(tmp_path):
    shutil.copytree(BEFORE / "run", tmp_path / "run")
    run = from_dict(json.loads((BEFORE / "run/config.json").read_text()))
    train(run, tmp_path / "run", resume=True)
    ended, expected = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "run/metrics.jsonl", BEFORE / "run_metrics.jsonl")
    )
    assert [line["percent_sam"] for line in ended] == [line["percent_sam"] for line in expected]
    for ours, theirs in zip(ended, expected, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-3)
        assert ours["trace"]["used_sam"] == theirs["trace"]["used_sam"]


def test_a_sealed_checkpoint_of_this_version_is_gone_on_with_for_ever(tmp_path):
    shutil.copytree(BEFORE / "run_sealed", tmp_path / "run")
    run = from_dict(json.loads((BEFORE / "run_sealed/config.json").read_text()))
    summary = train(run, tmp_path / "run", resume=True)
    expected = json.loads((BEFORE / "run_sealed_summary.json").read_text())
    assert summary["steps"] == expected["steps"] == 16
    assert summary["gradients"] == expected["gradients"]
    for name in ("train_loss", "test_accuracy", "train_accuracy"):
        assert summary[name] == pytest.approx(expected[name], rel=1e-3)


def test_published_runs_are_still_read_as_finished():
    published = [path.parent for path in (ROOT / "results/runs").rglob("summary.json")]
    assert len(published) == 78
    for folder in published:
        run = from_dict(json.loads((folder / "config.json").read_text()))
        summary = json.loads((folder / "summary.json").read_text())
        assert config_hash(run) == summary["config_hash"]
        assert folder_of(run, ROOT / "results/runs") == folder
        assert RunFolder(folder).is_finished(run)
