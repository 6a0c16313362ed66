"""A method, a data set and a model from outside work in every command, also in its workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

#: As a user types it: unlike `python -m`, it does not look for modules in the current folder.
SCRIPT = Path(sys.executable).with_name("aesam")

#: What a user would write: a setting of its own with a grid, and no record of the lab's.
PLUGIN = '''
import torch
from torch import nn
from aesam import AESAM, Decision, Policy, Setting, SharpnessAware, register_method
from aesam.lab.config import Training
from aesam.lab.data import DataRecord, DataSet, Split, register_data_set
from aesam.lab.lab_methods import LabMethod, register_lab_method
from aesam.lab.models import ModelRecord, register_model
from aesam.parts.policies import Periodic

RHO = Setting("rho", 0.3, "radius", symbol="ρ", allowed="≥ 0", grid=(0.1, 0.4))
ETA = Setting("pause", 2, "steps between two second gradients", symbol="η", grid=(1, 2))
STEEP = Setting("lambda1", -2.0, "threshold at the end", grid=(-3, -2))

@register_method("every-other", label="Every Other", settings=(RHO, ETA))
class EveryOther(SharpnessAware):
    """A second gradient every pause-th step."""

    def __init__(self, base, model=None, *, rho=0.3, pause=2, nonfinite="skip"):
        super().__init__(base, model, policy=Periodic(pause), rho=rho, nonfinite=nonfinite)

@register_method("steep", label="Steep", settings=(STEEP,))
class Steep(AESAM):
    """AE-SAM with other thresholds; hands its keywords on, total_steps among them."""

    def __init__(self, base, model=None, *, lambda1=-2.0, **more):
        super().__init__(base, model, lambda1=lambda1, **more)

class AboveLast(Policy):
    """A second gradient where the loss is above that of the step before."""

    looks_at_loss = True

    def start(self):
        return {"last": 0.0}

    def decide(self, now, state):
        return Decision(now.loss > state["last"]), {"last": now.loss}

@register_method("above-last", label="Above Last", settings=())
class AboveLastSAM(SharpnessAware):
    """SAM where the loss rose."""

    def __init__(self, base, model=None, **common):
        super().__init__(base, model, policy=AboveLast(), **common)

register_lab_method("steep", LabMethod(baseline="every-other", colour="#123456"))

def stripes(root, size):
    labels = torch.arange(96) % 2
    images = torch.zeros(96, 1, 4, 4, dtype=torch.uint8)
    images[labels == 1, :, ::2] = 255
    split = Split(images, labels)
    return DataSet(classes=2, train=split, test=split.select(torch.arange(32)), mean=(0.5,),
                   std=(0.5,), channels=1, size=4, pad=0, flips=False)

register_data_set(DataRecord(
    name="stripes", label="Stripes", help="black and white", load=stripes, model="one-layer",
    training=Training(epochs=2, batch_size=32), augment=False))

register_model(ModelRecord(
    "one-layer", "One layer", "a linear map",
    lambda t: nn.Sequential(nn.Flatten(), nn.Linear(t.channels * t.size**2, t.classes))))
'''


@pytest.fixture
def aesam_here(tmp_path):
    """The command as a process in a folder with the plugin; returns what it printed."""
    (tmp_path / "stripes_plugin.py").write_text(PLUGIN)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "AESAM_PLUGINS": "stripes_plugin"}

    def run(*words, expected=0, **more):
        done = subprocess.run(
            [SCRIPT, *map(str, words)], cwd=tmp_path, env={**env, **more},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        told = " ".join((done.stdout + done.stderr).replace("│", " ").split())
        assert done.returncode == expected, told
        assert "Traceback" not in told
        return told

    return run


def test_every_command_takes_what_was_registered_outside(aesam_here, tmp_path):
    told = aesam_here("train", "--dataset", "stripes", "--help", COLUMNS="120")
    assert "every-other" in told
    assert "η, steps between two second gradients (every-other). (default: 2)" in told
    assert "{digits,cifar10,cifar100,cifar10-16,folder,kjv-text,synthetic,stripes}" in told
    assert "(default: one-layer)" in told
    assert "Passes over the training set. (default: 2)" in told

    told = aesam_here("train", "--dataset", "stripes", "--method", "every-other", "--out", "one")
    assert "SAM on 50.0 % of 6 steps" in told
    config = json.loads((tmp_path / "one/config.json").read_text())
    assert config["method"] == {"name": "every-other", "rho": 0.3, "pause": 2}

    told = aesam_here(
        "compare", "--dataset", "stripes", "--methods", "erm", "every-other", "matched-sam",
        "steep", "--seeds", 0, 1, "--noise", 0, "--pause", 3,
    )  # fmt: skip
    assert "Every Other" in told
    assert "matched coin" in told
    results = json.loads((tmp_path / "runs/compare/results.json").read_text())
    rows = {row["method"]: row for row in results["comparisons"][0]["rows"]}
    assert rows["every-other"]["settings"]["pause"] == 3
    assert rows["every-other"]["against_baseline"]["label"] == "ERM"  # the default
    assert rows["steep"]["against_baseline"]["label"] == "Every Other"
    assert "of Steep: Every Other" in told  # the caption follows

    aesam_here(
        "tune", "--dataset", "stripes", "--methods", "every-other", "steep", "--pauses", 1,
        "--seeds", 0, "--limit", 0,
    )  # fmt: skip
    found = json.loads((tmp_path / "runs/tune/tune.json").read_text())
    tried = [row["settings"] for row in found["rows"] if row["method"] == "every-other"]
    assert sorted({settings["rho"] for settings in tried}) == [0.1, 0.4]  # its own grid
    assert {repr(settings["pause"]) for settings in tried} == {"1", "2"}  # given, and the usual one
    steep = [row["settings"]["lambda1"] for row in found["rows"] if row["method"] == "steep"]
    assert sorted(map(repr, steep)) == ["-2.0", "-3.0"]  # real, as its default is

    assert "Every Other" in aesam_here("report", "runs/compare", "--out", "again")
    assert "train: 96" in aesam_here("data", "stripes")


def test_a_policy_that_looks_at_the_loss_is_given_it(aesam_here):
    for more in ((), ("--accumulate", 2)):
        told = aesam_here("train", "--dataset", "stripes", "--method", "above-last", *more)
        assert "SAM on" in told
        assert "SAM on 0.0 %" not in told


def test_a_report_of_runs_whose_plugin_is_gone_is_made_all_the_same(aesam_here):
    aesam_here("train", "--dataset", "stripes", "--method", "every-other", "--out", "one")
    assert "every-other" in aesam_here("report", "one", AESAM_PLUGINS="")


def test_a_plugin_that_cannot_be_imported_is_named(aesam_here):
    told = aesam_here("report", "one", expected=2, AESAM_PLUGINS="stripes_plugin,no_such_module")
    assert "the plugin 'no_such_module' cannot be imported" in told
    assert "AESAM_PLUGINS" in told
    told = aesam_here("report", "one", expected=2, AESAM_PLUGINS="./stripes_plugin.py")
    assert "which is no module" in told


def test_a_setting_may_not_take_the_name_of_a_flag(aesam_here, tmp_path):
    (tmp_path / "clash.py").write_text(
        PLUGIN.replace('"pause"', '"epochs"').replace("pause", "epochs")
    )
    told = aesam_here("train", "--quiet", expected=2, AESAM_PLUGINS="clash")
    assert "the setting epochs of every-other has the name of another flag" in told


def test_the_controls_are_compared_on_digits(aesam_here):
    """With the settings of what they control: this once ended in a KeyError."""
    controls = ["matched-sam", "inverted-sam", "matched-looksam", "inverted-looksam", "late-sam"]
    told = aesam_here(
        "compare", "--methods", "erm", *controls, "--seeds", 0, "--epochs", 1, "--subset", 256,
    )  # fmt: skip
    assert "SAM at the end" in told
    assert "inverted, reuse" in told
