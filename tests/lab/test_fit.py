"""A pass of one row: refused where BatchNorm would see one value per channel, and only there."""

import pytest
import torch
from support.commands import aesam

from aesam.lab import data, fit, models
from aesam.lab.config import Method, Model, Run, Training
from aesam.lab.errors import UsageError
from aesam.parts.part import Memory
from aesam.parts.samples import LargestRise

pytestmark = pytest.mark.slow
FEW = ("--subset", 8, "--epochs", 1)
ONE_ROW = {
    "batches of one": (("train", "--batch-size", 1), "batch_size 1 over"),
    "micro-batches of one": (
        ("train", "--method", "sam", "--batch-size", 2, "--accumulate", 2),
        "1 process(es) × 2 micro-batch(es) leaves",
    ),
    "esam's selection of one": (
        ("train", "--method", "esam", "--batch-size", 3, "--gamma", 0.4),
        "of which esam selects gamma 0.4 leaves a pass of 1 row",
    ),
    "one of the methods to compare": (
        ("compare", "--methods", "erm", "esam", "--batch-size", 2, "--noise", 0),
        "esam selects gamma 0.5",
    ),
    "one of the methods to tune": (
        ("tune", "--methods", "sam", "esam", "--batch-size", 2),
        "esam selects gamma 0.5",
    ),
}


@pytest.mark.parametrize("case", ONE_ROW)
def test_a_pass_of_one_row_is_refused_where_batch_norm_cannot_train_on_it(case, tmp_path, capsys):
    words, numbers = ONE_ROW[case]
    out = ("--out", tmp_path / "out")
    code, told = aesam(*words, *FEW, "--model", "resnet18", *out, capsys=capsys)
    assert code == 2
    assert "Traceback" not in told
    assert numbers in told
    assert "use a larger batch_size" in told
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("model", ["digits-cnn", "mlp"])
def test_a_pass_of_one_row_trains_where_it_can(model, tmp_path):
    words = ("train", "--method", "esam", "--batch-size", 2, "--model", model, "--quiet")
    assert aesam(*words, *FEW, "--out", tmp_path) == 0


def run_of(model, batch_size=1, name="ae-sam", **settings):
    return Run(
        data=data.data_record("digits").usual.data,
        model=Model(model),
        method=Method(name, **settings),
        training=Training(batch_size=batch_size),
    )


def can_train_on(net, row):
    try:
        net.train()(row)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("size", [8, 16, 32])
@pytest.mark.parametrize("model", ["mlp", "digits-cnn", "resnet8", "resnet18", "resnet50", "vit-s"])
def test_what_is_refused_is_what_the_real_model_cannot_do(model, size):
    known = data.DataSet(10, None, None, (0.5,), (0.5,), 1, size, 0, False)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    refused = False
    try:
        fit.check_smallest_pass(run_of(model), known)
    except UsageError:
        refused = True
    assert torch.equal(torch.get_rng_state(), state)
    net = models.build(model, classes=10, channels=1, size=size)
    assert refused is not can_train_on(net, torch.randn(1, 1, size, size))


def test_processes_share_the_rows_of_a_batch():
    known = data.load("digits", "data")
    fit.check_smallest_pass(run_of("resnet18", batch_size=4), known, world=2)
    with pytest.raises(UsageError, match="batch_size 4 over 4 process"):
        fit.check_smallest_pass(run_of("resnet18", batch_size=4), known, world=4)


@pytest.mark.parametrize("gamma", [0.1, 0.3, 0.5, 0.7, 1.0])
def test_the_rows_counted_are_those_selected(gamma):
    for batch in range(1, 9):
        run = run_of("mlp", batch_size=batch, name="esam", gamma=gamma)
        chosen = LargestRise(gamma).rows(torch.zeros(batch), torch.randn(batch), Memory(), None)
        assert fit.smallest_pass(run) == len(chosen)
