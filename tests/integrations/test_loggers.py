"""What loggers are told of a step, and that the real ones keep it."""

import pytest
import torch
from support.problems import BASES, Problem, mlp
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import aesam

STEPS = 12
#: What is told of second gradients.
HEALTH = ("percent_rise", "cosine", "bend", "percent_time")


def train(method, **options):
    """A few steps, and what there is to log after each."""
    model = mlp()
    problem = Problem(model)
    opt = method(BASES["sgd"](model.parameters()), model, **options)
    told = []
    for t in range(STEPS):
        loss = problem.step(opt, t)
        told.append((loss, opt.last_step, opt.sam_fraction, aesam.metrics(opt, loss)))
    return opt, told


def test_metrics_are_those_of_the_last_step():
    opt, told = train(aesam.AESAM, total_steps=STEPS)
    assert 0.0 < opt.sam_fraction < 1.0
    for loss, last, share, metrics in told:
        of_step = {name: value for name, value in metrics.items() if name not in HEALTH}
        assert of_step == {
            "loss": loss.item(),
            "percent_sam": 100 * share,
            "squared_norm": last.squared_norm,
            "mean": last.mean,
            "threshold": last.threshold,
            "skipped_steps": 0.0,
        }
        assert {type(value) for value in metrics.values()} == {float}


def test_what_is_not_known_is_left_out():
    fresh = aesam.SAM(BASES["sgd"](mlp().parameters()))
    assert aesam.metrics(fresh) == {"percent_sam": 0.0, "skipped_steps": 0.0}
    _, told = train(aesam.SAM)
    assert set(told[-1][3]) == {"loss", "percent_sam", "squared_norm", "skipped_steps", *HEALTH}


def test_skipped_steps_are_told():
    model = mlp()
    problem = Problem(model)
    opt = aesam.SAM(BASES["sgd"](model.parameters()), model)
    problem.losses(0).mean().backward()
    opt.needs_second_pass()
    opt.needs_second_pass()  # discards the first decision
    assert aesam.metrics(opt)["skipped_steps"] == 1.0


def test_a_prefix_goes_before_every_name():
    opt, _ = train(aesam.SAM)
    told = aesam.metrics(opt, prefix="train/")
    names = {"percent_sam", "squared_norm", "skipped_steps", *HEALTH}
    assert set(told) == {f"train/{name}" for name in names}


@pytest.mark.parametrize(
    ("loss", "error", "words"),
    [
        (torch.ones(3), ValueError, r"loss must be one number, got a tensor of shape \(3,\)"),
        ("0.5", TypeError, "loss must be one number, got '0.5' of type str"),
    ],
)
def test_a_loss_that_is_no_number_is_refused(loss, error, words):
    opt, _ = train(aesam.SAM)
    with pytest.raises(error, match=words):
        aesam.metrics(opt, loss)


def test_an_optimizer_of_others_is_refused():
    with pytest.raises(TypeError, match="no sharpness-aware optimizer inside this SGD"):
        aesam.metrics(BASES["sgd"](mlp().parameters()))


@pytest.mark.slow
def test_tensorboard_keeps_what_it_is_told(tmp_path, matrix):
    _, told = train(aesam.AESAM, total_steps=STEPS)
    with SummaryWriter(tmp_path) as writer:
        for t, (*_, metrics) in enumerate(told):
            for name, value in metrics.items():
                writer.add_scalar(name, value, t)
    kept = EventAccumulator(str(tmp_path)).Reload()
    for name in told[0][3]:
        values = [event.value for event in kept.Scalars(name)]
        assert values == pytest.approx([metrics[name] for *_, metrics in told], rel=1e-6)
    matrix.right("Loggers", "TensorBoard", within=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb.*")
def test_wandb_offline_keeps_what_it_is_told(tmp_path, monkeypatch, matrix):
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    opt, told = train(aesam.AESAM, total_steps=STEPS)
    try:
        with wandb.init(project="aesam", mode="offline") as run:
            for *_, metrics in told:
                run.log(metrics)
            kept = dict(run.summary)
        files = list(tmp_path.rglob("*.wandb"))
    finally:
        wandb.teardown()  # ends the process that W&B writes through
    assert {name: kept[name] for name in told[-1][3]} == told[-1][3]
    assert len(files) == 1
    assert b"percent_sam" in files[0].read_bytes()
    assert b"threshold" in files[0].read_bytes()
    matrix.right("Loggers", "Weights & Biases, offline", within=0.0)
