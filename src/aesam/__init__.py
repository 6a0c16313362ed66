"""Sharpness-aware training for PyTorch that takes the second gradient only where it pays."""

from aesam._core.ledger import StepRecord
from aesam.methods import AESAM, ESAM, SAM, SSSAM, AELookSAM, LookSAM
from aesam.optimizer import NonFiniteGradient, SharpnessAware
from aesam.parts import ascents, between, combine, controls, policies, samples
from aesam.wrappers import unwrap

__version__ = "0.1.0"

__all__ = [
    "AESAM",
    "ESAM",
    "SAM",
    "SSSAM",
    "AELookSAM",
    "LookSAM",
    "NonFiniteGradient",
    "SharpnessAware",
    "StepRecord",
    "__version__",
    "ascents",
    "between",
    "combine",
    "controls",
    "policies",
    "samples",
    "unwrap",
]
