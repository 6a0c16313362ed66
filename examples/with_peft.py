"""A tiny GPT-2 that counts up learns to count down with LoRA: only the adapters ascend and descend.

python examples/with_peft.py
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import aesam
from aesam.integrations.transformers import SharpnessAwareMixin

LENGTH = 12


class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):
    """The Trainer, with both passes of a step."""


def counting(way: int) -> torch.Tensor:
    """The digits in order, from any of them on: 3 4 5 … where the way is 1, 3 2 1 … where −1."""
    return (torch.arange(10)[:, None] + way * torch.arange(LENGTH)) % 10


def arguments(epochs: int) -> TrainingArguments:
    return TrainingArguments(
        "counting", num_train_epochs=epochs, per_device_train_batch_size=5, learning_rate=1e-2,
        use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip


def rows(text: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": row, "labels": row} for row in text]


def main() -> None:
    set_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": LENGTH, "vocab_size": 10}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    Trainer(model, arguments(epochs=10), train_dataset=rows(counting(1))).train()

    adapters = LoraConfig(r=8, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)
    model = get_peft_model(model, adapters)
    text = counting(-1)
    trainer = SharpnessAwareTrainer(
        model, arguments(epochs=60), train_dataset=rows(text), sharpness_aware="ae-sam"
    )
    trainer.train()
    model.eval()
    right = (model(input_ids=text).logits.argmax(-1)[:, :-1] == text[:, 1:]).float().mean().item()
    share = aesam.unwrap(trainer.optimizer).sam_fraction
    print(f"{right:.1%} correct in training, second gradient on {share:.0%} of the steps")


if __name__ == "__main__":
    main()
