"""The same digits with Ray Train: the loop of each worker is a plain one, DDP is Ray's.

pip install 'ray[train]'; python examples/with_ray.py
"""

import tempfile
from pathlib import Path

import torch
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aesam

EPOCHS, BATCH = 5, 32


def train_worker() -> None:
    """What runs in every worker: two of them with batches of 32 are one with 64."""
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    data = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=True)
    loader = prepare_data_loader(data)
    model = prepare_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = aesam.AESAM(base, model, total_steps=EPOCHS * len(loader))

    for _ in range(EPOCHS):
        for inputs, targets in loader:

            def closure() -> torch.Tensor:
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)  # noqa: B023
                loss.backward()
                return loss

            loss = opt.step(closure)
        right = (model(x).argmax(1) == y).float().mean().item()
        report({"correct": right, **aesam.metrics(opt, loss)}, model, opt)


def report(found: dict[str, float], model: nn.Module, opt: aesam.SharpnessAware) -> None:
    """The numbers of an epoch, and what it takes to go on from here, saved by the first worker."""
    if train.get_context().get_world_rank() != 0:
        train.report(found)
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.state_dict(), "opt": opt.state_dict()}
        torch.save(state, Path(folder) / "state.pt")
        train.report(found, checkpoint=train.Checkpoint.from_directory(folder))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train_worker,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder),
        )
        found = trainer.fit().metrics
    print(
        f"{found['correct']:.1%} correct in training, "
        f"second gradient on {found['percent_sam']:.0f}% of the steps"
    )


if __name__ == "__main__":
    main()
