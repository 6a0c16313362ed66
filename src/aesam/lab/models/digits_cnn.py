"""A BatchNorm network for the 8x8 digits, small enough to train in seconds on one core."""

from torch import Tensor, nn

from aesam.lab.errors import UsageError
from aesam.lab.models.layers import average, conv, he_init


class DigitsCNN(nn.Module):
    """Four 3x3 convolutions, the second and the fourth with stride 2, then the image's mean.

    It is wide enough to learn the training labels by heart, also with most of them wrong, which is
    what makes label noise hurt.
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
