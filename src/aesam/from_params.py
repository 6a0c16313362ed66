"""A method by name, for frameworks that make optimizers themselves: ``cls(params, **settings)``."""

import warnings
from functools import partial
from types import EllipsisType
from typing import Any

import torch
from torch import nn

from aesam._core.messages import MODEL_NOT_GIVEN, frames_to_user
from aesam.optimizer import SharpnessAware
from aesam.registry import make_by_name


class FromParams(torch.optim.Optimizer):
    """A method around an optimizer, made like the optimizers of torch: ``cls(params, **settings)``.

    For frameworks that make the optimizer themselves: ``optimizer=aesam.FromParams`` with
    ``optimizer__method="sam"`` in skorch, ``_target_: aesam.FromParams`` in Hydra,
    ``optimizer_cls_and_kwargs=(aesam.FromParams, {...})`` in Transformers. What is made is the
    method itself (an :class:`aesam.SAM`, say), as :func:`aesam.create` makes it.

    Args:
        params: parameters or groups of them, as every optimizer takes them; or the model, which
            stands for all its parameters and is then guarded too.
        method: one of :func:`aesam.list_methods`; ``"ae-sam"`` by default.
        optimizer: a name of ``torch.optim`` in any case, ``"sgd"`` by default, a class, or a
            ``functools.partial`` of one.
        model: the model that is trained, whose buffers the second pass must not change. Left out,
            there is a warning, since parameters alone do not tell whether it has BatchNorm; None
            says that there is nothing to guard.
        settings: settings of the method (``rho``, ``total_steps``, …) and arguments of the
            optimizer (``lr``, ``weight_decay``, …). Any other is refused.

    >>> net = nn.Linear(2, 1)
    >>> opt = FromParams(net.parameters(), method="sam", model=net, rho=0.1, lr=0.5, momentum=0.9)
    >>> type(opt).__name__, type(opt.base).__name__, opt.param_groups[0]["lr"]
    ('SAM', 'SGD', 0.5)
    """

    # A class, and one of torch's kind, because Transformers hands the parameters to those only.
    def __new__(  # pyright: ignore[reportInconsistentConstructor]  # none of it is ever initialised
        cls,
        params: Any,
        *,
        method: str = "ae-sam",
        optimizer: str | type[torch.optim.Optimizer] | partial[torch.optim.Optimizer] = "sgd",
        model: nn.Module | EllipsisType | None = ...,
        **settings: Any,
    ) -> SharpnessAware:
        """The method, ready to train."""
        if isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                "optimizer must be a name of torch.optim or a class, since the parameters are "
                f"given beside it, got a {type(optimizer).__name__} that is made already: wrap it, "
                "as in aesam.AESAM(optimizer, model)"
            )
        if isinstance(params, nn.Module):
            model = params if isinstance(model, EllipsisType) else model
            params = params.parameters()
        guarded = None if isinstance(model, EllipsisType) else model
        made = make_by_name(method, params, guarded, optimizer, settings)
        if isinstance(model, EllipsisType) and not made.policy.never_fires:
            warnings.warn(MODEL_NOT_GIVEN, stacklevel=frames_to_user())
        return made
