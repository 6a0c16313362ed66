"""A small perceptron without BatchNorm or dropout.

Nothing in it looks across a batch or draws random numbers, so that the gradient of a batch is the
mean of its parts' gradients: data-parallel training can be compared with one process exactly.
"""

from torch import Tensor, nn

from aesam.lab.models.layers import he_init


class MLP(nn.Module):
    """Two hidden ReLU layers of ``width`` units on the flattened image."""

    def __init__(self, classes: int, channels: int, size: int, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * size * size, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
