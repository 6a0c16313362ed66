"""A tiny language model in float64, rows of tokens, and the plain loop that trainers must equal."""

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainingArguments,
)

VOCABULARY, LENGTH, BATCH, BATCHES = 32, 6, 2, 18


def next_token_loss(logits, labels, num_items_in_batch=None, **_):
    """As Transformers computes it, without its rounding to float32."""
    shown, wanted = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    if num_items_in_batch is None:
        return nn.functional.cross_entropy(shown, wanted)
    return nn.functional.cross_entropy(shown, wanted, reduction="sum") / num_items_in_batch


def gpt(dropout=0.0):
    torch.manual_seed(0)
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": VOCABULARY, "n_positions": 16}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**shape, **drops, **tokens, loss_type="ForCausalLM"))
    model.loss_type, model.loss_function = "ForCausalLM", next_token_loss
    return model.double()


def sequences():
    """Rows of tokens, some of them without a label: micro-batches count for different amounts."""
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (BATCH * BATCHES, LENGTH), generator=draw)
    labels = tokens.clone()
    labels[torch.rand(tokens.shape, generator=draw) < 0.3] = -100
    return [{"input_ids": i, "labels": n} for i, n in zip(tokens, labels, strict=True)]


def tokenizer():
    """Of words w0, w1, …, one for each token."""
    words = {f"w{i}": i for i in range(VOCABULARY)}
    of_words = Tokenizer(WordLevel(words, unk_token="w0"))
    of_words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=of_words, eos_token="w0", pad_token="w1", padding_side="left"
    )


def micro_batches(rows=None, size=BATCH):
    rows = sequences() if rows is None else rows
    stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    parts = {name: tensor.split(size) for name, tensor in stacked.items()}
    return [dict(zip(parts, part, strict=True)) for part in zip(*parts.values(), strict=True)]


def groups(accumulation=1, parts=None):
    """The micro-batches of each step of an epoch; those of the last may be fewer."""
    parts = micro_batches() if parts is None else parts
    return [parts[i : i + accumulation] for i in range(0, len(parts), accumulation)]


def label_count(group):
    return sum((part["labels"][:, 1:] != -100).sum() for part in group)


def language_loss(model, part, group):
    logits = model(input_ids=part["input_ids"]).logits
    return next_token_loss(logits, part["labels"], label_count(group))


def train_plainly(model, opt, steps, loss=language_loss, max_norm=0.0, scheduler=None):
    """``opt.step(closure)`` over the groups of each step; returns the losses at ``w``."""
    model.train()
    if max_norm:
        opt.register_step_pre_hook(
            lambda *_: nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        )
    losses = []
    for t, group in enumerate(steps):
        torch.manual_seed(t)

        def closure(group=group):
            opt.zero_grad()
            total = 0.0
            for part in group:
                found = loss(model, part, group)
                found.backward()
                total = total + found.detach()
            return total

        losses.append(opt.step(closure).item())
        if scheduler is not None:
            scheduler.step()
    return losses


class SeedEachStep(TrainerCallback):
    """The random numbers of a step are those of the plain loop."""

    def on_step_begin(self, args, state, control, **_):
        torch.manual_seed(state.global_step)


def arguments(folder, **changes):
    """Everything quiet, on the CPU and in order; no clipping unless asked for."""
    usual = {
        "output_dir": str(folder), "use_cpu": True, "report_to": [], "disable_tqdm": True,
        "per_device_train_batch_size": BATCH, "train_sampling_strategy": "sequential",
        "num_train_epochs": 2, "learning_rate": 0.01, "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0, "save_strategy": "no", "logging_strategy": "no",
    }  # fmt: skip
    return TrainingArguments(**(usual | changes))


def furthest(left, right):
    """The largest difference between the weights of two models."""
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return max((a.detach() - b.detach()).abs().max().item() for a, b in pairs)
