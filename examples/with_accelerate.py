"""The same digits with Accelerate: micro-batches, clipping, several processes, in one call a step.

Several processes: torchrun --nproc-per-node 2 examples/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aesam
from aesam.integrations import accelerate

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
    steps = EPOCHS * len(loader)
    opt = accelerator.prepare(aesam.AESAM(base, model, total_steps=steps))

    def loss_fn(batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets)

    for _ in range(EPOCHS):
        for batch in loader:
            parts = zip(*(tensor.chunk(MICRO_BATCHES) for tensor in batch), strict=True)
            accelerate.step(accelerator, opt, parts, loss_fn, max_norm=5.0)

    right = (model(x).argmax(1) == y).float().mean().item()
    share = aesam.unwrap(opt).sam_fraction
    accelerator.print(
        f"{right:.1%} correct in training, second gradient on {share:.0%} of the steps"
    )


if __name__ == "__main__":
    main()
