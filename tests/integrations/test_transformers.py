"""Transformers' Trainer with the mixin is the plain loop of this library."""

import json
from collections import deque

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.language import (
    VOCABULARY,
    SeedEachStep,
    arguments,
    furthest,
    gpt,
    groups,
    label_count,
    language_loss,
    micro_batches,
    next_token_loss,
    sequences,
    train_plainly,
)
from support.problems import AboveAverageLoss
from torch import nn
from torchmetrics import MeanMetric
from transformers import Trainer, TrainerCallback, get_scheduler
from transformers.trainer_pt_utils import LabelSmoother

import aesam
from aesam.integrations.transformers import SharpnessAwareMixin

pytestmark = pytest.mark.slow
WITHIN = 1e-12


@pytest.fixture(autouse=True)
def accelerate_afresh():
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):
    pass


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def adaptive(model, steps):
    return aesam.AESAM(adamw(model), model, rho=0.1, delta=0.5, total_steps=steps)


METHODS = {
    "SAM": lambda model, _: aesam.SAM(adamw(model), model, rho=0.1),
    "SS-SAM": lambda model, _: aesam.SSSAM(adamw(model), model, rho=0.1, seed=3),
    "AE-LookSAM": lambda model, steps: aesam.AELookSAM(
        adamw(model), model, rho=0.1, total_steps=steps
    ),
    "a policy that looks at the loss": lambda model, _: aesam.SharpnessAware(
        adamw(model), model, policy=AboveAverageLoss(), rho=0.1
    ),
    "a budget": lambda model, _: aesam.AELookSAM(adamw(model), model, rho=0.1, budget=0.5),
    "ERM": lambda model, _: aesam.ERM(adamw(model), model),
}


def both(
    folder,
    *,
    method=adaptive,
    dropout=0.0,
    make=gpt,
    trainer=SharpnessAwareTrainer,
    given=None,
    **changes,
):
    """The Trainer after two epochs, and what the plain loop needs to do the same."""
    accumulation = changes.get("gradient_accumulation_steps", 1)
    steps = 2 * groups(accumulation)
    model, twin = make(dropout), make(dropout)
    opt, plain = method(model, len(steps)), method(twin, len(steps))
    trained = trainer(
        model,
        arguments(folder, **changes),
        train_dataset=sequences(),
        eval_dataset=sequences()[:8],
        optimizers=(opt, None),
        callbacks=[SeedEachStep()],
        **(given or {}),
    )
    trained.train()
    return trained, twin, plain, steps


SETTINGS = {
    "as it is": {},
    "gradient_accumulation_steps=4, the last group incomplete": {"gradient_accumulation_steps": 4},
    "max_grad_norm=0.3": {"max_grad_norm": 0.3},
    "dropout, accumulation and max_grad_norm": {
        "gradient_accumulation_steps": 4, "max_grad_norm": 0.3, "dropout": 0.2,
    },
    "evaluation in between": {"eval_strategy": "steps", "eval_steps": 3, "dropout": 0.2},
    "activation_checkpointing=True, use_reentrant=True": {
        "activation_checkpointing": True, "dropout": 0.2,
        "activation_checkpointing_kwargs": {"use_reentrant": True},
    },
    "activation_checkpointing=True, use_reentrant=False": {
        "activation_checkpointing": True, "dropout": 0.2,
        "activation_checkpointing_kwargs": {"use_reentrant": False},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_the_trainer_equals_the_plain_loop(name, tmp_path, matrix):
    setting = SETTINGS[name]
    trained, twin, plain, steps = both(tmp_path, **setting)
    train_plainly(twin, plain, steps, max_norm=setting.get("max_grad_norm", 0.0))
    found = aesam.unwrap(trained.optimizer)
    assert found.last_step.index == plain.last_step.index
    assert 0.0 < found.sam_fraction == plain.sam_fraction < 1.0
    assert furthest(trained.model, twin) < WITHIN
    matrix.right("Transformers' Trainer", name, within=WITHIN)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_equals_the_plain_loop(method, tmp_path):
    make = METHODS[method]
    setting = {"gradient_accumulation_steps": 3, "max_grad_norm": 0.5, "dropout": 0.2}
    trained, twin, plain, steps = both(tmp_path, method=make, **setting)
    train_plainly(twin, plain, steps, max_norm=0.5)
    assert aesam.unwrap(trained.optimizer).sam_fraction == plain.sam_fraction
    assert furthest(trained.model, twin) < WITHIN


# Losses --------------------------------------------------------------------------------------


def smoothed_loss(model, part, group):
    outputs = model(input_ids=part["input_ids"])
    count = label_count(group)
    return LabelSmoother(0.1)(outputs, part["labels"], shift_labels=True, num_items_in_batch=count)


def test_label_smoothing_that_pops_the_labels_equals_the_plain_loop(tmp_path, matrix):
    setting = {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 4, "dropout": 0.2}
    trained, twin, plain, steps = both(tmp_path, **setting)
    train_plainly(twin, plain, steps, loss=smoothed_loss)
    assert 0.0 < plain.sam_fraction < 1.0
    assert furthest(trained.model, twin) < WITHIN
    matrix.right("Transformers' Trainer", "label_smoothing_factor=0.1", within=WITHIN)


class WithoutItemCounts(nn.Module):
    """Returns a mean over its own micro-batch, which the Trainer divides by their number."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.inside = gpt(dropout)

    def forward(self, input_ids, labels=None):
        logits = self.inside(input_ids=input_ids).logits
        return {"loss": next_token_loss(logits, labels), "logits": logits}


class PopsLabels(SharpnessAwareTrainer):
    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        labels = inputs.pop("labels")
        outputs = model(**inputs, labels=labels)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


@pytest.mark.parametrize("trainer", [SharpnessAwareTrainer, PopsLabels])
def test_means_over_micro_batches_equal_the_plain_loop(trainer, tmp_path):
    setting = {"gradient_accumulation_steps": 4, "dropout": 0.2}
    trained, twin, plain, steps = both(tmp_path, make=WithoutItemCounts, trainer=trainer, **setting)
    train_plainly(
        twin, plain, steps, loss=lambda model, part, group: model(**part)["loss"] / len(group)
    )
    assert 0.0 < plain.sam_fraction < 1.0
    assert furthest(trained.model, twin) < WITHIN


def test_compute_loss_func_equals_the_plain_loop(tmp_path):
    def loss(outputs, labels, num_items_in_batch):
        return next_token_loss(outputs.logits, labels, num_items_in_batch)

    setting = {"gradient_accumulation_steps": 4, "given": {"compute_loss_func": loss}}
    trained, twin, plain, steps = both(tmp_path, **setting)
    train_plainly(twin, plain, steps)
    assert furthest(trained.model, twin) < WITHIN


def functional(model, _):
    return aesam.FunctionalSAM(adamw(model), model, rho=0.1)


def test_functional_sam_is_the_plain_loop_s_where_the_trainer_makes_the_loss(tmp_path):
    """And refused where the model makes it, with the argument to give."""

    def loss(outputs, labels, num_items_in_batch):
        return next_token_loss(outputs.logits, labels, num_items_in_batch)

    def outside(model, part, group):
        logits = model(input_ids=part["input_ids"]).logits
        return next_token_loss(logits, part["labels"], label_count(group))

    setting = {"gradient_accumulation_steps": 4, "max_grad_norm": 0.3, "dropout": 0.2}
    given = {"compute_loss_func": loss}
    trained, twin, plain, steps = both(tmp_path, method=functional, given=given, **setting)
    train_plainly(twin, plain, steps, loss=outside, max_norm=0.3)
    assert aesam.unwrap(trained.optimizer).sam_fraction == plain.sam_fraction == 1.0
    assert furthest(trained.model, twin) < WITHIN
    with pytest.raises(RuntimeError, match="compute_loss_func="):
        both(tmp_path, method=functional)


class Endless(torch.utils.data.IterableDataset):
    """Without a length, so that an epoch may end inside a group of micro-batches."""

    def __iter__(self):
        return iter(sequences()[:10])


def mean_loss(model, part, group):
    return model(input_ids=part["input_ids"], labels=part["labels"])["loss"] / len(group)


@pytest.mark.parametrize(("make", "loss"), [(gpt, language_loss), (WithoutItemCounts, mean_loss)])
def test_micro_batches_left_over_from_an_epoch_are_in_the_second_pass_too(make, loss, tmp_path):
    model, twin = make(), make()
    opt, plain = (aesam.SAM(adamw(m), m, rho=0.1) for m in (model, twin))
    SharpnessAwareTrainer(
        model,
        arguments(tmp_path, max_steps=4, gradient_accumulation_steps=2),
        train_dataset=Endless(),
        optimizers=(opt, None),
    ).train()
    five = micro_batches()[:5]
    left_over = {**five[4], "alone": True}  # the Trainer scales it as a group of its own

    def loss_in_its_group(model, part, group):
        own = [part] if "alone" in part else [other for other in group if "alone" not in other]
        return loss(model, part, own)

    steps = [five[:2], five[2:4], [left_over, *five[:2]], five[2:4]]
    train_plainly(twin, plain, steps, loss=loss_in_its_group)
    assert furthest(model, twin) < WITHIN


# Precision -----------------------------------------------------------------------------------


def single(dropout=0.0):
    model = gpt(dropout).float()
    model.loss_function = next_token_loss
    return model


def test_bf16_equals_the_plain_loop_under_autocast(tmp_path, matrix):
    setting = {"bf16": True, "gradient_accumulation_steps": 4, "max_grad_norm": 0.3}
    trained, twin, plain, steps = both(tmp_path, make=single, dropout=0.2, **setting)

    def loss(model, part, group):
        with torch.autocast("cpu", torch.bfloat16):
            return model(**part, num_items_in_batch=label_count(group)).loss.float()

    train_plainly(twin, plain, steps, loss=loss, max_norm=0.3)
    assert 0.0 < plain.sam_fraction < 1.0
    assert furthest(trained.model, twin) < 1e-7
    matrix.right("Transformers' Trainer", "bf16=True", within=1e-7)


def under_a_scaler(folder, make, **setting):
    """As on a GPU with fp16; on a CPU Accelerate has autocast to float16 but no scaler."""
    model, twin = make(0.2), make(0.2)
    steps = 2 * groups(2)
    opt, plain = adaptive(model, len(steps)), adaptive(twin, len(steps))
    trainer = SharpnessAwareTrainer(
        model,
        arguments(folder, gradient_accumulation_steps=2, max_grad_norm=0.3),
        train_dataset=sequences(),
        optimizers=(opt, None),
        callbacks=[SeedEachStep()],
    )
    scaler = torch.amp.GradScaler("cpu", growth_interval=5, **setting)
    trainer.accelerator.scaler, trainer.accelerator.native_amp = scaler, True
    trainer.accelerator.state._mixed_precision = "fp16"
    trainer.train()
    return model, opt, scaler, twin, plain, steps


def test_a_loss_scaler_changes_nothing(tmp_path, matrix):
    model, opt, scaler, twin, plain, steps = under_a_scaler(tmp_path, gpt, init_scale=1024.0)
    assert scaler.get_scale() > 1024.0
    train_plainly(twin, plain, steps, max_norm=0.3)
    assert 0.0 < opt.sam_fraction == plain.sam_fraction < 1.0
    assert furthest(model, twin) < WITHIN
    matrix.right("Transformers' Trainer", "fp16, with a loss scaler", within=WITHIN)


def test_a_step_that_overflows_is_skipped(tmp_path):
    model, opt, scaler, *_, steps = under_a_scaler(
        tmp_path, single, init_scale=2.0**126, backoff_factor=2.0**-60
    )
    assert scaler.get_scale() < 2.0**126
    assert opt.skipped_steps >= 1
    assert opt.last_step.index + 1 + opt.skipped_steps == len(steps)
    assert all(p.isfinite().all() for p in model.parameters())


class TwoWords(nn.Module):
    """The next token from the last two: little to compile."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16, VOCABULARY)
        self.double()

    def forward(self, input_ids, labels=None):
        found = self.embed(input_ids)
        logits = self.head(self.dropout(torch.cat([found, found.roll(1, 1)], -1).tanh()))
        return {"loss": next_token_loss(logits, labels), "logits": logits}


def test_a_compiled_model_equals_the_plain_loop(tmp_path, matrix):
    setting = {"torch_compile": True, "torch_compile_backend": "aot_eager", "max_grad_norm": 0.1}
    trained, twin, plain, steps = both(tmp_path, make=TwoWords, dropout=0.2, **setting)
    train_plainly(
        twin, plain, steps, loss=lambda model, part, _: model(**part)["loss"], max_norm=0.1
    )
    assert 0.0 < plain.sam_fraction < 1.0
    assert type(trained.model_wrapped).__name__ == "OptimizedModule"
    assert furthest(trained.model, twin) < WITHIN
    matrix.right("Transformers' Trainer", "torch_compile=True", within=WITHIN)


# What else the Trainer does ------------------------------------------------------------------


def test_the_schedule_of_the_learning_rate_is_the_trainer_s(tmp_path, matrix):
    setting = {"lr_scheduler_type": "linear", "warmup_steps": 5}
    trained, twin, plain, steps = both(tmp_path, **setting)
    schedule = get_scheduler("linear", plain, num_warmup_steps=5, num_training_steps=len(steps))
    train_plainly(twin, plain, steps, scheduler=schedule)
    assert furthest(trained.model, twin) < WITHIN
    matrix.right("Transformers' Trainer", "lr_scheduler_type", within=WITHIN)


def test_logs_count_each_loss_once_and_say_what_was_decided(tmp_path):
    setting = {"logging_strategy": "steps", "logging_steps": 1, "gradient_accumulation_steps": 4}
    trained, twin, plain, steps = both(tmp_path, **setting)
    logs = [log for log in trained.state.log_history if "loss" in log]
    seen = []
    plain.register_step_post_hook(lambda *_: seen.append((plain.last_step, plain.sam_fraction)))
    losses = train_plainly(twin, plain, steps)
    assert [log["loss"] for log in logs] == pytest.approx(losses, rel=1e-5)
    for log, (last, share) in zip(logs, seen, strict=True):
        assert log["percent_sam"] == pytest.approx(100 * share)
        for name in ("squared_norm", "mean", "threshold"):
            assert log[name] == pytest.approx(getattr(last, name), rel=1e-9)
    assert trained.state.log_history[-1]["percent_sam"] == logs[-1]["percent_sam"]


class Counting(TrainerCallback):
    def __init__(self):
        self.events = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            self.events.append(name)
        return super().__getattribute__(name)


def test_callbacks_are_called_as_often_as_without(tmp_path):
    events = []
    for trainer in (Trainer, SharpnessAwareTrainer):
        model = gpt()
        opt = adamw(model) if trainer is Trainer else aesam.SAM(adamw(model), model)
        counting = Counting()
        setting = {"gradient_accumulation_steps": 4, "logging_strategy": "steps"}
        trainer(
            model,
            arguments(tmp_path, **setting),
            train_dataset=sequences(),
            optimizers=(opt, None),
            callbacks=[counting],
        ).train()
        events.append(counting.events)
    assert "on_pre_optimizer_step" in events[0]
    assert events[0] == events[1]


class Meter:
    def __init__(self):
        self.count = 0

    def update(self):
        self.count += 1


class CountsInComputeLoss(SharpnessAwareTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls, self.total, self.kept = 0, torch.zeros(1), {"losses": [], "meter": Meter()}
        self.recent, self.meter, self.average = deque(maxlen=1000), Meter(), MeanMetric()

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.calls += 1
        self.total += 1
        self.kept["losses"].append(loss.item())
        self.kept["meter"].update()
        self.recent.append(loss.item())
        self.meter.update()
        self.average.update(loss.detach())
        self.log({"own": loss.item()})
        type(self).all_calls += 1
        return loss


def test_what_compute_loss_counts_and_logs_is_counted_once(tmp_path):
    CountsInComputeLoss.all_calls = 0
    trained, *_, steps = both(
        tmp_path, method=METHODS["SAM"], trainer=CountsInComputeLoss, gradient_accumulation_steps=4
    )
    micro = sum(map(len, steps))
    assert CountsInComputeLoss.all_calls == 2 * micro
    assert trained.calls == trained.total.item() == len(trained.kept["losses"]) == micro
    assert trained.kept["meter"].count == trained.meter.count == len(trained.recent) == micro
    logged = [log["own"] for log in trained.state.log_history if "own" in log]
    assert logged == trained.kept["losses"] == list(trained.recent)
    assert trained.average.compute().item() == pytest.approx(sum(logged) / micro, rel=1e-5)


class Normalised(WithoutItemCounts):
    """With statistics that a second pass must not move."""

    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.norm = nn.BatchNorm1d(32).double()

    def forward(self, input_ids, labels=None):
        logits = self.inside(input_ids=input_ids).logits
        logits = self.norm(logits.flatten(0, 1)).view_as(logits)
        return {"loss": next_token_loss(logits, labels), "logits": logits}


def test_statistics_are_moved_once_even_where_the_model_was_not_given(tmp_path):
    def without_model(model, _):
        return aesam.SAM(adamw(model), rho=0.1)

    trained, twin, _, steps = both(tmp_path, make=Normalised, method=without_model)
    plain = aesam.SAM(adamw(twin), twin, rho=0.1)
    train_plainly(twin, plain, steps, loss=lambda model, part, _: model(**part)["loss"])
    assert furthest(trained.model, twin) < WITHIN
    torch.testing.assert_close(trained.model.norm.running_mean, twin.norm.running_mean)
    assert trained.model.norm.num_batches_tracked == len(steps)


# Resume --------------------------------------------------------------------------------------


def trained_with_checkpoints(folder, resume=None):
    model = gpt(0.2)
    setting = {
        "train_sampling_strategy": "random", "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "cosine", "warmup_steps": 3, "max_grad_norm": 0.3,
        "save_strategy": "steps", "save_steps": 4, "learning_rate": 0.01,
    }  # fmt: skip
    opt = aesam.AELookSAM(adamw(model), model, rho=0.1, delta=0.5, lambda1=-1.0, total_steps=18)
    trainer = SharpnessAwareTrainer(
        model, arguments(folder, **setting), train_dataset=sequences(), optimizers=(opt, None)
    )
    trainer.train(resume_from_checkpoint=resume)
    return model, opt


@pytest.mark.parametrize("step", [4, 12])
def test_a_resumed_run_is_the_run_that_was_not_interrupted_to_the_bit(step, tmp_path, matrix):
    whole, opt = trained_with_checkpoints(tmp_path / "whole")
    checkpoint = tmp_path / f"whole/checkpoint-{step}"
    saved = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    assert json.loads(saved["param_groups"][0]["aesam"])["step"] == step
    resumed, again = trained_with_checkpoints(tmp_path / "resumed", resume=str(checkpoint))
    assert furthest(whole, resumed) == 0.0
    assert again.last_step == opt.last_step
    assert 0.0 < again.sam_fraction == opt.sam_fraction < 1.0
    matrix.right("Transformers' Trainer", "resume_from_checkpoint", within=0.0)
