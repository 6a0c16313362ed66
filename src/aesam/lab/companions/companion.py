"""Where the lab's loop can be extended: a companion goes with the optimizer through a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

import aesam


@dataclass(frozen=True, eq=False)
class Stage:
    """The run that a companion goes with.

    Args:
        net: the model that is trained, without any wrapper.
        opt: the optimizer that trains it.
        total_steps: of the whole run.
        steps_per_epoch: of each of its epochs.
        samples: how many it trains on.
        gather: a tensor of this process and those of all others, one below the other.
        own_loss: the mean loss of the model as it is on the samples that the method keeps for
            itself; only where its record says that it keeps any.
    """

    net: nn.Module
    opt: aesam.SharpnessAware
    total_steps: int
    steps_per_epoch: int
    samples: int
    gather: Callable[[Tensor], Tensor]
    own_loss: Callable[[], float]


class Companion:
    """A companion that does nothing, which is that of every method of the library.

    It is made with the settings of its method, told of the run by :meth:`begin`, and called by the
    loop. Every process of a run has one, and all of them must come to the same.

    >>> Companion().weights() is None, Companion().state_dict()
    (True, {})
    """

    #: What is evaluated in the place of the model's own weights, in words; empty if nothing is.
    evaluates = ""
    #: Whether :meth:`term` adds to the loss; only beside an optimizer without second gradients.
    adds_term = False
    #: Whether :meth:`epochs` may be fewer than the training says.
    ends_early = False

    def epochs(self, whole: int) -> int:
        """How many epochs the run has where its training says so many; asked before it begins."""
        return whole

    def begin(self, stage: Stage) -> None:
        """The run is about to begin, or to go on."""

    def rate(self, factor: float) -> float:
        """The factor on the learning rate where the schedule's, after its warm-up, is this."""
        return factor

    def term(self, logits: Tensor, rows: Tensor) -> Tensor:
        """What is added to the loss of these training samples; asked once for each in an epoch."""
        raise NotImplementedError(f"{type(self).__name__} adds no term to the loss")

    def after_step(self, step: int) -> None:
        """So many steps are done."""

    def after_epoch(self, epoch: int) -> None:
        """So many epochs are done, and nothing was evaluated yet after the last of them."""

    def weights(self) -> Sequence[Tensor] | None:
        """What is evaluated in the place of the model's parameters; None for these themselves."""
        return None

    def left_undone(self) -> str:
        """What a run that ends now was too short for, in words; empty if for nothing."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """What going on needs, in types that ``weights_only`` reads."""
        return {}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave; a ValueError or TypeError says what is wrong."""
        checked_keys("companion", saved, ())


def checked_keys(where: str, saved: object, names: Sequence[str]) -> dict[str, Any]:
    """A part of a checkpoint, if it has exactly these names."""
    found = cast("dict[str, Any]", saved) if isinstance(saved, dict) else {}
    if not isinstance(saved, dict) or found.keys() != set(names):
        raise TypeError(f"{where}: must have {', '.join(names) or 'nothing'}")
    return found


def checked_count(where: str, value: object, most: float = 2.0**63) -> int:
    """A number of a checkpoint that counts something."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise TypeError(f"{where} must be a count of at most {most:g}, got {value!r:.80}")
    return value


def checked_tensors(where: str, saved: object, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of a checkpoint, one for each of ``like``, brought to where those are."""
    found = cast("list[Any]", saved) if isinstance(saved, list) else []
    kinds = [(t.shape, t.dtype) if isinstance(t, Tensor) else None for t in found]
    if kinds != [(t.shape, t.dtype) for t in like]:
        raise TypeError(f"{where}: must be a tensor for each parameter of the model")
    return [t.to(p.device, copy=True) for t, p in zip(found, like, strict=True)]
