"""Methods that only the lab has: the library's step, and a companion of it in the lab's loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from aesam import ERM
from aesam.lab.companions.averages import ExponentialAverage, StochasticAverage
from aesam.lab.companions.companion import Companion
from aesam.lab.companions.dense_average import DenseAverage
from aesam.lab.companions.earlier_outputs import EarlierOutputs
from aesam.lab.companions.early_end import EarlyEnd
from aesam.lab.companions.entropy_sgd import AtAnchor, entropy_sgd
from aesam.mesa import TEMPERATURE
from aesam.registry import OF_THE_LAB, MethodRecord, Registry, Setting

EMA_DECAY = Setting(
    "ema_decay",
    0.99,
    "what is kept of the averaged weights at each step",
    symbol="d",
    allowed="between 0 and 1",
    grid=(0.9, 0.99, 0.999),
    least=0.0,
    most=1.0,
    is_open=True,
)
AVERAGE_AFTER = Setting(
    "average_after",
    0.75,
    "share of training before the first epoch whose weights are averaged",
    allowed="0 to 1",
    least=0.0,
    most=1.0,
)
RATE_FLOOR = Setting(
    "rate_floor",
    0.1,
    "share of its highest value that the learning rate never falls below",
    allowed="0 to 1",
    grid=(0.05, 0.1, 0.2, 0.5),
    least=0.0,
    most=1.0,
)
OPTIMUM_PATIENCE = Setting(
    "optimum_patience",
    3,
    "the start is an epoch whose loss is the least of so many from it on",
    symbol="N_s",
    allowed="≥ 1",
    least=1,
)
OVERFIT_PATIENCE = Setting(
    "overfit_patience",
    6,
    "the end is before so many epochs in a row with losses above the threshold",
    symbol="N_e",
    allowed="≥ 1",
    least=1,
)
TOLERANCE = Setting(
    "tolerance",
    1.3,
    "the threshold as a multiple of the mean loss at the start",
    symbol="r",
    allowed="≥ 1",
    grid=(1.1, 1.3, 1.6),
    least=1.0,
)
OWN_HOLDOUT = Setting(
    "own_holdout",
    0.1,
    "share of the training samples that it keeps to choose by and does not train on",
    allowed="between 0 and 1",
    least=0.0,
    most=1.0,
    is_open=True,
)
INNER_STEPS = Setting(
    "inner_steps", 20, "Langevin steps to one step of w", symbol="L", allowed="≥ 1", least=1
)
INNER_LR = Setting(
    "inner_lr",
    0.1,
    "learning rate of the Langevin steps",
    symbol="η′",
    allowed="> 0",
    grid=(0.1, 0.2, 0.5, 1.0),
    least=0.0,
    is_open=True,
)
SCOPE = Setting(
    "scope",
    1e-4,
    "how strongly the Langevin steps are drawn back to w",
    symbol="γ",
    allowed="≥ 0",
    grid=(1e-4, 1e-3, 1e-2, 1e-1),
    least=0.0,
)
SCOPING = Setting(
    "scoping",
    1e-3,
    "by which share γ grows at each step of w",
    symbol="γ1",
    allowed="≥ 0",
    least=0.0,
)
INNER_NOISE = Setting(
    "inner_noise", 1e-4, "noise of the Langevin steps", symbol="ε", allowed="≥ 0", least=0.0
)
INNER_AVERAGE = Setting(
    "inner_average",
    0.75,
    "weight of the newest w' in their mean",
    symbol="α",
    allowed="> 0, ≤ 1",
    least=0.0,
    most=1.0,
)
OUTER = Setting(
    "outer",
    1.0,
    "what w − ⟨w'⟩ is multiplied by to be a gradient: γ in the paper, 1 in its authors' program",
    symbol="s",
    allowed="> 0",
    least=0.0,
    is_open=True,
)
WEIGHT = Setting(
    "weight",
    0.3,
    "weight of the difference to earlier outputs",
    symbol="λ",
    allowed="≥ 0",
    grid=(0.1, 0.3, 0.8, 2.0),
    least=0.0,
)
EPOCHS_BACK = Setting(
    "epochs_back",
    3,
    "how many epochs ago the earlier outputs are of",
    symbol="E",
    allowed="≥ 1",
    least=1,
)
WAIT_EPOCHS = Setting(
    "wait_epochs", 5, "epochs before outputs are compared", allowed="≥ 0", least=0
)

LENGTH = Setting(
    "length",
    0.125,
    "share of the epochs after which the training ends",
    allowed="> 0, ≤ 1",
    grid=(0.0625, 0.125, 0.25, 0.5),
    least=0.0,
    most=1.0,
)


@dataclass(frozen=True)
class OwnMethod:
    """A method that only the lab has.

    Args:
        record: what is known of it, as of a method of the library; its ``make`` gives the optimizer
            that the loop steps with.
        companion: makes its companion of the method's settings.
        where: what it does in the loop, in a few words, in the place of a method's parts.
        keeps: the setting that says which share of the training samples it keeps for itself, to
            choose by; empty, the default, where it keeps none.
    """

    record: MethodRecord
    companion: Callable[..., Companion]
    where: str
    keeps: str = ""


_OWN = Registry[OwnMethod]("method of the lab")


def list_own_methods() -> list[str]:
    """The names of the methods that only the lab has."""
    return _OWN.names()


def own_method(name: str) -> OwnMethod:
    """What is known of one of them."""
    return _OWN[name]


def _beside_the_plain_step(companion: type[Companion]) -> Callable[..., ERM]:
    """Makes the base optimizer alone; all settings are the companion's."""

    def make(base: torch.optim.Optimizer, model: nn.Module | None = None, **_: Any) -> ERM:
        return ERM(base, model)

    make.__doc__ = companion.__doc__
    return make


def _register(
    name: str,
    label: str,
    companion: type[Companion],
    *settings: Setting,
    rule: str,
    cost: str,
    where: str,
    paper: str,
    keeps: str = "",
    make: Callable[..., ERM] | None = None,
) -> None:
    """Of a method whose optimizer is not the plain one, ``make`` gives it, from a seed too."""
    if name not in OF_THE_LAB:
        raise ValueError(f"{name!r} must be one of the lab's names, {', '.join(OF_THE_LAB)}")
    record = MethodRecord(
        name,
        label,
        make or _beside_the_plain_step(companion),
        settings,
        paper,
        rule,
        cost,
        needs_seed=make is not None,
    )
    _OWN.add(name, OwnMethod(record, companion, where, keeps))


_register(
    "ema",
    "EMA",
    ExponentialAverage,
    EMA_DECAY,
    rule="m ← d m + (1−d) w after every step; m is evaluated, its BatchNorm statistics made anew",
    cost="1 gradient a step",
    where="averages w after a step",
    paper="Polyak and Juditsky 1992",
)
_register(
    "swa",
    "SWA",
    StochasticAverage,
    RATE_FLOOR,
    AVERAGE_AFTER,
    rule="the mean of w at the end of each late epoch is evaluated, its BatchNorm statistics made "
    "anew; the learning rate stays at its floor",
    cost="1 gradient a step",
    where="averages w after an epoch, keeps the rate up",
    paper="Izmailov et al. 2018",
)
_register(
    "swad",
    "SWAD",
    DenseAverage,
    TOLERANCE,
    OPTIMUM_PATIENCE,
    OVERFIT_PATIENCE,
    OWN_HOLDOUT,
    rule="the mean of w after every step from epoch s to epoch e is evaluated, its BatchNorm "
    "statistics made anew. With l_i the loss on samples of its own after epoch i: s is the first "
    "with l_s = min(l_s … l_{s+N_s−1}); e is followed by the first N_e losses in a row above "
    "r · mean(l_s … l_{s+N_s−1})",
    cost="1 gradient a step, on fewer samples",
    where="averages w after a step, keeps samples to choose by",
    paper="Cha et al. 2021",
    keeps=OWN_HOLDOUT.name,
)
_register(
    "entropy-sgd",
    "Entropy-SGD",
    AtAnchor,
    SCOPE,
    INNER_LR,
    INNER_STEPS,
    SCOPING,
    INNER_NOISE,
    INNER_AVERAGE,
    OUTER,
    rule="w' ← w' − η′(g(w') + γ(w' − w)) + √η′ ε ξ and ⟨w'⟩ ← (1−α)⟨w'⟩ + α w' on L batches, "
    "both from w on; then d = s (w − ⟨w'⟩), s = γ in the paper, 1 in its authors' program; w is "
    "evaluated",
    cost="L gradients a step of w, each of a batch of its own: as many in an epoch as ever",
    where="a step in L batches",
    paper="Chaudhari et al. 2017",
    make=entropy_sgd,
)
_register(
    "saf",
    "SAF",
    EarlierOutputs,
    WEIGHT,
    TEMPERATURE,
    EPOCHS_BACK,
    WAIT_EPOCHS,
    rule="L + λ τ² KL(p_past ‖ p_now), p = softmax(logits/τ), p_past of the same sample E epochs "
    "ago",
    cost="1 gradient a step",
    where="adds a term to the loss",
    paper="Du et al. 2022",
)
_register(
    "erm-early",
    "ERM, stopped early",
    EarlyEnd,
    LENGTH,
    rule="w ← w − η g(w) for a share of the epochs, within which η falls to its end",
    cost="1 gradient a step, on a share of the steps",
    where="ends after a share of the epochs",
    paper="Li, Soltanolkotabi and Oymak 2020",
)
