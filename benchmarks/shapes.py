"""The tensor shapes of real models, so that bookkeeping can be timed without the models."""

Shape = tuple[int, ...]


def resnet18() -> list[Shape]:
    """ResNet-18 for CIFAR with 10 classes: 11,173,962 parameters in 62 tensors."""
    shapes: list[Shape] = [(64, 3, 3, 3), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            inputs = before if block == 0 else width
            shapes += [(width, inputs, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if inputs != width:
                shapes += [(width, inputs, 1, 1), (width,), (width,)]
        before = width
    return [*shapes, (10, 512), (10,)]


def vit_small() -> list[Shape]:
    """ViT-S/16 at 224 with 1,000 classes: 22,050,664 parameters in 152 tensors."""
    d = 384
    shapes: list[Shape] = [(1, 1, d), (1, 197, d), (d, 3, 16, 16), (d,)]
    for _ in range(12):
        shapes += [(d,), (d,), (3 * d, d), (3 * d,), (d, d), (d,)]
        shapes += [(d,), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,)]
    return [*shapes, (d,), (d,), (1000, d), (1000,)]


def thousand_small() -> list[Shape]:
    """1,000 tensors of 1,024 numbers: what is left is the cost per tensor."""
    return [(32, 32)] * 1000


SHAPES = {"ResNet-18": resnet18, "ViT-S": vit_small, "1,000 small": thousand_small}
