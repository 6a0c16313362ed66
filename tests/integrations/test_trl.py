"""TRL's trainers with the mixin: the plain loop, and everything counted once."""

import copy

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from datasets import Dataset, disable_progress_bars
from support.language import (
    BATCH,
    SeedEachStep,
    furthest,
    gpt,
    groups,
    next_token_loss,
    sequences,
    tokenizer,
    train_plainly,
)
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import aesam
from aesam.integrations.transformers import SharpnessAwareMixin

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.compute_loss_func. is deprecated:FutureWarning"),
]
WITHIN = 1e-12


@pytest.fixture(autouse=True)
def accelerate_afresh():
    disable_progress_bars()
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def text(tokens):
    return " ".join(f"w{2 + int(token) % 30}" for token in tokens)


def settings(folder, **changes):
    usual = {
        "output_dir": str(folder), "use_cpu": True, "report_to": [], "disable_tqdm": True,
        "per_device_train_batch_size": BATCH, "num_train_epochs": 2, "learning_rate": 0.01,
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "save_strategy": "no",
        "logging_strategy": "steps", "logging_steps": 1, "bf16": False,
        "activation_checkpointing": False,
    }  # fmt: skip
    return usual | changes


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


# SFT -----------------------------------------------------------------------------------------


class SharpnessAwareSFT(SharpnessAwareMixin, SFTTrainer):
    pass


def tuned(trainer, model, optimizer, folder, **given):
    rows = [{name: row[name].tolist() for name in row} for row in sequences()]
    changes = {"train_sampling_strategy": "sequential", "gradient_accumulation_steps": 4}
    found = trainer(
        model=model,
        args=SFTConfig(**settings(folder, **changes)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
        optimizers=(optimizer, None),
        callbacks=[SeedEachStep()],
        **given,
    )
    found.train()
    return found


def adaptive(model, steps):
    return aesam.AESAM(adamw(model), model, rho=0.1, delta=0.5, total_steps=len(steps))


def exact(outputs, labels, num_items_in_batch):
    return next_token_loss(outputs.logits, labels, num_items_in_batch)


# TRL's own loss is computed in float32, whatever the model's precision.
@pytest.mark.parametrize(
    ("loss", "within"), [({"compute_loss_func": exact}, WITHIN), ({}, 1e-4)], ids=["exact", "own"]
)
def test_supervised_fine_tuning_equals_the_plain_loop(loss, within, tmp_path, matrix):
    steps = 2 * groups(4)
    dropout = 0.0 if loss else 0.2  # with compute_loss_func TRL draws for one more forward
    model, twin = gpt(dropout), gpt(dropout)
    opt, plain = adaptive(model, steps), adaptive(twin, steps)
    tuned(SharpnessAwareSFT, model, opt, tmp_path, **loss)
    train_plainly(twin, plain, steps)
    assert 0.0 < opt.sam_fraction == plain.sam_fraction < 1.0
    assert furthest(model, twin) < within
    use = "SFTTrainer, accumulation" + (", compute_loss_func" if loss else "")
    matrix.right("TRL", use, within=within)


def test_tokens_and_metrics_are_counted_once(tmp_path):
    logs = []
    for trainer in (SFTTrainer, SharpnessAwareSFT):
        given = {}
        if trainer is SharpnessAwareSFT:  # the second pass is at w: nothing else differs
            given["sharpness_aware"] = {"method": "sam", "rho": 0.0}
        found = tuned(trainer, gpt(), None, tmp_path, **given)
        logs.append([log for log in found.state.log_history if "loss" in log])
    assert logs[0][-1]["num_tokens"] > 0
    for without, with_mixin in zip(*logs, strict=True):
        for name in ("num_tokens", "entropy", "mean_token_accuracy", "loss", "grad_norm"):
            assert with_mixin[name] == pytest.approx(without[name], rel=1e-6), name


# Others: their own loss, in a plain loop over the inputs that they prepared ------------------


class Records(SharpnessAwareMixin):
    """Keeps what each first pass saw; a plain loop over it must come to the same weights."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        if not self.in_second_pass and self.is_in_train:
            kept = {k: v.clone() if torch.is_tensor(v) else v for k, v in inputs.items()}
            vars(self).setdefault("seen", []).append((kept, torch.get_rng_state()))
        return super().compute_loss(model, inputs, *args, **kwargs)


def furthest_from_the_loop(trainer, initial, method, accumulation=2):
    """Train again, from the start, over what was seen, in the same (by TRL patched) model."""
    model, trainer.is_in_train = trainer.model, False
    ends = copy.deepcopy(model)
    model.load_state_dict(initial.state_dict())
    opt = method(model)
    model.train()
    for start in range(0, len(trainer.seen), accumulation):
        group = trainer.seen[start : start + accumulation]

        def closure(group=group):
            opt.zero_grad()
            for inputs, random in group:
                torch.set_rng_state(random)
                loss = trainer.compute_loss(model, dict(inputs), num_items_in_batch=None)
                (loss if trainer.loss_is_scaled_for_ga else loss / accumulation).backward()

        opt.step(closure)
    assert opt.sam_fraction == aesam.unwrap(trainer.optimizer).sam_fraction
    return furthest(model, ends)


class SharpnessAwareDPO(Records, DPOTrainer):
    pass


def test_preference_optimization_equals_the_plain_loop(tmp_path, matrix):
    pairs = [
        {"prompt": text(row["input_ids"][:2]), "chosen": text(row["input_ids"][2:4]),
         "rejected": text(row["input_ids"][4:])}
        for row in sequences()
    ]  # fmt: skip

    def method(model):
        return aesam.LookSAM(adamw(model), model, k=2, rho=0.1)

    model = gpt(0.2)
    trainer = SharpnessAwareDPO(
        model=model,
        ref_model=gpt(),
        args=DPOConfig(**settings(tmp_path, gradient_accumulation_steps=2, max_steps=8)),
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer(),
        optimizers=(method(model), None),
    )
    trainer.train()
    assert len(trainer.seen) == 16
    assert furthest_from_the_loop(trainer, gpt(), method) < 1e-10
    matrix.right("TRL", "DPOTrainer, accumulation", within=1e-10)


class SharpnessAwareGRPO(Records, GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        type(self).generated += 1
        return super()._generate_and_score_completions(inputs)


def variety(completions, **_):
    return [float(len(set(completion.split()))) for completion in completions]


def test_what_was_generated_for_the_first_pass_is_seen_by_the_second(tmp_path, matrix):
    SharpnessAwareGRPO.generated = 0
    prompts = [{"prompt": text(row["input_ids"][:3])} for row in sequences()[:16]]
    changes = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 4,
        "steps_per_generation": 4, "num_generations": 2, "max_completion_length": 6,
    }  # fmt: skip

    def method(model):
        return aesam.SAM(adamw(model), model, rho=0.1)

    model = gpt(0.2)
    trainer = SharpnessAwareGRPO(
        model=model,
        reward_funcs=variety,
        args=GRPOConfig(**settings(tmp_path, **changes)),
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer(),
        optimizers=(method(model), None),
    )
    trainer.train()
    assert SharpnessAwareGRPO.generated == 2
    assert trainer._step == len(trainer.seen) == 8
    assert furthest_from_the_loop(trainer, gpt(), method) < 1e-10
    matrix.right("TRL", "GRPOTrainer, accumulation", within=1e-10)
