"""LoRA with PEFT: ascent and descent are those of the adapters."""

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from peft import LoraConfig, PeftModel, get_peft_model
from support.language import (
    SeedEachStep,
    arguments,
    furthest,
    gpt,
    groups,
    language_loss,
    sequences,
    train_plainly,
)
from transformers import Trainer

import aesam
from aesam.integrations.transformers import SharpnessAwareMixin

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
]
WITHIN = 1e-12


class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):
    pass


@pytest.fixture(autouse=True)
def accelerate_afresh():
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def with_adapters():
    base = gpt()
    torch.manual_seed(1)
    config = LoraConfig(r=2, lora_dropout=0.2, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(base, config).double()


def adaptive(model, **options):
    trained = [p for p in model.parameters() if p.requires_grad]
    base = torch.optim.AdamW(trained, lr=0.05)
    return aesam.AESAM(base, model, rho=0.1, delta=0.5, total_steps=18, **options)


def plain_end():
    model = with_adapters()
    opt = adaptive(model)
    train_plainly(model, opt, 2 * groups(2), max_norm=0.2)
    assert 0.0 < opt.sam_fraction < 1.0
    return model


def test_adapters_in_the_plain_loop_equal_passes_by_hand(matrix):
    expected, model = plain_end(), with_adapters()
    opt = adaptive(model)
    model.train()
    before = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    for t, group in enumerate(2 * groups(2)):
        torch.manual_seed(t)
        with opt.first_pass():
            for part in group:
                language_loss(model, part, group).backward()
        if opt.needs_second_pass():
            with opt.perturbed():
                for part in group:
                    language_loss(model, part, group).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        opt.step()
        opt.zero_grad()
    assert furthest(model, expected) == 0.0
    assert all(p.equal(before[n]) for n, p in model.named_parameters() if n in before)
    matrix.right("PEFT", "LoRA in a plain loop", within=0.0)


@pytest.mark.parametrize("replay", [False, True])
def test_adapters_in_the_trainer_equal_the_plain_loop(replay, tmp_path, matrix):
    model = with_adapters()
    trainer, own, theirs = SharpnessAwareTrainer, {}, 0.2
    if replay:
        trainer, own, theirs = Trainer, {"replay": True, "max_norm": 0.2}, 0.0
    trainer(
        model,
        arguments(tmp_path, gradient_accumulation_steps=2, max_grad_norm=theirs),
        train_dataset=sequences(),
        optimizers=(adaptive(model, **own), None),
        callbacks=[SeedEachStep()],
    ).train()
    assert isinstance(model, PeftModel)
    assert furthest(model, plain_end()) < WITHIN
    use = "LoRA in Transformers' Trainer" + (", replay=True" if replay else "")
    matrix.right("PEFT", use, within=WITHIN)


def test_the_trainer_s_own_optimizer_is_over_the_adapters_alone(tmp_path):
    model = with_adapters()
    trainer = SharpnessAwareTrainer(
        model,
        arguments(tmp_path, max_steps=2),
        train_dataset=sequences(),
        sharpness_aware="sam",
    )
    trainer.train()
    held = {p for g in aesam.unwrap(trainer.optimizer).param_groups for p in g["params"]}
    assert held == {p for n, p in model.named_parameters() if "lora_" in n}
