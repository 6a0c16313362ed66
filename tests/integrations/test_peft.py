"""LoRA with PEFT: ascent and descent are those of the adapters, or with Bi-LoRA a pair for each."""

import lightning
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from peft import LoraConfig, PeftModel, get_peft_model
from support.language import (
    SeedEachStep,
    arguments,
    furthest,
    gpt,
    groups,
    language_loss,
    micro_batches,
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


# Bi-LoRA --------------------------------------------------------------------------------------


def bi_lora(model, **options):
    trained = [p for p in model.parameters() if p.requires_grad]
    return aesam.BiLoRA(
        torch.optim.AdamW(trained, lr=0.05), model, rho=0.1, lr_ratio=100.0, **options
    )


def bi_lora_end(accumulation, max_norm=0.0):
    model = with_adapters()
    opt = bi_lora(model)
    train_plainly(model, opt, 2 * groups(accumulation), max_norm=max_norm)
    assert 0.01 < opt.ascent_norm() < 0.1001
    return model, opt


@pytest.mark.parametrize("mixin", [False, True])
def test_bi_lora_in_the_trainer_equals_the_plain_loop(mixin, tmp_path, matrix):
    """Its step() is bare, its zero_grad() the model's, and it clips the adapters' gradients."""
    model = with_adapters()
    kind = SharpnessAwareTrainer if mixin else Trainer
    opt = bi_lora(model)
    kind(
        model,
        arguments(tmp_path, gradient_accumulation_steps=2, max_grad_norm=0.2),
        train_dataset=sequences(),
        optimizers=(opt, None),
        callbacks=[SeedEachStep()],
    ).train()
    expected, theirs = bi_lora_end(2, max_norm=0.2)
    assert furthest(model, expected) < WITHIN
    assert opt.ascent_norm() == pytest.approx(theirs.ascent_norm(), rel=1e-9)
    matrix.right("PEFT", "Bi-LoRA in Transformers' Trainer", within=WITHIN)


def test_bi_lora_by_name_in_the_trainer(tmp_path):
    model = with_adapters()
    trainer = SharpnessAwareTrainer(
        model,
        arguments(tmp_path, max_steps=3),
        train_dataset=sequences(),
        sharpness_aware={"method": "bi-lora", "rho": 0.1, "lr_ratio": 10.0},
    )
    trainer.train()
    opt = aesam.unwrap(trainer.optimizer)
    assert isinstance(opt, aesam.BiLoRA)
    assert opt.ascent_norm() > 0.0


def test_bi_lora_goes_on_from_the_trainer_s_checkpoint(tmp_path):
    ends = []
    for folder, stop in (("whole", None), ("cut", 9)):
        for until in (stop, None) if stop else (None,):
            model = with_adapters()
            opt = bi_lora(model)
            length = {} if until is None else {"max_steps": until}
            saving = {"save_strategy": "steps", "save_steps": 9, **length}
            trainer = Trainer(
                model,
                arguments(tmp_path / folder, **saving),
                train_dataset=sequences(),
                optimizers=(opt, None),
                callbacks=[SeedEachStep()],
            )
            trainer.train(resume_from_checkpoint=stop is not None and until is None)
        ends.append((model, opt.ascent_norm()))
    (whole, norm), (cut, norm_too) = ends
    assert furthest(whole, cut) == 0.0
    assert norm == norm_too


def test_bi_lora_in_accelerate_equals_the_plain_loop(matrix):
    model = with_adapters()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared, opt = accelerator.prepare(model, bi_lora(model))
    prepared.train()
    for t, group in enumerate(2 * groups(2)):
        torch.manual_seed(t)
        for part in group:
            with accelerator.accumulate(prepared):
                # Accelerate divides by the number of micro-batches, the loss by all labels.
                loss = language_loss(prepared, part, group) * 2
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
    expected, theirs = bi_lora_end(2)
    assert furthest(model, expected) < WITHIN
    assert aesam.unwrap(opt).ascent_norm() == pytest.approx(theirs.ascent_norm(), rel=1e-9)
    matrix.right("PEFT", "Bi-LoRA in Accelerate, accumulating", within=WITHIN)


class Lit(lightning.LightningModule):
    """Automatic optimization, which calls step(closure), or a bare step() by hand."""

    def __init__(self, by_hand):
        super().__init__()
        self.net, self.automatic_optimization = with_adapters(), not by_hand
        self.opt = bi_lora(self.net)

    def configure_optimizers(self):
        return self.opt

    def training_step(self, batch, index):
        torch.manual_seed(self.opt._ledger.committed.step)
        loss = language_loss(self.net, batch, [batch])
        if not self.automatic_optimization:
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        return loss


@pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*")
@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")
@pytest.mark.parametrize("by_hand", [False, True])
def test_bi_lora_in_lightning_equals_the_plain_loop(by_hand, tmp_path, matrix):
    lit = Lit(by_hand)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(lit, torch.utils.data.DataLoader(micro_batches(), batch_size=None))
    expected, theirs = bi_lora_end(1)
    assert furthest(lit.net, expected) < WITHIN
    assert lit.opt.ascent_norm() == pytest.approx(theirs.ascent_norm(), rel=1e-9)
    matrix.right("PEFT", "Bi-LoRA in Lightning", within=WITHIN)
