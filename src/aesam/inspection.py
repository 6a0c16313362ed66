"""Looking at a running optimizer: through the wrappers of trainers, and in numbers for a logger."""

from torch import Tensor

from aesam.optimizer import SharpnessAware
from aesam.parts import checks


def unwrap(optimizer: object) -> SharpnessAware:
    """The :class:`SharpnessAware` inside Accelerate's, Lightning's or Fabric's wrapper.

    Lightning's and Fabric's wrappers claim to be instances of it themselves; this is the real one.

    Args:
        optimizer: one of ours, or a wrapper that has one in its ``optimizer``, however deep.

    >>> import torch
    >>> from aesam import SAM
    >>> opt = SAM(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
    >>> unwrap(opt) is opt
    True
    """
    found = optimizer
    while (inner := getattr(found, "optimizer", None)) is not None:
        found = inner
    if not isinstance(found, SharpnessAware):
        raise TypeError(
            f"there is no sharpness-aware optimizer inside this {type(optimizer).__name__}, only "
            f"a {type(found).__name__}"
        )
    return found


def metrics(
    optimizer: object, loss: float | Tensor | None = None, *, prefix: str = ""
) -> dict[str, float]:
    """What a logger is told of the last step: a flat dict of numbers, under names of their own.

    ``percent_sam`` (the share of steps so far with a second gradient, 0…100) and
    ``skipped_steps``; after the first step ``squared_norm`` (``‖g‖²`` at ``w``) and, where the
    policy has them, ``mean`` (μ) and ``threshold``; with ``compensate`` and on a step that took a
    second gradient ``radius_factor``; of second gradients ``percent_rise`` of the loss at
    ``w + ε``, ``cosine``, ``bend`` and ``percent_time`` (see ``opt.health()``). What is not known
    is left out.

    Args:
        optimizer: one of ours, or a trainer's wrapper around it (see :func:`unwrap`).
        loss: told as ``loss``, a number or a tensor with one; None (default) leaves it out.
        prefix: put before every name, such as ``"train/"``; empty by default.

    >>> import torch
    >>> from aesam import SAM
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = SAM(torch.optim.SGD([w], lr=0.1))
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = w.square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> told = metrics(opt, opt.step(closure))
    >>> told["loss"], told["percent_sam"], told["squared_norm"], round(told["percent_rise"], 1)
    (12.5, 100.0, 25.0, 2.0)
    """
    found = unwrap(optimizer)
    seen, health = found.last_step, found.health()
    told = {
        "loss": None if loss is None else _one_number(loss),
        "percent_sam": 100.0 * found.sam_fraction,
        "squared_norm": None if seen is None else seen.squared_norm,
        "mean": None if seen is None else seen.mean,
        "threshold": None if seen is None else seen.threshold,
        "radius_factor": None if seen is None or found.compensate is None else seen.radius_factor,
        "skipped_steps": float(found.skipped_steps),
        "percent_rise": None if health.rise is None else 100.0 * health.rise,
        "cosine": health.cosine,
        "bend": health.bend,
        "percent_time": None if health.time_share is None else 100.0 * health.time_share,
    }
    return {prefix + name: value for name, value in told.items() if value is not None}


def _one_number(loss: float | Tensor) -> float:
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise ValueError(f"loss must be one number, got a tensor of shape {tuple(loss.shape)}")
    return checks.real("loss", loss.item() if isinstance(loss, Tensor) else loss, "one number")
