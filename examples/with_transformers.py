"""A tiny GPT-2 learns to count, up and down, with Transformers' Trainer: one line and one argument.

TRL's trainers take the same mixin: class Tuner(SharpnessAwareMixin, SFTTrainer).

python examples/with_transformers.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import aesam
from aesam.integrations.transformers import SharpnessAwareMixin

LENGTH = 12


class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):
    """The Trainer, with both passes of a step."""


def counting() -> torch.Tensor:
    """The digits in order, from any of them on, up and down: 3 4 5 …, 3 2 1 …"""
    first, ways = torch.arange(10)[:, None], torch.tensor([[1], [-1]])
    return torch.cat([(first + way * torch.arange(LENGTH)) % 10 for way in ways])


def main() -> None:
    set_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": LENGTH, "vocab_size": 10}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    text = counting()
    args = TrainingArguments(
        "counting", num_train_epochs=40, per_device_train_batch_size=5, learning_rate=5e-3,
        gradient_accumulation_steps=2, use_cpu=True, report_to=[], save_strategy="no",
        logging_steps=20, disable_tqdm=True,
    )  # fmt: skip
    trainer = SharpnessAwareTrainer(
        model,
        args,
        train_dataset=[{"input_ids": row, "labels": row} for row in text],
        sharpness_aware={"method": "ae-sam", "rho": 0.05},  # around the AdamW of the Trainer
    )
    trainer.train()
    model.eval()
    guessed = model(input_ids=text).logits.argmax(-1)
    right = (guessed[:, 1:-1] == text[:, 2:]).float().mean().item()  # two digits tell the way
    share = aesam.unwrap(trainer.optimizer).sam_fraction
    print(f"{right:.1%} correct in training, second gradient on {share:.0%} of the steps")


if __name__ == "__main__":
    main()
