"""Additive PyramidNets (Han, Kim & Kim 2017): every block is a little wider than the one before.

The paper's PyramidNet-110 with ``alpha = 270`` is of basic blocks: 54 of them, each 5 channels
wider. (Its bottleneck variant of the same depth would have 18.3 M parameters instead of 28.5 M.)
"""

from torch import Tensor, nn
from torch.nn import functional

from aesam.lab.models.layers import average, conv, he_init, relu, widen


class PyramidBlock(nn.Module):
    """BatchNorm at the start and the end, one ReLU, and a zero-padded shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.outputs = stride, outputs
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, stride=stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs)
        self.norm3 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        inner = relu(self.norm2(self.conv1(self.norm1(x))))
        # ceil_mode: a strided convolution rounds an odd size up, and so must the shortcut.
        shortcut = x if self.stride == 1 else functional.avg_pool2d(x, self.stride, ceil_mode=True)
        return self.norm3(self.conv2(inner)) + widen(shortcut, self.outputs)


class PyramidNet(nn.Module):
    """``depth = 6n + 2``: a stem with 16 channels and ``3n`` blocks that reach ``16 + alpha``."""

    def __init__(self, depth: int, alpha: int, classes: int, channels: int) -> None:
        super().__init__()
        n = (depth - 2) // 6
        widths = [16 + alpha * i // (3 * n) for i in range(3 * n + 1)]
        self.stem = nn.Sequential(conv(channels, 16), nn.BatchNorm2d(16))
        self.blocks = nn.Sequential(
            *(
                PyramidBlock(widths[i], widths[i + 1], stride=2 if i in {n, 2 * n} else 1)
                for i in range(3 * n)
            )
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(average(relu(self.norm(self.blocks(self.stem(x))))))
