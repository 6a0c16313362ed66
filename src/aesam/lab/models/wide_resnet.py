"""Residual networks that grow in width instead of depth: wide ResNets and PyramidNets.

Wide ResNets, WRN-d-k (Zagoruyko & Komodakis 2016), have few layers with ``k`` times the channels.
In additive PyramidNets (Han, Kim & Kim 2017) every block is a little wider than the one before. The
paper's PyramidNet-110 with ``alpha = 270`` is of basic blocks: 54 of them, each 5 channels wider.
(Its bottleneck variant of the same depth would have 18.3 M parameters instead of 28.5 M.)
"""

import re

from torch import Tensor, nn
from torch.nn import functional

from aesam.lab.errors import UsageError
from aesam.lab.models.layers import average, conv, he_init, relu, widen
from aesam.lab.models.model_records import MOST_PARAMETERS, ModelFamily, ModelRecord

PATTERN = "wrn-D-K"

#: Ten times the deepest that was ever published for CIFAR; each layer costs time and memory.
MOST_LAYERS = 10_000


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


def wide_resnet(name: str) -> ModelRecord | None:
    """The record of a name like ``wrn-28-10``; None if it is not of that form."""
    wide = _depth_and_factor(name)
    return None if wide is None else _record(*wide)


def _record(depth: int, factor: int) -> ModelRecord:
    return ModelRecord(
        f"wrn-{depth}-{factor}",
        f"WRN-{depth}-{factor}",
        f"wide ResNet of {depth} layers with {factor} times the channels",
        lambda task: WideResNet(depth, factor, task.classes, task.channels),
    )


def _depth_and_factor(name: str) -> tuple[int, int] | None:
    """Depth and widening factor of a name like ``wrn-28-10``; None if it is not of that form.

    A depth that no wide ResNet has is an error of its own, since it is no misspelling.

    >>> _depth_and_factor("wrn-28-10"), _depth_and_factor("resnet18")
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
    if max(len(number.lstrip("0")) for number in found.groups()) > 9:
        raise _too_large(name)
    depth, factor = int(found[1]), int(found[2])
    if depth < 10 or (depth - 4) % 6:
        lower = max(10, depth - (depth - 4) % 6)
        raise UsageError(
            f"model {name!r}: a wide ResNet has 6n + 4 layers (10, 16, 22, 28, ...), not {depth}; "
            f"the nearest are wrn-{lower}-{factor} and wrn-{lower + 6}-{factor}"
        )
    if depth > MOST_LAYERS or _weights(depth, factor) > MOST_PARAMETERS:
        raise _too_large(name)
    return depth, factor


def _weights(depth: int, factor: int) -> int:
    """Those of the 3x3 convolutions within the stages, which are nearly all there are.

    >>> sum(p.numel() for p in WideResNet(28, 10, 10, 3).parameters()), _weights(28, 10)
    (36479194, 33868800)
    """
    widths = [16 * 2**stage * factor for stage in range(3)]
    return ((depth - 4) // 3 - 1) * 9 * sum(width**2 for width in widths)


def _too_large(name: str) -> UsageError:
    short = name if len(name) < 40 else f"{name[:40]}…"
    return UsageError(
        f"model {short!r} is too large: wide ResNets have at most {MOST_LAYERS:,} layers and "
        f"{MOST_PARAMETERS:,} parameters here; wrn-28-10 has 36 million"
    )


FAMILY = ModelFamily(
    PATTERN, "any wide ResNet of D = 6n + 4 layers with K times the channels", wide_resnet
)
RECORDS = (
    _record(28, 10),
    ModelRecord(
        "pyramidnet-110",
        "PyramidNet-110",
        "28.5 M parameters, every block a little wider",
        lambda task: PyramidNet(110, 270, task.classes, task.channels),
    ),
)
