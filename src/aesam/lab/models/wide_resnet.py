"""Wide ResNets, WRN-d-k (Zagoruyko & Komodakis 2016): few layers, ``k`` times the channels."""

import re

from torch import Tensor, nn

from aesam.lab.errors import UsageError
from aesam.lab.models.layers import average, conv, he_init, relu

PATTERN = "wrn-D-K"


def parse(name: str) -> tuple[int, int] | None:
    """Depth and widening factor of a name like ``wrn-28-10``; None if it is not of that form.

    A depth that no wide ResNet has is an error of its own, since it is no misspelling.

    >>> parse("wrn-28-10"), parse("resnet18")
    ((28, 10), None)
    """
    if name == PATTERN:
        raise UsageError(
            f"model {name!r} is a pattern: write numbers for the depth D and the widening "
            "factor K, for example wrn-28-10"
        )
    found = re.fullmatch("wrn-([0-9]+)-([1-9][0-9]*)", name)
    if found is None:
        return None
    depth, factor = int(found[1]), int(found[2])
    if depth < 10 or (depth - 4) % 6:
        lower = max(10, depth - (depth - 4) % 6)
        raise UsageError(
            f"model {name!r}: a wide ResNet has 6n + 4 layers (10, 16, 22, 28, ...), not {depth}; "
            f"the nearest are wrn-{lower}-{factor} and wrn-{lower + 6}-{factor}"
        )
    return depth, factor


class WideBlock(nn.Module):
    """BatchNorm and ReLU before each 3x3 convolution; a 1x1 shortcut where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, stride=stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs)
        changes = stride != 1 or inputs != outputs
        self.project = conv(inputs, outputs, 1, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = relu(self.norm1(x))
        shortcut = x if self.project is None else self.project(active)
        return self.conv2(relu(self.norm2(self.conv1(active)))) + shortcut


class WideResNet(nn.Module):
    """``depth = 6n + 4``: three stages of ``n`` blocks with 16, 32 and 64 times ``factor``."""

    def __init__(self, depth: int, factor: int, classes: int, channels: int) -> None:
        super().__init__()
        n = (depth - 4) // 6
        blocks: list[WideBlock] = []
        inputs = 16
        for stage in range(3):
            outputs = 16 * 2**stage * factor
            for i in range(n):
                blocks.append(WideBlock(inputs, outputs, stride=2 if stage and not i else 1))
                inputs = outputs
        self.stem = conv(channels, 16)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(average(relu(self.norm(self.blocks(self.stem(x))))))
