"""The small ResNets for CIFAR of He et al. (2016), section 4.2: 0.08 M to 0.9 M parameters."""

from torch import Tensor, nn

from aesam.lab.models.layers import average, conv, he_init, relu, widen


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
