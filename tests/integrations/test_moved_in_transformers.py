"""MSAM, stale ascent and a sub-batch's in Transformers' Trainer as it is, TRL's and with PEFT."""

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, get_peft_model
from support.language import (
    BATCH,
    SeedEachStep,
    arguments,
    furthest,
    gpt,
    groups,
    label_count,
    language_loss,
    next_token_loss,
    sequences,
    tokenizer,
)
from support.moved_methods import LABELS
from transformers import Trainer
from trl import SFTConfig, SFTTrainer

import aesam
from aesam.integrations.transformers import SharpnessAwareMixin

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.compute_loss_func. is deprecated:FutureWarning"),
]
WITHIN, STEPS = 1e-12, 8
METHODS = {
    "msam": lambda base, model: aesam.MSAM(base, model, rho=0.1),
    "stale-sam": lambda base, model: aesam.StaleSAM(base, model, rho=0.1),
    "sub-sam": lambda base, model: aesam.SubSAM(base, model, rho=0.1, share=0.5, replay=True),
}


@pytest.fixture(autouse=True)
def accelerate_afresh():
    disable_progress_bars()
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):
    pass


def optimizer(method, model):
    trained = [p for p in model.parameters() if p.requires_grad]
    return METHODS[method](torch.optim.AdamW(trained, lr=0.01), model)


def trained(method, folder, make=gpt, trainer=Trainer, dropout=0.2, given=(), **changes):
    model = make(dropout)
    opt = optimizer(method, model)
    found = trainer(
        model,
        arguments(folder, max_steps=STEPS, **changes),
        train_dataset=sequences(),
        eval_dataset=sequences()[:8],
        optimizers=(opt, None),
        callbacks=[SeedEachStep()],
        **dict(given),
    )
    found.train()
    return model, opt


def plain(method, make=gpt, dropout=0.2, accumulation=1, max_norm=0.0, loss=language_loss):
    """Passes by hand; a model divides the loss of some rows by the number of all labels."""
    model = make(dropout)
    opt = optimizer(method, model)
    model.train()
    rows = opt.parts.samples.first_rows
    for t, group in enumerate((2 * groups(accumulation))[:STEPS]):
        torch.manual_seed(t)
        some = slice(None) if rows is None else rows
        with opt.first_pass():
            for part in group:
                loss(model, {name: tensor[some] for name, tensor in part.items()}, group).backward()
        if opt.needs_second_pass():
            with opt.perturbed():
                for part in group:
                    loss(model, part, group).backward()
        if max_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        opt.step()
        opt.zero_grad()
    return model


SETTINGS = {
    "as it is": {},
    "gradient_accumulation_steps=4": {"gradient_accumulation_steps": 4},
    "max_grad_norm=0.3": {"max_grad_norm": 0.3},
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


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", METHODS)
def test_the_trainer_as_it_is_equals_the_plain_loop(method, setting, tmp_path, matrix):
    changes = SETTINGS[setting]
    stack, use = "Transformers' Trainer", f"{LABELS[method]}, {setting}"
    accumulation = changes.get("gradient_accumulation_steps", 1)
    if method == "sub-sam" and accumulation > 1:
        with pytest.raises(RuntimeError, match="this gradient is of\nseveral") as error:
            trained(method, tmp_path, **changes)
        matrix.refused(stack, use, error.value)
        return
    model, opt = trained(method, tmp_path, **changes)
    norm = changes.get("max_grad_norm", 0.0)
    twin = plain(method, accumulation=accumulation, max_norm=norm)
    assert opt.last_step.index == STEPS - 1
    assert furthest(model, twin) < WITHIN
    matrix.right(stack, use, within=WITHIN)


@pytest.mark.parametrize("method", METHODS)
def test_the_mixin_leaves_them_as_they_are(method, tmp_path, matrix):
    model, _ = trained(method, tmp_path, trainer=SharpnessAwareTrainer, max_grad_norm=0.3)
    assert furthest(model, plain(method, max_norm=0.3)) < WITHIN
    use = f"{LABELS[method]}, SharpnessAwareMixin, max_grad_norm=0.3"
    matrix.right("Transformers' Trainer", use, within=WITHIN)


def single(dropout):
    model = gpt(dropout).float()
    model.loss_function = next_token_loss
    return model


def under_autocast(model, part, group):
    with torch.autocast("cpu", torch.bfloat16):
        return model(**part, num_items_in_batch=label_count(group)).loss.float()


@pytest.mark.parametrize("method", METHODS)
def test_bf16_equals_the_plain_loop_under_autocast(method, tmp_path, matrix):
    model, _ = trained(method, tmp_path, make=single, bf16=True)
    assert furthest(model, plain(method, single, loss=under_autocast)) < 1e-6
    matrix.right("Transformers' Trainer", f"{LABELS[method]}, bf16=True", within=1e-6)


def test_a_loss_outside_of_the_model_is_refused_for_a_sub_batch(tmp_path, matrix):
    def outside(outputs, labels, num_items_in_batch):
        return next_token_loss(outputs.logits, labels, num_items_in_batch)

    with pytest.raises(RuntimeError, match="needs a model that returns the loss") as error:
        trained("sub-sam", tmp_path, given={"compute_loss_func": outside})
    matrix.refused("Transformers' Trainer", "sub-batch ascent, compute_loss_func=", error.value)


@pytest.mark.parametrize("method", ["stale-sam", "sub-sam"])
def test_a_resumed_run_is_the_run_that_was_not_interrupted_to_the_bit(method, tmp_path, matrix):
    def run(folder, resume=None):
        model = gpt(0.2)
        opt = optimizer(method, model)
        setting = {"save_strategy": "steps", "save_steps": 5, "max_steps": STEPS}
        args = arguments(folder, train_sampling_strategy="random", **setting)
        found = Trainer(model, args, train_dataset=sequences(), optimizers=(opt, None))
        found.train(resume_from_checkpoint=resume)
        return model

    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "resumed", str(tmp_path / "whole/checkpoint-5"))
    assert furthest(whole, resumed) == 0.0
    use = f"{LABELS[method]}, resume_from_checkpoint"
    matrix.right("Transformers' Trainer", use, within=0.0)


def with_adapters(dropout):
    base = gpt(dropout)
    torch.manual_seed(1)
    config = LoraConfig(r=2, lora_dropout=0.2, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(base, config).double()


@pytest.mark.parametrize("method", METHODS)
def test_adapters_in_the_trainer_equal_the_plain_loop(method, tmp_path, matrix):
    model, _ = trained(method, tmp_path, make=with_adapters, dropout=0.0)
    assert furthest(model, plain(method, with_adapters, dropout=0.0)) < WITHIN
    matrix.right("PEFT", f"{LABELS[method]}, LoRA in Transformers' Trainer", within=WITHIN)


@pytest.mark.parametrize("method", METHODS)
def test_supervised_fine_tuning_equals_the_plain_loop(method, tmp_path, matrix):
    model = gpt()
    rows = [{name: row[name].tolist() for name in row} for row in sequences()]
    args = SFTConfig(
        output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, bf16=False,
        per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=0.01,
        lr_scheduler_type="constant", max_grad_norm=0.0, save_strategy="no",
        logging_strategy="no", activation_checkpointing=False,
        train_sampling_strategy="sequential",
    )  # fmt: skip
    found = SFTTrainer(
        model=model, args=args, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(), optimizers=(optimizer(method, model), None),
        callbacks=[SeedEachStep()],
    )  # fmt: skip
    if method == "sub-sam":  # TRL makes the loss of the model's logits
        with pytest.raises(RuntimeError, match="began at another output of the model") as error:
            found.train()
        matrix.refused("TRL", f"{LABELS[method]}, SFTTrainer", error.value)
        return
    found.train()
    # TRL's own loss is computed in float32, whatever the model's precision.
    assert furthest(model, plain(method, dropout=0.0)) < 1e-4
    matrix.right("TRL", f"{LABELS[method]}, SFTTrainer", within=1e-4)
