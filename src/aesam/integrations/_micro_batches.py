"""The micro-batches of a trainer's step, kept in its first pass to be seen again in its second."""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# Inputs of trainers can be anything.

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from aesam._core.guards import RandomState
from aesam._core.tensors import version
from aesam._core.trees import mapped, tensors_in

NOT_REPEATABLE = """\
{trainer}.training_step does not prepare its inputs, so a second pass might not see those of the
first (other ones may be generated in it). Call self._prepare_inputs(inputs) in it, after whatever
makes them, or use {trainer} without SharpnessAwareMixin."""

WRITTEN_TO = """\
{trainer} writes to inputs[{name!r}] in place, so a second pass would not see those of the first:
let compute_loss or the model work on a copy."""

OTHER_INPUTS = """\
{trainer} gives the model other inputs in the second pass than in the first: it generates or draws
them in training_step or compute_loss. Make them in _prepare_inputs, which is called once for both
passes, or use {trainer} without SharpnessAwareMixin."""


@dataclass(frozen=True)
class Prepared:
    """Inputs as they were prepared, with the random state after that."""

    inputs: Any
    versions: Mapping[str, list[int]]
    random: RandomState


@dataclass
class MicroBatch:
    """What one call of ``training_step`` was given and saw.

    ``tokens`` are the whole numbers among the inputs of each forward; they do not depend on the
    weights, unless they were generated.
    """

    given: Any
    num_items: Any
    accumulation: int
    prepared: list[Prepared] = field(default_factory=list[Prepared])
    tokens: list[list[Tensor]] = field(default_factory=list[list[Tensor]])


class KeptMicroBatches:
    """The step under way, and the pass that is being made.

    Args:
        trainer: the name of its class, for errors.
    """

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self.first: MicroBatch | None = None
        self.second: MicroBatch | None = None
        self._handed_out = 0
        self._were_compared = False
        self.begin()

    def begin(self) -> None:
        """Forget the micro-batches so far: a step begins."""
        self.micro_batches: list[MicroBatch] = []
        self.loss: Any = 0.0

    @contextmanager
    def in_first(self, micro: MicroBatch, model: nn.Module) -> Generator[None]:
        """Around the first pass over a micro-batch, which is kept."""
        self.first = micro
        try:
            with _noting(micro.tokens, None if self._were_compared else model):
                yield
        finally:
            self.first = None
        if not micro.prepared:
            raise RuntimeError(NOT_REPEATABLE.format(trainer=self._trainer))
        for each in micro.prepared:
            now = _versions(each.inputs)
            changed = [name for name, before in each.versions.items() if now[name] != before]
            if changed:
                raise RuntimeError(WRITTEN_TO.format(trainer=self._trainer, name=changed[0]))
        self.micro_batches.append(micro)

    @contextmanager
    def in_second(self, micro: MicroBatch, model: nn.Module) -> Generator[None]:
        """Around the second pass over it; the first one of all is compared with its first pass."""
        self.second, self._handed_out = micro, 0
        seen: list[list[Tensor]] = []
        try:
            with _noting(seen, None if self._were_compared else model):
                yield
        finally:
            self.second = None
        if not self._were_compared and not _are_equal(seen, micro.tokens):
            raise RuntimeError(OTHER_INPUTS.format(trainer=self._trainer))

    def end_of_second(self) -> None:
        """One step was compared; the others are made in the same way."""
        self._were_compared = True

    def prepared(self, prepare: Callable[[], Any], params: Iterable[Tensor]) -> Any:
        """What ``prepare`` returns: kept in the first pass, handed out again in the second.

        What it generated or drew is not made again; what is drawn after it is drawn again.
        """
        if self.second is not None:
            if self._handed_out == len(self.second.prepared):
                raise RuntimeError(OTHER_INPUTS.format(trainer=self._trainer))
            again = self.second.prepared[self._handed_out]
            self._handed_out += 1
            again.random.restore()
            return again.inputs
        inputs = prepare()
        if self.first is not None:
            random = RandomState({p.device for p in params})
            kept = _own(inputs)
            self.first.prepared.append(Prepared(kept, _versions(kept), random))
        return inputs


def _own(inputs: Any) -> Any:
    """The same tensors in containers of their own, from which a loss may pop what it likes."""
    return mapped(inputs, lambda tensor: tensor)


def _versions(inputs: Any) -> dict[str, list[int]]:
    """How often each tensor was written to, by the name of its input."""
    named = inputs if isinstance(inputs, Mapping) else {"inputs": inputs}
    return {
        str(name): [version(tensor) for tensor in tensors_in(value)]
        for name, value in named.items()
    }


@contextmanager
def _noting(tokens: list[list[Tensor]], model: nn.Module | None) -> Generator[None]:
    """Note the whole numbers that each forward with gradients is given; none without a model."""
    if model is None:
        yield
        return

    def note(_: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled():
            given = tensors_in((args, kwargs))
            tokens.append([t for t in given if not (t.is_floating_point() or t.is_complex())])

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _are_equal(left: list[list[Tensor]], right: list[list[Tensor]]) -> bool:
    shapes = [[[t.shape for t in tensors] for tensors in side] for side in (left, right)]
    pairs = [
        (a, b)
        for one, two in zip(left, right, strict=False)
        for a, b in zip(one, two, strict=False)
    ]
    return shapes[0] == shapes[1] and all(torch.equal(a, b) for a, b in pairs)
