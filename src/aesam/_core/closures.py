"""The two kinds of function that ``step`` accepts, and what a second pass is given."""

import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aesam._core import tensors
from aesam._core.backwards import Backwards
from aesam.parts.samples import Samples

LOSSES_EXAMPLE = """\
    def losses(rows=None):
        i = slice(None) if rows is None else rows
        return F.cross_entropy(model(x[i]), y[i], reduction="none")
    loss = opt.step(losses)"""


#: Rows from the losses at ``w`` and at ``w + ε``.
Choose = Callable[[Tensor, Tensor], Tensor]


class Perturbed:
    """The place ``w + ε``, where rows of the mini-batch can be chosen."""

    def __init__(self, choose: Choose, losses: Tensor | None, rewind: Callable[[], None]) -> None:
        self._choose = choose
        self._before = losses
        self._rewind = rewind
        #: The loss here, for ``opt.health()``: closures tell it, a loop that owns its passes may.
        self.loss: Tensor | float | None = None

    def rows(self, losses: Callable[..., Tensor] | Tensor) -> Any:
        """The rows for the second gradient: all of them unless the method selects.

        ``losses`` is the function of per-sample losses, called once without gradient at ``w + ε``,
        or the tensor of what it returned there.
        """
        if self._before is None:
            return slice(None)
        if isinstance(losses, Tensor):
            after = per_sample_losses(losses).detach()
        else:
            with torch.no_grad():
                after = per_sample_losses(losses())
            self._rewind()  # the second gradient sees the same random numbers as the selection
        if after.shape != self._before.shape:
            raise ValueError(
                f"losses at w + ε must be of the samples that losses at w were of: got "
                f"{after.numel()} of them, then {self._before.numel()}"
            )
        return self._choose(self._before, after)


class LossesClosure:
    """Both passes with a function of per-sample losses: clear, average and backpropagate."""

    def __init__(
        self,
        losses: Callable[..., Tensor],
        zero_grad: Callable[[], None],
        scaler: torch.amp.GradScaler | None,
        samples: Samples,
        rows_name: str,
    ) -> None:
        self._losses = losses
        self._rows_name = rows_name
        self._zero_grad = zero_grad
        self._scaler = scaler
        self._samples = samples
        self._chosen: Tensor | None = None
        self._mean: Tensor | None = None
        self.losses: Tensor | None = None

    def look(self) -> None:
        """Before the first pass, where both are of rows that their losses choose."""
        if self._samples.looks_first:
            with torch.no_grad():
                every = per_sample_losses(self._losses())
            self._mean = every.mean()
            self._chosen = self._samples.rows_at_first(every)

    def first_passes(self) -> list[Callable[[], Tensor]]:
        """One, or one for each split of the rows; the last gives the loss."""
        splits = self._samples.splits
        return [self._first] if splits == 1 else [partial(self._split, i) for i in range(splits)]

    def _split(self, index: int) -> Tensor:
        if index == 0:
            self._zero_grad()
        splits = self._samples.splits
        own = self._of(slice(index, None, splits), f"one of {splits} splits")
        mean = self._backward(own, 1.0 / splits) / splits
        self._mean = mean if index == 0 or self._mean is None else self._mean + mean
        return self._mean

    def _first(self) -> Tensor:
        self._zero_grad()
        per_sample = self._of(self._samples.first_rows if self._chosen is None else self._chosen)
        self.losses = per_sample.detach()
        mean = self._backward(per_sample)
        return mean if self._mean is None else self._mean

    def second(self, at: Perturbed) -> Tensor:
        rows = at.rows(self._losses) if self._samples.selects_rows else self._chosen
        return self._backward(self._of(rows))

    def _of(self, rows: Any, of: str = "the batch") -> Tensor:
        some = {} if rows is None else {self._rows_name: rows}
        return per_sample_losses(self._losses(**some), of)

    def _backward(self, per_sample: Tensor, share: float = 1.0) -> Tensor:
        mean = per_sample.mean()
        part = mean if share == 1.0 else mean * share
        scaled = part if self._scaler is None else self._scaler.scale(part)
        scaled.backward()  # pyright: ignore[reportUnknownMemberType]
        return mean.detach()


class Traces:
    """What gradients were there before a closure, to see whether it made any."""

    def __init__(self, params: Sequence[Tensor], backwards: Backwards) -> None:
        self._backwards, self._events = backwards, backwards.events
        self._first = next((i for i, p in enumerate(params) if p.grad is not None), None)
        if self._first is not None:
            held: Any = params[self._first].grad
            self._was, self._version = weakref.ref(held), tensors.version(held)

    def are_left_by(self, params: Sequence[Tensor]) -> bool:
        """Whether a backward ran since, or gradients were written by hand."""
        if not any(p.grad is not None for p in params):
            return False
        if self._backwards.events != self._events or self._first is None:
            return True
        now: Any = params[self._first].grad
        return now is not self._was() or tensors.version(now) != self._version


def passes_of(
    closure: Callable[..., Any],
    samples: Samples,
    zero_grad: Callable[[], None],
    scaler: torch.amp.GradScaler | None,
    method: str,
    in_forward: bool = False,
) -> LossesClosure | None:
    """The passes with a function of per-sample losses, which takes ``rows``.

    None for a plain closure, which clears, computes the loss and backpropagates it itself. Where
    rows are chosen in the model's forward (``in_forward``) it will do.
    """
    if not callable(closure):
        raise TypeError(
            f"step(closure) takes a function that computes the loss and backpropagates it, got "
            f"{closure!r} of type {type(closure).__name__}"
        )
    rows_name = _rows_name(closure, any_name=samples.needs_losses)
    if rows_name is not None:
        return LossesClosure(closure, zero_grad, scaler, samples, rows_name)
    if samples.needs_losses and not in_forward:
        splits = samples.splits
        why = "selects samples" if splits == 1 else f"takes the gradients of {splits} splits"
        raise TypeError(f"{method} {why}, so it needs their losses:\n{LOSSES_EXAMPLE}")
    return None


def _rows_name(closure: Callable[..., Any], any_name: bool) -> str | None:
    """The argument of ``closure`` that takes rows: the one of that name, or the first of any."""
    try:
        parameters = inspect.signature(closure).parameters.values()
    except (TypeError, ValueError):  # a callable without a readable signature
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [p.name for p in parameters if p.kind in named]
    if "rows" in names:
        return "rows"
    return names[0] if names and any_name else None


def per_sample_losses(losses: object, of: str = "the batch") -> Tensor:
    """``losses`` if it is one number per sample ``of`` it, or an error that shows the protocol."""
    if not isinstance(losses, Tensor) or losses.dim() != 1 or losses.numel() == 0:
        found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else repr(losses)
        raise TypeError(
            f"losses must be a tensor with one loss per sample of {of}, got {found}:\n"
            f"{LOSSES_EXAMPLE}"
        )
    return losses
