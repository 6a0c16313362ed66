"""The few pieces that all convolutional families share."""

from torch import Tensor, nn
from torch.nn import functional


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size (at stride 1) and leaves the bias to the BatchNorm."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def relu(x: Tensor) -> Tensor:
    """ReLU in place: only for fresh sums and BatchNorm outputs, which no gradient needs again."""
    return functional.relu(x, inplace=True)


def widen(x: Tensor, channels: int) -> Tensor:
    """Append zero channels until there are ``channels``: a shortcut without parameters."""
    missing = channels - x.shape[1]
    return functional.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x


def average(x: Tensor) -> Tensor:
    """Each channel's mean over the image, so that a network takes images of any size."""
    return x.mean((2, 3))


def he_init(model: nn.Module) -> None:
    """Draw convolutions and linear layers as He et al. (2015), ``N(0, 2 / fan)``, biases zero.

    The fan of a convolution is that of its output, as in the code of the ResNet papers. The last
    linear layer has no ReLU after it and gets ``N(0, 1 / fan)``.
    """
    last = None
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
            last = layer
    if last is not None:
        nn.init.kaiming_normal_(last.weight, nonlinearity="linear")
