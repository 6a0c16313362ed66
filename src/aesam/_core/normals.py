"""Random numbers for parameters: the same on every process, whatever device or shard they are on.

A part's own generator is on the CPU and small. So one number is drawn from it, which seeds a
generator on each device. Of a sharded parameter every process draws all numbers and keeps its part.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Sequence

import torch
from torch import Tensor

from aesam._core import tensors


def fill(
    buffers: Sequence[Tensor], params: Sequence[Tensor], generator: torch.Generator | None
) -> None:
    """Standard normal numbers in each buffer, which is shaped like this process's part of a param.

    Drawn in the parameters' order, so that what one gets depends on the shapes of those before it.
    """
    seed = int(torch.randint(2**62, (1,), generator=generator).item())
    drawing: dict[torch.device, torch.Generator] = {}
    for buffer, param in zip(buffers, params, strict=True):
        device = buffer.device
        if device not in drawing:
            drawing[device] = torch.Generator(device).manual_seed(seed + len(drawing))
        if tensors.are_plain([param]):
            buffer.normal_(generator=drawing[device])
        else:
            whole = torch.empty(param.shape, dtype=buffer.dtype, device=device)
            buffer.copy_(_part_of(whole.normal_(generator=drawing[device]), param))


def _part_of(whole: Tensor, param: Tensor) -> Tensor:
    """What this process holds of a tensor that is sharded like the parameter; asks nobody."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(param, DTensor):
        return whole
    mesh, placements = param.device_mesh, param.placements
    return distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()


def scale_by_filters(
    buffers: Sequence[Tensor], params: Sequence[Tensor], factors: Sequence[float]
) -> None:
    """Each buffer times its factor and the norms of its parameter's filters.

    Those are the slices along its first dimension; one of one dimension, a bias, is one filter.
    """
    single = [i for i, p in enumerate(params) if p.dim() < 2]
    if single:
        lengths = tensors.lengths([params[i] for i in single])
        for length, i in zip(lengths, single, strict=True):
            buffers[i].mul_(length.to(buffers[i].device) * factors[i])
    for buffer, param, factor in zip(buffers, params, factors, strict=True):
        if param.dim() >= 2:
            _refuse_cut_filters(param)
            (own,) = tensors.local([param])
            wide = torch.float32 if own.dtype in tensors.HALF else None
            norms = torch.linalg.vector_norm(own.flatten(1), dim=1, dtype=wide)
            buffer.mul_(factor * norms.reshape(-1, *[1] * (own.dim() - 1)))


def _refuse_cut_filters(param: Tensor) -> None:
    placements = getattr(param, "placements", ())
    if any(place.is_shard() and not place.is_shard(0) for place in placements):
        raise ValueError(
            f"noise in proportion to a filter's norm needs whole filters on each process, and a "
            f"parameter of shape {tuple(param.shape)} is sharded as {tuple(placements)}: shard "
            "along the first dimension, as fully_shard does unless told otherwise"
        )
