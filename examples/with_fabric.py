"""The same digits with Lightning Fabric: micro-batches and clipping in one call a step.

python examples/with_fabric.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aesam
from aesam.integrations import fabric as aesam_fabric

EPOCHS, MICRO_BATCHES = 5, 4


def main() -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)
    loader = fabric.setup_dataloaders(loader)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    model, opt = fabric.setup(net, aesam.AESAM(base, net, total_steps=EPOCHS * len(loader)))

    def loss_fn(batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets)

    for _ in range(EPOCHS):
        for batch in loader:
            parts = zip(*(tensor.chunk(MICRO_BATCHES) for tensor in batch), strict=True)
            aesam_fabric.step(fabric, opt, parts, loss_fn, model=model, max_norm=5.0)

    right = (model(x).argmax(1) == y).float().mean().item()
    fabric.print(
        f"{right:.1%} correct in training, second gradient on {opt.sam_fraction:.0%} of the steps"
    )


if __name__ == "__main__":
    main()
