"""Who is compared: methods with what is fixed of their settings; the rest is searched for each.

The list is written before the runs are made.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aesam.lab.errors import unknown


@dataclass(frozen=True)
class Contender:
    """One row: a method, and the settings that make this row of it.

    Args:
        name: what files and commands call the row; a method may have several.
        method: the method's name.
        fixed: settings that are given; those that the method's record says to search and that are
            not here are searched.
        length: epochs as a multiple of the bench's, 1 by default.
        training: settings of the training that are searched for this row, with the values to begin
            with; none by default. ``length``, ``lr`` and ``weight_decay`` are multiples of the
            bench's.
        label: what readers call it, where that does not follow from its method and settings.
    """

    name: str
    method: str
    fixed: Mapping[str, float] = field(default_factory=dict[str, float])
    length: float = 1.0
    training: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    label: str = ""


def _as_named(*names: str) -> tuple[Contender, ...]:
    return tuple(Contender(name, name) for name in names)


#: λ of (−1, 1) and k = 2, which is half of the steps: the paper's settings under label noise.
HALF = {"lambda1": -1.0, "lambda2": 1.0}

#: The paper's seven, as it sets them under label noise.
PAPER = (
    *_as_named("erm", "sam", "esam", "ss-sam", "ae-sam"),
    Contender("looksam", "looksam", {"k": 2}),
    Contender("ae-looksam", "ae-looksam", HALF),
)

#: What the paper's are set against at the same cost: other triggers, and no trigger at all.
CONTROLS = (
    Contender("erm-long", "erm", length=2.0),
    Contender(
        "erm-early",
        "erm",
        training={"length": (0.0625, 0.125, 0.25, 0.5)},
        label="ERM, stopped early",
    ),
    Contender(
        "erm-decay",
        "erm",
        training={"weight_decay": (1.0, 4.0, 16.0, 64.0)},
        label="ERM, weight decay",
    ),
    Contender(
        "erm-smooth",
        "erm",
        training={"label_smoothing": (0.1, 0.2, 0.4, 0.8)},
        label="ERM, label smoothing",
    ),
    Contender(
        "erm-tuned",
        "erm",
        training={
            "length": (0.0625, 0.125, 0.25, 0.5),
            "lr": (0.5, 1.0, 2.0),
            "weight_decay": (1.0, 4.0, 16.0, 64.0),
            "label_smoothing": (0.0, 0.1, 0.2, 0.4, 0.8),
        },
        label="ERM, all tuned",
    ),
    *_as_named("late-sam", "matched-sam", "inverted-sam"),
    Contender("matched-looksam", "matched-looksam", HALF),
    Contender("inverted-looksam", "inverted-looksam", HALF),
)

#: The adaptive trigger and its like at a cost that is set, and rules that are cheaper still.
CHEAP = (
    Contender("ae-sam-20", "ae-sam", {"budget": 0.2}),
    Contender("ae-looksam-20", "ae-looksam", {"budget": 0.2}),
    Contender("ss-sam-25", "ss-sam", {"p": 0.25}),
    Contender("looksam-5", "looksam", {"k": 5}),
    Contender("looksam-10", "looksam", {"k": 10}),
    Contender("looksam-20", "looksam", {"k": 20}),
    Contender("looksam-50", "looksam", {"k": 50}),
    *_as_named("sub-sam", "k-sam", "msam", "stale-sam"),
    Contender("msam-uphill", "msam", {"uphill": True}),
)

#: Other methods of two gradients a step.
VARIANTS = (
    *_as_named("asam", "fisher-sam", "gnp", "f-sam", "vasso", "gsam", "wsam", "sam-on"),
    Contender("functional-sam", "functional-sam"),
    Contender(
        "le-sam", "le-sam", {"rho": 4.0}
    ),  # its radius follows from the rise that is searched
)


@dataclass(frozen=True)
class TriggerGroup:
    """Triggers of one cost, and of one use of the steps that they leave out.

    Args:
        title: what readers call it.
        rows: by what readers call each trigger; the others are compared with the first.
    """

    title: str
    rows: Mapping[str, Contender]

    @property
    def ours(self) -> Contender:
        """The adaptive trigger."""
        return next(iter(self.rows.values()))

    @property
    def others(self) -> dict[str, Contender]:
        """What it is compared with, by what readers call it."""
        return {label: c for label, c in self.rows.items() if c is not self.ours}


def _group(title: str, mark: str, **rows: tuple[str, Mapping[str, float]]) -> TriggerGroup:
    made = {
        label.replace("_", " "): Contender(f"{label.replace('_', '-')}{mark}", method, fixed)
        for label, (method, fixed) in rows.items()
    }
    return TriggerGroup(title, made)


#: The threshold above which a fifth of a normal distribution lies: a coin at that rate.
_FIFTH = {"lambda1": 0.8416212335729143, "lambda2": 0.8416212335729143}

#: The paper's schedule λ of (−1, 1), with c as much higher as makes a coin take the 48 and 43 % of
#: the steps that AE-SAM and AE-LookSAM take with it on digits with 40 % wrong labels: squared norms
#: have a long tail, so that fewer of them are above a threshold than of a normal distribution.
_AE_SHARE = {"lambda1": -0.947, "lambda2": 1.053}
_AE_LOOK_SHARE = {"lambda1": -0.784, "lambda2": 1.216}

#: One trigger against another at equal cost, each with a radius (and a weight of the reused
#: direction) of its own. The first three groups have one rate all the time; in the others the
#: triggers have the paper's schedule, few second gradients at first and many at the end, and stand
#: against coins with that schedule, as often as they come out and as often as was meant, and
#: against half of the steps at one rate.
TRIGGER_GROUPS = (
    _group(
        "half of the steps, no reuse",
        "",
        adaptive=("ae-sam", {"budget": 0.5}),
        coin=("ss-sam", {"p": 0.5}),
        periodic=("looksam", {"k": 2, "alpha": 0.0}),
        inverted=("inverted-sam", {"budget": 0.5}),
    ),
    _group(
        "half of the steps, reuse",
        "-reuse",
        adaptive=("ae-looksam", {"budget": 0.5}),
        coin=("matched-looksam", {"lambda1": 0.0, "lambda2": 0.0}),
        periodic=("looksam", {"k": 2}),
        inverted=("inverted-looksam", {"budget": 0.5}),
    ),
    _group(
        "a fifth of the steps, reuse",
        "-reuse-20",
        adaptive=("ae-looksam", {"budget": 0.2}),
        coin=("matched-looksam", _FIFTH),
        periodic=("looksam", {"k": 5}),
        inverted=("inverted-looksam", {"budget": 0.2}),
    ),
    _group(
        "the paper's rule, no reuse",
        "-paper",
        adaptive=("ae-sam", HALF),
        coin=("matched-sam", _AE_SHARE),
        coin_at_half=("matched-sam", HALF),
        coin_at_one_rate=("ss-sam", {"p": 0.5}),
        inverted=("inverted-sam", HALF),
    ),
    _group(
        "the paper's rule, reuse",
        "-paper-reuse",
        adaptive=("ae-looksam", HALF),
        coin=("matched-looksam", _AE_LOOK_SHARE),
        coin_at_half=("matched-looksam", HALF),
        periodic=("looksam", {"k": 2}),
        inverted=("inverted-looksam", HALF),
    ),
)
TRIGGERS = tuple(row for group in TRIGGER_GROUPS for row in group.rows.values())

#: A coin on ever fewer steps, each with a radius of its own: how far a larger radius makes up for
#: second gradients that were not taken. ``coin`` and ``ss-sam-25`` belong to them too.
SHARES = (
    Contender("ss-sam-40", "ss-sam", {"p": 0.4}),
    Contender("ss-sam-33", "ss-sam", {"p": 1 / 3}),
    Contender("ss-sam-12", "ss-sam", {"p": 0.125}),
)

#: Other ways to flat minima that the paper cites; most cost one gradient a step. An average of the
#: weights, and SWAD, whose end is found on samples that it holds out, are strong controls too.
CITED = _as_named("ema", "swa", "swad", "entropy-sgd", "saf", "mesa", "lpf-sgd", "anti-pgd")

ALL = (*PAPER, *CONTROLS, *CHEAP, *VARIANTS, *CITED)

#: Everybody that a command may ask for, by name.
CONTENDERS: dict[str, Contender] = {c.name: c for c in (*ALL, *TRIGGERS, *SHARES)}

#: Who is compared where a run takes a minute, and why; fixed before any of these runs was made.
FINALISTS: dict[str, str] = {
    "erm": "what everything is a multiple of",
    "sam": "what everything is measured against",
    "erm-early": "a strong and cheap control: a noise table without it shows who memorises least",
    "ss-sam": "a coin on half of the steps: what any trigger of that cost must beat",
    "ae-sam": "the paper's first method",
    "ae-looksam": "the paper's second method",
    "sub-sam": "SAM's rule at 1.125 batches a step, the first of two candidates for the target",
    "looksam-10": "sparse reuse at 1.1 batches a step, the second",
    "msam": "one gradient a step, the cheapest that moves the weights at all",
    "ae-sam-20": "the adaptive trigger at a cost that is set, 1.2 batches a step",
}

#: Drawn in beside them: plain training that takes as long as SAM, and plain training whose usual
#: remedies against overfitting are all tuned, as SAM's radius is.
BESIDE = ("erm-long", "erm-tuned")


def named(names: Iterable[str]) -> tuple[Contender, ...]:
    """The rows with these names, each once; an unknown one is refused with the near ones."""
    for name in names:
        if name not in CONTENDERS:
            raise unknown("row", name, list(CONTENDERS))
    return tuple(CONTENDERS[name] for name in dict.fromkeys(names))
