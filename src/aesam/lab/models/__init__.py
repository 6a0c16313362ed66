"""The models of the lab, by name.

>>> sum(p.numel() for p in build("resnet20", classes=10).parameters())
269722
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from aesam.lab.errors import UsageError, unknown
from aesam.lab.models import resnet, vit, wide_resnet
from aesam.lab.models.cifar_resnet import CifarResNet
from aesam.lab.models.digits_cnn import DigitsCNN
from aesam.lab.models.mlp import MLP
from aesam.lab.models.pyramidnet import PyramidNet
from aesam.lab.models.vit import ViT
from aesam.lab.models.wide_resnet import WideResNet

__all__ = ["build", "check", "names"]


@dataclass(frozen=True)
class Task:
    """What a model is built for: how many classes, and images of which shape."""

    classes: int
    channels: int
    size: int
    patch: int | None


def _vit_small(task: Task) -> ViT:
    patch = vit.patch_size(task.size, task.patch)
    return ViT(classes=task.classes, channels=task.channels, size=task.size, patch=patch)


_BUILDERS: dict[str, Callable[[Task], nn.Module]] = {
    "digits-cnn": lambda t: DigitsCNN(t.classes, t.channels, t.size),
    "mlp": lambda t: MLP(t.classes, t.channels, t.size),
    "resnet8": lambda t: CifarResNet(8, t.classes, t.channels),
    "resnet20": lambda t: CifarResNet(20, t.classes, t.channels),
    "resnet32": lambda t: CifarResNet(32, t.classes, t.channels),
    "resnet56": lambda t: CifarResNet(56, t.classes, t.channels),
    "resnet18": lambda t: resnet.cifar_form((2, 2, 2, 2), t.classes, t.channels),
    "resnet34": lambda t: resnet.cifar_form((3, 4, 6, 3), t.classes, t.channels),
    "resnet50": lambda t: resnet.imagenet_form((3, 4, 6, 3), t.classes, t.channels),
    "wrn-28-10": lambda t: WideResNet(28, 10, t.classes, t.channels),
    "pyramidnet-110": lambda t: PyramidNet(110, 270, t.classes, t.channels),
    "vit-s": _vit_small,
}


def names() -> list[str]:
    """All model names; ``wrn-D-K`` stands for every wide ResNet of depth D and widening K."""
    return [*_BUILDERS, wide_resnet.PATTERN]


def check(name: str) -> None:
    """Raise a :class:`UsageError` unless ``name`` is a model's, without building anything.

    >>> check("wrn-16-4")
    """
    _builder(name)


def _builder(name: str) -> Callable[[Task], nn.Module]:
    if name in _BUILDERS:
        return _BUILDERS[name]
    wide = wide_resnet.parse(name)
    if wide is None:
        raise unknown("model", name, names())
    return lambda t: WideResNet(*wide, t.classes, t.channels)


def build(
    name: str, *, classes: int, channels: int = 3, size: int = 32, patch: int | None = None
) -> nn.Module:
    """A freshly drawn model for square images of ``size`` pixels.

    The weights follow from torch's random state alone. ``patch`` is for ``vit-s`` only: by default
    4 up to 64 pixels and 16 above. Inside ``with torch.device("meta")`` nothing is allocated, which
    is how to find out early whether a combination is possible.

    >>> build("vit-s", classes=10, size=8, patch=3)
    Traceback (most recent call last):
    ...
    aesam.lab.errors.UsageError: patch 3 does not divide images of size 8; choose among 1, 2, 4
    """
    builder = _builder(name)
    for what, value in (("classes", classes), ("channels", channels), ("size", size)):
        if value < 1:
            raise UsageError(f"{what} must be 1 or more, got {value}")
    if patch is not None and name != "vit-s":
        raise UsageError(f"patch {patch} is for vit-s; model {name!r} has no patches: leave it out")
    return builder(Task(classes, channels, size, patch))
