"""The same digits with PyTorch-Ignite: the update function of the engine hands ``step`` a closure.

python examples/with_ignite.py
"""

import torch
from ignite.engine import Engine, Events
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aesam

EPOCHS = 5


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = aesam.AESAM(base, model, total_steps=EPOCHS * len(loader))

    def update(_: Engine, batch: list[torch.Tensor]) -> float:
        inputs, targets = batch

        def closure() -> torch.Tensor:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        return opt.step(closure).item()

    trainer = Engine(update)

    @trainer.on(Events.EPOCH_COMPLETED)
    def tell(engine: Engine) -> None:
        told = aesam.metrics(opt, engine.state.output)
        print(
            f"epoch {engine.state.epoch}: loss {told['loss']:.3f}, {told['percent_sam']:.0f} % SAM"
        )

    trainer.run(loader, max_epochs=EPOCHS)
    right = (model(x).argmax(1) == y).float().mean().item()
    print(
        f"{right:.1%} correct in training, second gradient on {opt.sam_fraction:.0%} of the steps"
    )


if __name__ == "__main__":
    main()
