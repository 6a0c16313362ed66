"""The largest eigenvalues of a symmetric operator that is known by its products with vectors.

Lanczos' method with full reorthogonalisation. Where the vectors span an invariant subspace before
all eigenvalues asked for are in it, it goes on from a fresh random vector orthogonal to them, as
a new block: so an eigenvalue that several eigenvectors share is found several times. An operator
of no more dimensions than the steps allowed is decomposed completely.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aesam._core import tensors


@dataclass(frozen=True)
class Ritz:
    """Approximate eigenvalues, largest first; each is off by at most its residual."""

    values: list[float]
    residuals: list[float]
    steps: int
    converged: bool


def largest(
    product: Callable[[Tensor], Tensor],
    draw: Callable[[], Tensor],
    *,
    dimension: int,
    k: int,
    steps: int,
    tolerance: float,
) -> Ritz:
    """The ``k`` largest eigenvalues; ``draw`` gives random vectors to start from."""
    basis: list[Tensor] = []
    blocks = [_Block()]
    vector = _fresh(draw, basis)
    while True:
        basis.append(vector)
        image = product(vector)
        along = float(torch.dot(image, vector))
        _orthogonalise(image, basis)
        left = tensors.norm_on_host([image])
        blocks[-1].add(along, left)
        scale = max(b.scale for b in blocks)
        invariant = left <= 100.0 * torch.finfo(image.dtype).eps * scale
        found = _ritz(blocks, k, tolerance * scale)
        complete = len(basis) == dimension
        if complete or len(basis) == steps:
            return found
        if dimension > steps and found.converged and _is_all(blocks, found, invariant, tolerance):
            return found
        if invariant:
            blocks.append(_Block())
            vector = _fresh(draw, basis)
        else:
            vector = image / left
            _orthogonalise(vector, basis)  # dividing by a small number enlarged what was left over
            vector /= tensors.norm_on_host([vector])


class _Block:
    """The tridiagonal matrix of one Krylov space: small, so in float64 on the CPU."""

    def __init__(self) -> None:
        self._diagonal: list[float] = []
        self._beside: list[float] = []
        self.values: list[float] = []
        self.residuals: list[float] = []
        self.scale = 0.0

    def __len__(self) -> int:
        return len(self._diagonal)

    def add(self, along: float, left: float) -> None:
        """One more vector: its Rayleigh quotient, and the norm of what its image adds."""
        self._diagonal.append(along)
        beside = torch.tensor(self._beside, dtype=torch.float64)
        matrix = torch.diag(torch.tensor(self._diagonal, dtype=torch.float64))
        matrix += torch.diag(beside, 1) + torch.diag(beside, -1)
        values, vectors = _eigh(matrix)
        self.values = tensors.to_host(values)
        self.residuals = tensors.to_host(left * vectors[-1].abs())
        self._beside.append(left)
        self.scale = max(map(abs, self.values))


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.eigh(matrix)  # pyright: ignore


def _ritz(blocks: list[_Block], k: int, allowed: float) -> Ritz:
    pairs = [pair for block in blocks for pair in zip(block.values, block.residuals, strict=True)]
    pairs.sort(reverse=True)
    best, steps = pairs[:k], len(pairs)
    converged = len(best) == k and all(residual <= allowed for _, residual in best)
    return Ritz([v for v, _ in best], [r for _, r in best], steps, converged)


def _is_all(blocks: list[_Block], found: Ritz, invariant: bool, tolerance: float) -> bool:
    """Whether no larger eigenvalue can be left outside the space.

    A block started at random has a part of every eigenvector outside the blocks before it, so what
    is left outside is no larger than the last block's largest. In the first block, while it is not
    exhausted, convergence has to do: shared eigenvalues are rare.
    """
    if len(blocks) == 1 and not invariant:
        return True
    last, scale = blocks[-1], max(b.scale for b in blocks)
    settled = last.residuals[-1] <= tolerance * scale
    return settled and found.values[-1] >= last.values[-1] - tolerance * scale


def _fresh(draw: Callable[[], Tensor], basis: list[Tensor]) -> Tensor:
    """A random unit vector orthogonal to the basis."""
    vector = draw()
    vector = vector / tensors.norm_on_host([vector])
    for _ in range(2):  # the second time removes what rounding left of the first
        _orthogonalise(vector, basis)
        vector /= tensors.norm_on_host([vector])
    return vector


def _orthogonalise(vector: Tensor, basis: list[Tensor]) -> None:
    """Remove from ``vector`` its parts along the basis, in place; twice is enough (Kahan)."""
    for _ in range(2):
        for other in basis:
            vector.sub_(other * torch.dot(other, vector))
