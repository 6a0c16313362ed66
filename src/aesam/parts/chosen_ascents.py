"""Ascents along some of the parameters, chosen by name or by the layer that they belong to."""

import difflib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from aesam.parts import checks
from aesam.parts.ascents import AlongGradient, Ascent
from aesam.parts.part import Direction, Draws, Gradient, Memory, Place, on_device, places_of

_NORM = re.compile("Norm(?!al(?!i))")  # LayerNorm, Normalization, but not NormalNoise


class _Chosen(Ascent):
    """Along the gradient of the parameters of some places, its norm taken over those only."""

    needs_places = True
    overwrites = False

    @property
    def needs_norm_of_each(self) -> bool:
        return True

    def takes(self, place: Place) -> bool:
        """Whether what stands there takes part; one of a shared parameter's places is enough."""
        raise TypeError(f"{type(self).__name__} must define takes(place)")

    @on_device
    def direction(self, gradient: Gradient, memory: Memory, generator: Draws) -> Direction:
        rows = zip(range(len(gradient.params)), gradient.places, strict=True)
        chosen = [i for i, places in rows if any(map(self.takes, places))]
        return AlongGradient().direction(gradient.over(chosen), memory, generator)

    def check_model(self, model: nn.Module | None, base: torch.optim.Optimizer) -> None:
        if model is None:
            raise ValueError(
                f"{type(self).__name__} chooses parameters by where they stand in the model: pass "
                "it as model"
            )
        trained = [p for group in base.param_groups for p in group["params"]]
        there = [place for places in places_of(trained, model) for place in places]
        if not any(map(self.takes, there)):
            raise ValueError(self._none_found([place.name for place in there]))

    def _none_found(self, names: list[str]) -> str:
        """What to say where none of the trained parameters takes part."""
        raise NotImplementedError


@dataclass(frozen=True)
class Named(_Chosen):
    """SAM along the parameters whose names match, the norm over those: ``ε = 0`` elsewhere.

    The second gradient is of all parameters. Needs the model, whose names these are; those that DDP
    and ``torch.compile`` put before are left out.

    Args:
        pattern: of names as ``model.named_parameters()`` has them; ``*`` stands for anything, ``?``
            for one letter, ``[ab]`` for one of those. Several are separated by commas. One that
            matches no trained parameter is refused.

    >>> Named("head.*, *.bias").takes(Place("body.bias", nn.Linear(2, 1)))
    True
    """

    pattern: str

    def __post_init__(self) -> None:
        self._keep(pattern=checks.text("pattern", self.pattern, "a pattern of parameters' names"))

    def takes(self, place: Place) -> bool:
        return any(fnmatchcase(place.name, each.strip()) for each in self.pattern.split(","))

    def _none_found(self, names: list[str]) -> str:
        near = difflib.get_close_matches(self.pattern, names, n=3, cutoff=0.0)
        found = f"Near: {', '.join(near)}" if near else "It has none of the optimizer's parameters"
        return f"pattern {self.pattern!r} matches no trained parameter of the model. {found}"


@dataclass(frozen=True)
class NormLayers(_Chosen):
    """SAM-ON's: along the scales and shifts of normalisation layers only, the norm over those.

    Those of torch, and whatever calls itself or its base a ``Norm`` (``LlamaRMSNorm``). The second
    gradient is of all parameters. Needs the model; one without such layers is refused.

    >>> NormLayers().takes(Place("1.weight", nn.LayerNorm(2)))
    True
    """

    def takes(self, place: Place) -> bool:
        return any(_NORM.search(kind.__name__) for kind in type(place.module).__mro__)

    def _none_found(self, names: list[str]) -> str:
        return (
            "model has no trained parameter in a normalisation layer, along which alone the ascent "
            "would go: use SAM, or choose others by name, "
            'SharpnessAware(..., ascent=aesam.parts.chosen_ascents.Named("head.*"))'
        )
