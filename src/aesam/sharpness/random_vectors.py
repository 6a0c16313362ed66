"""Random vectors that follow from a seed alone; torch's global random state is left alone.

They are drawn on the CPU in float64, so that every device and dtype measures along the same ones.
"""

import torch
from torch import Tensor

from aesam._core import tensors
from aesam.parts import checks


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(checks.seed("seed", seed))


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent standard normal numbers."""
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent signs, 1 or -1 (Rademacher)."""
    return (torch.randint(0, 2, like.shape, generator=generator) * 2 - 1).to(like)


def in_unit_ball(like: Tensor, generator: torch.Generator) -> Tensor:
    """A point of the ball of radius 1, uniformly."""
    vector = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    radius = torch.rand((), generator=generator, dtype=torch.float64) ** (1.0 / vector.numel())
    return (vector * (radius / tensors.norm_on_host([vector]))).to(like)
