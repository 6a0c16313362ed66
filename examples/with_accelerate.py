"""The same digits with Accelerate and accumulation over micro-batches: the loop owns its passes.

Several processes: torchrun --nproc-per-node 2 examples/with_accelerate.py
"""

import contextlib

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aesam

EPOCHS, MICRO_BATCHES = 5, 4


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)
    model, loader = accelerator.prepare(model, loader)
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = aesam.AESAM(base, model, total_steps=EPOCHS * len(loader))
    prepared = accelerator.prepare(opt)

    def backward(batch: list[torch.Tensor]) -> None:
        """All micro-batches; gradients travel between processes with the last one only."""
        parts = list(zip(*(tensor.chunk(MICRO_BATCHES) for tensor in batch), strict=True))
        for i, (inputs, targets) in enumerate(parts):
            last = i == len(parts) - 1
            with contextlib.nullcontext() if last else accelerator.no_sync(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss / len(parts))

    for _ in range(EPOCHS):
        for batch in loader:
            with opt.first_pass():
                backward(batch)
            if opt.needs_second_pass():
                with opt.perturbed():
                    backward(batch)
            accelerator.clip_grad_norm_(model.parameters(), 5.0)  # the final direction
            prepared.step()
            prepared.zero_grad()

    right = (model(x).argmax(1) == y).float().mean().item()
    accelerator.print(
        f"{right:.1%} correct in training, second gradient on {opt.sam_fraction:.0%} of the steps"
    )


if __name__ == "__main__":
    main()
