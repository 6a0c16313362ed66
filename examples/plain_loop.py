"""Handwritten digits with a bare PyTorch loop: plain training, SAM and AE-SAM side by side.

It shows how to write the loop; the digits are too easy to show a difference.

python examples/plain_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import aesam

EPOCHS, BATCH = 8, 64


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of 8 × 8 pixels and their digits, in an order that is always the same."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    return x[order], torch.tensor(digits.target)[order]


def train(method: str) -> tuple[float, float]:
    """The test accuracy in percent, and the share of steps that took a second gradient."""
    torch.manual_seed(0)
    x, y = data()
    train_x, train_y, test_x, test_y = x[:1437], y[:1437], x[1437:], y[1437:]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    steps = EPOCHS * len(train_x.split(BATCH))
    settings = {"total_steps": steps} if aesam.method_record(method).needs_total_steps else {}
    opt = aesam.create(method, model, optimizer="sgd", lr=0.1, momentum=0.9, **settings)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)

    for _ in range(EPOCHS):
        shuffled = torch.randperm(len(train_x))
        for rows in shuffled.split(BATCH):
            inputs, targets = train_x[rows], train_y[rows]  # drawn before the closure

            def closure() -> torch.Tensor:
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)  # noqa: B023
                loss.backward()
                return loss

            opt.step(closure)
            scheduler.step()

    right = (model(test_x).argmax(1) == test_y).float().mean().item()
    return 100 * right, opt.sam_fraction


def main() -> None:
    for method in ("erm", "sam", "ae-sam"):
        accuracy, share = train(method)
        label = aesam.method_record(method).label
        print(f"{label:7} {accuracy:.1f} % correct, second gradient on {share:.0%} of the steps")


if __name__ == "__main__":
    main()
