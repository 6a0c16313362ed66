"""The ResNets of He et al. (2016): the small ones for CIFAR, and those with 64 channels and more.

The small ones are of the paper's section 4.2 and have 0.08 M to 0.9 M parameters. ResNet-18 and -34
come in the form that CIFAR papers train: a 3x3 stem and no max-pooling, so that a 32x32 image is
still 32x32 in the first stage. ResNet-50 has the ImageNet stem, and its stride in the 3x3
convolution, where nearly everyone has put it since.
"""

from torch import Tensor, nn

from aesam.lab.models.layers import average, conv, he_init, relu, widen
from aesam.lab.models.model_records import ModelRecord


class PlainBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut without parameters (the paper's option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.outputs = stride, outputs
        self.conv1, self.norm1 = conv(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv(outputs, outputs), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        # Without the condition, backward would copy the whole gradient at stride 1 too.
        thinned = x if self.stride == 1 else x[:, :, :: self.stride, :: self.stride]
        inner = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(inner)) + widen(thinned, self.outputs))


class CifarResNet(nn.Module):
    """``depth = 6n + 2``: a stem, three stages of ``n`` blocks (16, 32, 64 channels), a head."""

    def __init__(self, depth: int, classes: int, channels: int) -> None:
        super().__init__()
        n = (depth - 2) // 6
        self.stem = nn.Sequential(conv(channels, 16), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        blocks: list[PlainBlock] = []
        inputs = 16
        for stage, outputs in enumerate((16, 32, 64)):
            for i in range(n):
                blocks.append(PlainBlock(inputs, outputs, stride=2 if stage and not i else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(average(self.blocks(self.stem(x))))


class ResidualBlock(nn.Module):
    """A branch of convolutions beside a shortcut that is projected where the shape changes."""

    def __init__(self, branch: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.branch(x) + self.shortcut(x))


def basic(inputs: int, width: int, stride: int) -> ResidualBlock:
    """Two 3x3 convolutions."""
    branch = nn.Sequential(
        *(conv(inputs, width, stride=stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
        *(conv(width, width), nn.BatchNorm2d(width)),
    )
    return ResidualBlock(branch, inputs, width, stride)


def bottleneck(inputs: int, width: int, stride: int) -> ResidualBlock:
    """A 3x3 convolution between two 1x1 that narrow and widen fourfold."""
    branch = nn.Sequential(
        *(conv(inputs, width, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
        *(conv(width, width, stride=stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
        *(conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)),
    )
    return ResidualBlock(branch, inputs, 4 * width, stride)


class ResNet(nn.Module):
    """A stem with 64 output channels, the stages one after the other, and a linear head."""

    def __init__(
        self, stem: nn.Module, blocks: list[ResidualBlock], features: int, classes: int
    ) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(features, classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(average(self.blocks(self.stem(x))))


def cifar_form(counts: tuple[int, ...], classes: int, channels: int) -> ResNet:
    """Basic blocks behind a 3x3 stem: ResNet-18 is ``(2, 2, 2, 2)``, -34 ``(3, 4, 6, 3)``."""
    stem = nn.Sequential(conv(channels, 64), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
    blocks = [basic(*shape) for shape in _shapes(counts, expansion=1)]
    return ResNet(stem, blocks, 512, classes)


def imagenet_form(counts: tuple[int, ...], classes: int, channels: int) -> ResNet:
    """Bottlenecks behind a 7x7 stem and max-pooling: ResNet-50 is ``(3, 4, 6, 3)``."""
    stem = nn.Sequential(
        *(conv(channels, 64, 7, stride=2), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
        nn.MaxPool2d(3, stride=2, padding=1),
    )
    blocks = [bottleneck(*shape) for shape in _shapes(counts, expansion=4)]
    return ResNet(stem, blocks, 2048, classes)


def _shapes(counts: tuple[int, ...], expansion: int) -> list[tuple[int, int, int]]:
    """Input channels, width and stride of each block: stages halve the size, double the width."""
    shapes: list[tuple[int, int, int]] = []
    inputs = 64
    for stage, count in enumerate(counts):
        width = 64 * 2**stage
        for i in range(count):
            shapes.append((inputs, width, 2 if stage and not i else 1))
            inputs = expansion * width
    return shapes


def _small(depth: int, millions: float) -> ModelRecord:
    return ModelRecord(
        f"resnet{depth}",
        f"ResNet-{depth}",
        f"{millions} M parameters, for CIFAR",
        lambda task: CifarResNet(depth, task.classes, task.channels),
    )


RECORDS = (
    _small(8, 0.08),
    _small(20, 0.27),
    _small(32, 0.46),
    _small(56, 0.85),
    ModelRecord(
        "resnet18",
        "ResNet-18",
        "11.2 M parameters, with CIFAR's stem",
        lambda task: cifar_form((2, 2, 2, 2), task.classes, task.channels),
    ),
    ModelRecord(
        "resnet34",
        "ResNet-34",
        "21.3 M parameters, with CIFAR's stem",
        lambda task: cifar_form((3, 4, 6, 3), task.classes, task.channels),
    ),
    ModelRecord(
        "resnet50",
        "ResNet-50",
        "25.6 M parameters, with ImageNet's stem",
        lambda task: imagenet_form((3, 4, 6, 3), task.classes, task.channels),
    ),
)
