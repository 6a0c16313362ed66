"""Sharpness-aware training for PyTorch, at a cost you choose."""

from aesam import parts, sharpness
from aesam._core.health import Health
from aesam._core.ledger import StepRecord
from aesam.bi_lora import BiLoRA
from aesam.fewer_rows import KSAM, SubSAM
from aesam.from_params import FromParams
from aesam.functional import FunctionalSAM
from aesam.inspection import metrics, unwrap
from aesam.mesa import MESA
from aesam.methods import AESAM, ERM, ESAM, SAM, SSSAM, AELookSAM, LookSAM
from aesam.noisy import LPFSGD, AntiPGD
from aesam.optimizer import NonFiniteGradient, SharpnessAware
from aesam.parts import (
    Ascent,
    Between,
    Combine,
    Decision,
    Direction,
    Gradient,
    Memory,
    Observation,
    Policy,
    Samples,
)
from aesam.registry import (
    MethodRecord,
    Setting,
    create,
    list_methods,
    method_record,
    register_method,
)
from aesam.searching.function import SearchResult, search
from aesam.searching.widening import Trial
from aesam.single_gradient import MSAM, StaleSAM
from aesam.together import Together
from aesam.variants import ASAM, FSAM, GNP, GSAM, LESAM, SAMON, WSAM, FisherSAM, VaSSO

__version__ = "0.1.0"

__all__ = [
    "AESAM",
    "ASAM",
    "ERM",
    "ESAM",
    "FSAM",
    "GNP",
    "GSAM",
    "KSAM",
    "LESAM",
    "LPFSGD",
    "MESA",
    "MSAM",
    "SAM",
    "SAMON",
    "SSSAM",
    "WSAM",
    "AELookSAM",
    "AntiPGD",
    "Ascent",
    "Between",
    "BiLoRA",
    "Combine",
    "Decision",
    "Direction",
    "FisherSAM",
    "FromParams",
    "FunctionalSAM",
    "Gradient",
    "Health",
    "LookSAM",
    "Memory",
    "MethodRecord",
    "NonFiniteGradient",
    "Observation",
    "Policy",
    "Samples",
    "SearchResult",
    "Setting",
    "SharpnessAware",
    "StaleSAM",
    "StepRecord",
    "SubSAM",
    "Together",
    "Trial",
    "VaSSO",
    "__version__",
    "create",
    "list_methods",
    "method_record",
    "metrics",
    "parts",
    "register_method",
    "search",
    "sharpness",
    "unwrap",
]
