"""Two networks that train in seconds on one core, with and without BatchNorm."""

from torch import Tensor, nn

from aesam.lab.errors import UsageError
from aesam.lab.models.layers import average, conv, he_init
from aesam.lab.models.model_records import ModelRecord


class DigitsCNN(nn.Module):
    """Four 3x3 convolutions, the second and the fourth with stride 2, then the image's mean.

    Made for the 8x8 digits, it is wide enough to learn their labels by heart, also with most of
    them wrong, which is what makes label noise hurt.
    """

    def __init__(self, classes: int, channels: int, size: int) -> None:
        super().__init__()
        if size < 8:
            raise UsageError(
                f"digits-cnn needs images of size 8 or more, got {size}; mlp takes any"
            )
        self.layers = nn.Sequential(
            *_layer(channels, 16, stride=1),
            *_layer(16, 32, stride=2),
            *_layer(32, 32, stride=1),
            *_layer(32, 64, stride=2),
        )
        self.head = nn.Linear(64, classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(average(self.layers(x)))


def _layer(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return conv(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


class MLP(nn.Module):
    """Two hidden ReLU layers of ``width`` units on the flattened image; no BatchNorm, no dropout.

    Nothing in it looks across a batch or draws random numbers, so that the gradient of a batch is
    the mean of its parts' gradients: data-parallel training can be compared with one process
    exactly.
    """

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


RECORDS = (
    ModelRecord(
        "digits-cnn",
        "Small CNN",
        "four convolutions with BatchNorm, for the 8×8 digits",
        lambda task: DigitsCNN(task.classes, task.channels, task.size),
    ),
    ModelRecord(
        "mlp",
        "MLP",
        "two hidden layers without BatchNorm",
        lambda task: MLP(task.classes, task.channels, task.size),
    ),
)
