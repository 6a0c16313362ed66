"""The same digits, with the loss, % SAM, ‖g‖², μ and the threshold of every step in TensorBoard,
and whether the second gradients do anything: the rise of the loss at w + ε in percent, the cosine
of both gradients, the length of what is new in the second, and the share of time that they take.

aesam.metrics returns a flat dict of numbers, so that for Weights & Biases the line is
wandb.log(aesam.metrics(opt, loss)), and in Lightning self.log_dict(aesam.metrics(opt)).

python examples/with_loggers.py; tensorboard --logdir runs
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import aesam

EPOCHS, BATCH = 5, 64


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    steps = EPOCHS * len(x.split(BATCH))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = aesam.AESAM(base, model, total_steps=steps)

    with SummaryWriter("runs/digits") as writer:
        for rows in (r for _ in range(EPOCHS) for r in torch.randperm(len(x)).split(BATCH)):

            def closure() -> torch.Tensor:
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])  # noqa: B023
                loss.backward()
                return loss

            loss = opt.step(closure)
            for name, value in aesam.metrics(opt, loss, prefix="train/").items():
                writer.add_scalar(name, value, opt.last_step.index)

    right = (model(x).argmax(1) == y).float().mean().item()
    print(
        f"{right:.1%} correct in training, second gradient on {opt.sam_fraction:.0%} of the steps"
    )
    print(opt.health())


if __name__ == "__main__":
    main()
