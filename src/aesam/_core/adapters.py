"""The LoRA adapters that PEFT puts into a model: which are trained, and what products measure.

PEFT is not needed here: a model has its adapters only where it was imported already.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from aesam._core import tensors


class Adapter(NamedTuple):
    """One LoRA adapter, ``W₀ x + s B A x``, that is trained.

    Args:
        path: where its layer stands in the model.
        layer: PEFT's layer around ``W₀``.
        name: which of the layer's adapters it is.
        down: ``A``, from the layer's inputs to the rank.
        up: ``B``, from the rank to the layer's outputs.

    >>> Adapter("head", nn.Linear(2, 2), "default", torch.zeros(1, 2), torch.zeros(2, 1)).name
    'default'
    """

    path: str
    layer: nn.Module
    name: str
    down: Tensor
    up: Tensor

    @property
    def is_there(self) -> bool:
        """Whether the layer still has these matrices."""
        layer = cast(Any, self.layer)
        held = (table[self.name] for table in (layer.lora_A, layer.lora_B) if self.name in table)
        return [id(m.weight) for m in held] == [id(self.down), id(self.up)]

    @property
    def acts(self) -> bool:
        """Whether the layer's forward adds it now: it is active, and neither off nor merged."""
        layer = cast(Any, self.layer)
        return (
            not layer.disable_adapters and not layer.merged and self.name in layer.active_adapters
        )


def trained_adapters(model: nn.Module | None) -> list[Adapter]:
    """The adapters whose both matrices are trained; refused where there is none.

    Args:
        model: a model with adapters of PEFT, also inside DDP.

    >>> trained_adapters(nn.Linear(2, 1))
    Traceback (most recent call last):
    ValueError: Bi-LoRA needs a model with LoRA adapters of PEFT that are trained, got Linear...
    """
    found = [] if model is None or "peft" not in sys.modules else _in_layers(model)
    if not found:
        given = "none" if model is None else type(model).__name__
        raise ValueError(
            "Bi-LoRA needs a model with LoRA adapters of PEFT that are trained, got "
            f"{given}: pass peft.get_peft_model(model, peft.LoraConfig(...)) as model, or use "
            "another method of one gradient a step, MSAM"
        )
    _refuse_shared(found)
    return found


def _in_layers(model: nn.Module) -> list[Adapter]:
    from peft.tuners.lora import LoraLayer

    modules = cast(Iterable[tuple[str, nn.Module]], model.named_modules())
    return [
        adapter
        for path, layer in modules
        if isinstance(layer, LoraLayer)
        for adapter in _of_layer(path, layer)
    ]


def _of_layer(path: str, layer: Any) -> list[Adapter]:
    """The adapter of a layer that is trained, if any; refused where a branch would be wrong."""
    tables = (layer.lora_A, layer.lora_B, layer.lora_embedding_A, layer.lora_embedding_B)
    held = {
        name: [p for table in tables if name in table for p in _parameters_of(table[name])]
        for name in dict.fromkeys(name for table in tables for name in table)
    }
    trained = [name for name, params in held.items() if any(p.requires_grad for p in params)]
    if not trained:
        return []
    if len(trained) > 1:
        raise ValueError(
            f"{path} has several adapters that are trained, {trained}: Bi-LoRA is for one at a "
            "time; freeze the others"
        )
    (name,) = trained
    _check_kind(path, layer, name)
    down, up = layer.lora_A[name].weight, layer.lora_B[name].weight
    if not (down.requires_grad and up.requires_grad):
        raise ValueError(
            f"{path} trains one matrix of its adapter {name!r} and not the other: Bi-LoRA ascends "
            "beside both; train both"
        )
    if not tensors.are_plain([down, up]):
        raise TypeError(
            f"{path} has a sharded adapter (FSDP2, tensor parallel): Bi-LoRA needs each process to "
            "hold the whole of it; use DDP"
        )
    return [Adapter(path, layer, name, down, up)]


def trained_beside(model: nn.Module, known: Sequence[Adapter]) -> str:
    """Where the model has a matrix of an adapter that is trained and not one of these, or "".

    Quick where there is none: asked before every forward.

    Args:
        model: the model that the known ones are of.
        known: those that were found when the optimizer was made.

    >>> trained_beside(nn.Linear(2, 1), [])
    ''
    """
    from peft.tuners.lora import LoraLayer

    held = {id(p) for adapter in known for p in (adapter.down, adapter.up)}
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            for p in _parameters_of(layer.lora_A) + _parameters_of(layer.lora_B):
                if p.requires_grad and id(p) not in held:
                    return next(path for path, module in model.named_modules() if module is layer)
    return ""


def _parameters_of(entry: Any) -> list[Tensor]:
    return list(entry.parameters()) if isinstance(entry, nn.Module) else [entry]


def _check_kind(path: str, layer: Any, name: str) -> None:
    """Refuse layers whose weight is not ``W₀ + s B A``, and those that nobody has tried."""
    from peft.tuners.lora import Linear

    kind = type(layer)
    if kind is not Linear:
        raise ValueError(
            f"{path} is a {kind.__module__}.{kind.__name__} around a "
            f"{type(layer.get_base_layer()).__name__}: Bi-LoRA is for LoRA on linear layers that "
            "are not quantised (no embeddings, convolutions or attention as one layer); leave it "
            "out of target_modules"
        )
    if name in layer.lora_variant:
        raise ValueError(
            f"{path} has the variant {type(layer.lora_variant[name]).__name__} of LoRA, whose "
            "weight is not W + B A: Bi-LoRA is for plain LoRA; leave use_dora and its like out of "
            "LoraConfig"
        )
    if layer.merged:
        raise ValueError(
            f"{path} has its adapter merged into the weight, where it is not trained: call "
            "model.unmerge_adapter() first"
        )


def _refuse_shared(found: Sequence[Adapter]) -> None:
    owners: dict[int, str] = {}
    for adapter in found:
        for p in (adapter.down, adapter.up):
            if (other := owners.setdefault(id(p), adapter.path)) != adapter.path:
                raise ValueError(
                    f"{adapter.path} and {other} share a matrix of their adapters: Bi-LoRA needs "
                    "an adapter of its own for each layer"
                )


def squared_norms(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """``‖B A‖²`` (Frobenius) of each pair ``(A, B)``, without making the product; on the device.

    Args:
        pairs: matrices of any devices and dtypes; 16-bit ones are multiplied in 32 bits.

    >>> a, b = torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0], [0.0]])
    >>> squared_norms([(a, b)])
    [tensor(100.)]
    """
    alike: dict[object, list[int]] = {}
    for i, (a, b) in enumerate(pairs):
        alike.setdefault((a.shape, b.shape, a.dtype, b.dtype, a.device), []).append(i)
    found: dict[int, Tensor] = {}
    for rows in alike.values():
        a, b = (_wide(torch.stack([pairs[i][side] for i in rows])) for side in (0, 1))
        each = ((b.mT @ b) * (a @ a.mT)).sum((1, 2)).clamp_min(0.0)  # tr((BᵀB)(AAᵀ))
        found |= zip(rows, each.unbind(), strict=True)
    return [found[i] for i in range(len(pairs))]


def _wide(matrices: Tensor) -> Tensor:
    return matrices.float() if matrices.dtype in tensors.HALF else matrices
