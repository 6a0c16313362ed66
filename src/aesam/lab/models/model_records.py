"""Models by name: one record for each, and what is built of it.

Everything that lists, builds or explains a model reads its record, which stands beside its class.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from aesam.lab.config import Model
from aesam.lab.data.data_records import Kind
from aesam.lab.data.sets import DataSet
from aesam.lab.errors import UsageError, unknown
from aesam.registry import Registry

#: Far beyond what the lab trains, and 40 GB before the first step.
MOST_PARAMETERS = 10**10


@dataclass(frozen=True)
class Task:
    """What a model is built for: how many classes, and images of which shape.

    Of a text, the classes are its characters and the size is the context.
    """

    classes: int
    channels: int
    size: int
    patch: int | None


@dataclass(frozen=True)
class ModelRecord:
    """What is known of a model.

    Args:
        name: what commands call it, in small letters, digits and hyphens.
        label: what readers call it.
        help: what it is, in half a line.
        build: makes it, freshly drawn, for a task.
        has_patches: whether it cuts images into patches, whose size a task may choose.
        reads: what it is made for, ``"images"`` by default.

    >>> model_record("resnet20").label
    'ResNet-20'
    """

    name: str
    label: str
    help: str
    build: Callable[[Task], nn.Module]
    has_patches: bool = False
    reads: Kind = "images"


@dataclass(frozen=True)
class ModelFamily:
    """Models whose names carry numbers, any of which may be asked for.

    Args:
        pattern: how their names are written, with capitals in place of the numbers.
        help: what they are, in half a line.
        member: the record of a name; None if it is not of this family.

    >>> model_record("wrn-16-4").label
    'WRN-16-4'
    """

    pattern: str
    help: str
    member: Callable[[str], ModelRecord | None]


_MODELS = Registry[ModelRecord]("model", UsageError)
_FAMILIES: dict[str, ModelFamily] = {}


def register_model(model: ModelRecord | ModelFamily) -> None:
    """Make a model, or a family of them, known to every command; each name is used once."""
    if isinstance(model, ModelRecord):
        _MODELS.add(model.name, model)
    elif model.pattern in _FAMILIES:
        raise ValueError(f"models {model.pattern!r} are registered already: choose another pattern")
    else:
        _FAMILIES[model.pattern] = model


def forget_model(name: str) -> None:
    """Take a registration back, a family's by its pattern; unknown names are refused."""
    if _FAMILIES.pop(name, None) is None:
        _MODELS.remove(name)


def model_record(name: str) -> ModelRecord:
    """The record of a model, without building anything; an unknown name is refused."""
    if name in _MODELS:
        return _MODELS[name]
    for family in _FAMILIES.values():
        record = family.member(name)
        if record is not None:
            return record
    raise unknown("model", name, list_models())


def model_help(name: str) -> str:
    """What a model, or a family by its pattern, is, in half a line."""
    return _FAMILIES[name].help if name in _FAMILIES else model_record(name).help


def list_models(pattern: str = "*") -> list[str]:
    """The names of all models that match, and last the patterns of families.

    >>> list_models("wrn*")
    ['wrn-28-10', 'wrn-D-K']
    """
    families = [name for name in _FAMILIES if fnmatchcase(name, pattern)]
    return _MODELS.names(pattern) + families


def models_reading(kind: Kind) -> list[str]:
    """The names of all models made for images, or for text; families are for images.

    >>> models_reading("text")
    ['text-transformer']
    """
    families = list(_FAMILIES) if kind == "images" else []
    return [name for name in _MODELS.names() if _MODELS[name].reads == kind] + families


def build_for(model: Model, data_set: DataSet) -> nn.Module:
    """The model of a run, freshly drawn for the images and classes of a data set."""
    return build(
        model.name,
        classes=data_set.classes,
        channels=data_set.channels,
        size=data_set.size,
        patch=model.patch,
    )


def build(
    name: str, *, classes: int, channels: int = 3, size: int = 32, patch: int | None = None
) -> nn.Module:
    """A freshly drawn model for square images of ``size`` pixels.

    The weights follow from torch's random state alone. ``patch`` is for models that have patches:
    by default 4 up to 64 pixels and 16 above. Inside ``with torch.device("meta")`` nothing is
    allocated, which is how to find out early whether a combination is possible.

    >>> build("vit-s", classes=10, size=8, patch=3)
    Traceback (most recent call last):
    ...
    aesam.lab.errors.UsageError: patch 3 does not divide images of size 8; choose among 1, 2, 4
    """
    record = model_record(name)
    for what, value in (("classes", classes), ("channels", channels), ("size", size)):
        if value < 1:
            raise UsageError(f"{what} must be 1 or more, got {value}")
    if patch is not None and not record.has_patches:
        cut = " or ".join(known for known in _MODELS.names() if _MODELS[known].has_patches)
        raise UsageError(f"patch {patch} is for {cut}; model {name!r} has no patches: leave it out")
    try:
        return record.build(Task(classes, channels, size, patch))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "you tried to allocate" not in str(error):
            raise
        raise UsageError(
            f"there is not enough memory for model {name!r}: choose a smaller one"
        ) from error
