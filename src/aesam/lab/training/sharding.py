"""Checkpoints of models whose weights are spread over processes (FSDP2).

The model is saved whole, so that it can be read anywhere; the optimizer's state stays in shards,
one set for each process, so that going on needs as many processes as before. For a model on one
process, or under DDP, nothing here changes anything.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

import aesam


def is_sharded(net: nn.Module) -> bool:
    return any(hasattr(p, "to_local") for p in net.parameters())


def whole_model_state(net: nn.Module) -> dict[str, Tensor]:
    """The state dict with whole tensors; every process must call it."""
    state = net.state_dict()
    return {k: t.full_tensor().cpu() if hasattr(t, "full_tensor") else t for k, t in state.items()}


def load_whole_model_state(net: nn.Module, saved: dict[str, Tensor]) -> None:
    """Give each process its shards of the whole tensors; every process must call it."""
    if is_sharded(net):
        from torch.distributed.tensor import DTensor, distribute_tensor

        now = net.state_dict()
        saved = {
            k: distribute_tensor(t.to(now[k].device), now[k].device_mesh, now[k].placements)
            if isinstance(now[k], DTensor)
            else t
            for k, t in saved.items()
        }
    net.load_state_dict(saved)


def own_optimizer_state(opt: aesam.SharpnessAware) -> dict[str, Any]:
    """The optimizer's state dict with this process's shards in place of spread tensors."""
    saved = opt.state_dict()
    state = cast(dict[int, dict[str, Any]], saved["state"])
    return {**saved, "state": {i: _local(entry) for i, entry in state.items()}}


def _local(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to_local().clone() if hasattr(v, "to_local") else v for k, v in entry.items()}


def load_own_optimizer_state(opt: aesam.SharpnessAware, saved: dict[str, Any]) -> None:
    """What :func:`own_optimizer_state` gave to this process, spread again as its parameters are."""
    params = [p for group in opt.param_groups for p in group["params"]]
    state = cast(dict[int, dict[str, Any]], saved["state"])
    spread = {i: _spread(entry, params[i]) for i, entry in state.items()}
    opt.load_state_dict({**saved, "state": spread})


def _spread(entry: dict[str, Any], param: Any) -> dict[str, Any]:
    if not hasattr(param, "to_local"):
        return entry
    from torch.distributed.tensor import DTensor

    shape = param.to_local().shape
    return {
        k: DTensor.from_local(v.to(param.device), param.device_mesh, param.placements)
        if isinstance(v, torch.Tensor) and v.dim() > 0 and v.shape == shape
        else v
        for k, v in entry.items()
    }
