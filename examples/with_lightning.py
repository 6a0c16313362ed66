"""The same digits with Lightning: accumulation and clipping are options of its trainer, as ever.

python examples/with_lightning.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aesam
from aesam.integrations.lightning import SharpnessAwareCallback


class Digits(lightning.LightningModule):
    """A small network, and a method of the library around AdamW."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)  # counted once, though some steps take two gradients
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        base = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        return aesam.AELookSAM(base, self.net, rho=0.05, alpha=0.3)  # the trainer knows its steps


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    lightning.seed_everything(0, verbose=False)
    model = Digits()
    trainer = lightning.Trainer(
        callbacks=[SharpnessAwareCallback()], accumulate_grad_batches=2, gradient_clip_val=1.0,
        max_epochs=5, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
    right = (model.net(x).argmax(1) == y).float().mean().item()
    percent = trainer.callback_metrics["aesam/percent_sam"].item()
    print(f"{right:.1%} correct in training, second gradient on {percent:.0f}% of the steps")


if __name__ == "__main__":
    main()
