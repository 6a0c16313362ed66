"""Who is calling: facts that a trainer or tool knows and does not say, read from the stack."""

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from aesam._core import messages

_DCP = "torch.distributed.checkpoint.state_dict"
_REACH = 8  # frames: wrappers, decorators and profilers stand between a caller and us
_OWN = "aesam."  # frames of ours are not counted: how we call ourselves is nobody's business


@dataclass(frozen=True)
class ScalerAbove:
    """An enabled GradScaler whose ``step`` is calling us, with the optimizer that it steps."""

    scaler: Any
    optimizer: Any

    def report_overflow(self) -> None:
        """Let the scaler see an overflow of the second pass, as if it were of the first."""
        states = self.scaler._per_optimizer_states[id(self.optimizer)]
        for found in states["found_inf_per_device"].values():
            found.fill_(1.0)


def scaler_above() -> ScalerAbove | None:
    """The enabled GradScaler whose ``step`` is calling us, or None."""
    frame = _calling("torch.amp.grad_scaler")
    while frame is not None and "optimizer" not in frame.f_locals:
        frame = frame.f_back
    scaler = None if frame is None else frame.f_locals.get("self")
    if scaler is None or not scaler.is_enabled():
        return None
    return ScalerAbove(scaler, frame.f_locals["optimizer"] if frame else None)


def refuse_accumulate(found: int) -> None:
    """Accelerate's ``accumulate()`` calls a closure for one micro-batch of several."""
    if found == 0 or _calling("accelerate.optimizer") is None:
        return
    steps = int(sys.modules["accelerate.state"].GradientState().num_steps)
    if found < steps:
        raise RuntimeError(messages.IN_ACCUMULATE.format(found=found, steps=steps))


def making_state() -> FrameType | None:
    """DCP's call of ``step``, with zeros in ``p.grad`` and ``lr``; it never makes another."""
    return _calling(_DCP)


def asks_for_names() -> bool:
    """Whether DCP is looking which names of a flattened state dict are this optimizer's."""
    caller = _calling(_DCP)
    return caller is not None and caller.f_code.co_name == "_unflatten_optim_state_dict"


def idle_writes() -> int:
    """How often a trainer has written to the gradients without changing them.

    Transformers' Trainer without ``max_grad_norm`` measures the norm by clipping to infinity.
    """
    frame = _calling("transformers.trainer")
    args = None if frame is None else getattr(frame.f_locals.get("self"), "args", None)
    return int(getattr(args, "max_grad_norm", None) == 0)


def _calling(module: str) -> FrameType | None:
    """The nearest frame of a module among our callers."""
    if module not in sys.modules:
        return None
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    left = _REACH
    while left:
        name = str(frame.f_globals.get("__name__"))
        if name == module:
            return frame
        if frame.f_back is None:
            return None
        frame = frame.f_back
        left -= not name.startswith(_OWN)
    return None
