"""The Trainer as it is, with replay=True: its models return the loss, so this is SAM to the bit."""

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.language import (
    SeedEachStep,
    arguments,
    furthest,
    gpt,
    groups,
    label_count,
    next_token_loss,
    sequences,
    train_plainly,
)
from torch import nn
from transformers import Trainer, TrainerCallback

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


def adaptive(model, steps, **options):
    base = torch.optim.AdamW(model.parameters(), lr=0.01)
    return aesam.AESAM(base, model, rho=0.1, delta=0.5, total_steps=steps, **options)


def trained(folder, make=gpt, dropout=0.2, trainer=Trainer, max_norm=None, callbacks=(), **changes):
    steps = 2 * groups(changes.get("gradient_accumulation_steps", 1))
    model, twin = make(dropout), make(dropout)
    opt = adaptive(model, len(steps), replay=True, max_norm=max_norm)
    found = trainer(
        model,
        arguments(folder, **changes),
        train_dataset=sequences(),
        eval_dataset=sequences()[:8],
        optimizers=(opt, None),
        callbacks=[SeedEachStep(), *callbacks],
    )
    found.train()
    return found, twin, adaptive(twin, len(steps)), steps


SETTINGS = {
    "as it is": {},
    "gradient_accumulation_steps=4, the last group incomplete": {"gradient_accumulation_steps": 4},
    "max_norm=0.3 in the method": {"max_norm": 0.3, "gradient_accumulation_steps": 2},
    "evaluation in between": {"eval_strategy": "steps", "eval_steps": 3},
    "activation_checkpointing=True, use_reentrant=True": {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": True},
    },
    "activation_checkpointing=True, use_reentrant=False": {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": False},
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_trainer_equals_the_plain_loop_without_a_subclass(name, tmp_path, matrix):
    setting = SETTINGS[name]
    found, twin, plain, steps = trained(tmp_path, **setting)
    train_plainly(twin, plain, steps, max_norm=setting.get("max_norm", 0.0))
    opt = aesam.unwrap(found.optimizer)
    assert "SAM: the model returns the loss" in repr(opt)
    assert 0.0 < opt.sam_fraction == plain.sam_fraction < 1.0
    assert furthest(found.model, twin) < WITHIN
    matrix.right("Transformers' Trainer, replay=True", name, within=WITHIN)


def single(dropout):
    model = gpt(dropout).float()
    model.loss_function = next_token_loss
    return model


def test_bf16_equals_the_plain_loop_under_autocast(tmp_path, matrix):
    found, twin, plain, steps = trained(tmp_path, make=single, bf16=True)

    def loss(model, part, group):
        with torch.autocast("cpu", torch.bfloat16):
            return model(**part, num_items_in_batch=label_count(group)).loss.float()

    train_plainly(twin, plain, steps, loss=loss)
    assert 0.0 < plain.sam_fraction < 1.0
    assert furthest(found.model, twin) < 1e-7
    matrix.right("Transformers' Trainer, replay=True", "bf16=True", within=1e-7)


def test_the_mixin_makes_the_passes_of_a_replaying_optimizer_too(tmp_path):
    setting = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.3}
    found, twin, plain, steps = trained(tmp_path, trainer=SharpnessAwareTrainer, **setting)
    train_plainly(twin, plain, steps, max_norm=0.3)
    assert furthest(found.model, twin) < WITHIN


class Outside(Trainer):
    """A loss that is made of the model's output, as many users write it."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = next_token_loss(outputs.logits, labels, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


def test_a_loss_outside_the_model_makes_it_functional(tmp_path):
    found, twin, plain, steps = trained(tmp_path, trainer=Outside, dropout=0.0)
    assert "functional SAM: the loss is outside" in repr(aesam.unwrap(found.optimizer))

    def functional(model, opt, group):
        """J(w+ε)ᵀ ∂L/∂f with ∂L/∂f at w, by hand."""
        (part,) = group
        with opt.first_pass():
            logits = model(input_ids=part["input_ids"]).logits
            loss = next_token_loss(logits, part["labels"], label_count(group))
            (arriving,) = torch.autograd.grad(loss, logits, retain_graph=True)
            loss.backward()
        if opt.needs_second_pass():
            with opt.perturbed():
                model(input_ids=part["input_ids"]).logits.backward(arriving)
        opt.step()
        opt.zero_grad()

    twin.train()
    for group in steps:
        functional(twin, plain, group)
    assert 0.0 < plain.sam_fraction < 1.0
    assert furthest(found.model, twin) < WITHIN


def test_clipping_by_the_trainer_is_refused(tmp_path, matrix):
    with pytest.raises(RuntimeError, match="pass max_norm= to the method") as error:
        trained(tmp_path, max_grad_norm=1.0)
    matrix.refused("Transformers' Trainer, replay=True", "max_grad_norm=1.0", error.value)


class ClipsByItself(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        nn.utils.clip_grad_value_(model.parameters(), 0.01)


def test_clipping_in_a_callback_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="pass max_norm= to the method"):
        trained(tmp_path, callbacks=[ClipsByItself()])


def test_a_resumed_run_is_the_run_that_was_not_interrupted_to_the_bit(tmp_path, matrix):
    def run(folder, resume=None):
        model = gpt(0.2)
        opt = adaptive(model, 18, replay=True)
        setting = {"save_strategy": "steps", "save_steps": 7, "gradient_accumulation_steps": 2}
        args = arguments(folder, train_sampling_strategy="random", **setting)
        found = Trainer(model, args, train_dataset=sequences(), optimizers=(opt, None))
        found.train(resume_from_checkpoint=resume)
        return model, opt

    whole, opt = run(tmp_path / "whole")
    resumed, again = run(tmp_path / "resumed", str(tmp_path / "whole/checkpoint-7"))
    assert 0.0 < again.sam_fraction == opt.sam_fraction < 1.0
    assert furthest(whole, resumed) == 0.0
    matrix.right("Transformers' Trainer, replay=True", "resume_from_checkpoint", within=0.0)
