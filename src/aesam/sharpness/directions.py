"""Directions in the space of weights along which slices of the loss are taken.

Li et al., Visualizing the Loss Landscape of Neural Nets (2018): a random direction says little
unless each filter of it is as long as the filter of the weights it belongs to, since networks with
ReLU or BatchNorm can rescale their filters without changing what they compute.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from aesam.sharpness import random_vectors
from aesam.sharpness.inputs import trainable


def random_direction(model: nn.Module, *, seed: int = 0) -> list[Tensor]:
    """A random filter-normalised direction, a tensor for each trainable parameter.

    Args:
        model: whose filters give the lengths; at least one weight must have two axes or more.
        seed: of the draws, a whole number from 0, the default.

    >>> model = nn.Linear(4, 3)
    >>> weight, bias = random_direction(model, seed=1)
    >>> torch.allclose(weight.norm(dim=1), model.weight.norm(dim=1)), bias.tolist()
    (True, [0.0, 0.0, 0.0])
    """
    return drawn(model, random_vectors.generator_of(seed))


def drawn(model: nn.Module, generator: torch.Generator) -> list[Tensor]:
    params = [p.detach() for _, p in trainable(model)]
    if all(p.dim() < 2 for p in params):
        raise ValueError(
            "model must have weights of two axes or more for a filter-normalised direction, got "
            "none: give the direction yourself"
        )
    return filter_normalized(model, [random_vectors.normal(p, generator) for p in params])


def filter_normalized(model: nn.Module, direction: Sequence[Tensor]) -> list[Tensor]:
    """The direction with each filter as long as the model's own.

    A filter is a row along the first axis: what makes one output of a linear layer or a
    convolution. Biases and the scales and shifts of normalisation layers do not move, as in the
    paper's figures.

    Args:
        model: whose filters give the lengths.
        direction: a tensor for each trainable parameter, of its shape.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 3.0)
    >>> filter_normalized(model, [torch.tensor([[1.0, -1.0]])])
    [tensor([[ 3., -3.]])]
    """
    params = checked(model, direction)
    return [_like_filters(d, p) for d, p in zip(direction, params, strict=True)]


def _like_filters(direction: Tensor, param: Tensor) -> Tensor:
    if param.dim() < 2:
        return torch.zeros_like(param)
    found, wanted = (t.flatten(1).square().sum(1).sqrt() for t in (direction, param))
    factor = torch.where(found > 0, wanted / found, torch.zeros_like(found))
    return direction * factor.view(-1, *[1] * (param.dim() - 1))


def checked(model: nn.Module, direction: Sequence[Tensor]) -> list[Tensor]:
    """The parameters that a direction belongs to, if it fits them."""
    params = [p.detach() for _, p in trainable(model)]
    wanted = [list(p.shape) for p in params]
    found = [list(d.shape) for d in direction]
    if found != wanted:
        raise ValueError(
            "a direction must have a tensor for each trainable parameter, of its shape: wanted "
            f"{wanted}, got {found}"
        )
    return params
