"""The paper's tables, figures and theorems by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from aesam.lab.errors import UsageError, unknown
from aesam.paper import (
    accuracy_tables,
    claims,
    convergence,
    lambdas,
    noise_curves,
    normality,
    setups,
)
from aesam.paper.cost import cost
from aesam.paper.finished import Find
from aesam.paper.outcome import Result
from aesam.paper.plan import Panel
from aesam.paper.setups import Options, Setup
from aesam.paper.theory import theorem

Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Entry:
    """A table, a figure or the theorems.

    Args:
        name: as it is asked for, `aesam reproduce NAME`.
        paper: what of the paper it is.
        shows: what is to be seen there.
        needs: for each preset what is trained, and how long it takes.
        knows: the options that mean something to it.
    """

    name: str
    paper: str
    shows: str
    needs: Mapping[str, str]
    knows: frozenset[str]

    def refuse_unknown(self, options: Options) -> None:
        """A flag that would change nothing here is a mistake, and is said to be one."""
        for name in options.given:
            if name not in self.knows:
                others = ", ".join(n for n, entry in ENTRIES.items() if name in entry.knows)
                raise UsageError(f"--{name} means nothing to {self.name}; it is for {others}")


@dataclass(frozen=True)
class Trained(Entry):
    """Made from training runs."""

    setups: Callable[[Options], list[Setup]]
    panels: Callable[[Options, Sequence[Setup]], list[Panel]]
    show: Callable[[Sequence[Panel], Find], Result]

    def searched(self, options: Options, found: Sequence[Setup]) -> list[tuple[Setup, list[str]]]:
        """Each setup with the methods that are shown on it: only theirs is to be searched."""
        panels = [(setup, self.panels(options, [setup])) for setup in found]
        return [
            (setup, [row.runs[0].method.name for panel in own for row in panel.rows])
            for setup, own in panels
        ]


@dataclass(frozen=True)
class Computed(Entry):
    """Computed at once, without runs that are kept."""

    make: Callable[[Options, Tell], Result]


_GPU = "GPUs"
_RUNS = frozenset({"seeds", "epochs", "tune", "data"})


def _sam_against_erm(
    name: str, paper: str, what: str, needs: Mapping[str, str], quantity: str
) -> Trained:
    """A curve over epochs that the same runs were measured for."""
    return Trained(
        name,
        paper,
        f"{what} over epochs, SAM against ERM",
        needs,
        _RUNS,
        partial(setups.architectures, data_sets=("cifar100",)),
        convergence.sam_against_erm,
        partial(convergence.show, quantity=quantity),
    )


_ENTRIES: list[Entry] = [
    Trained(
        "table-cifar",
        "Table 1",
        "accuracy and % SAM of the seven methods on clean labels",
        {
            "small": "2 networks on 400 digits, 42 runs, 3 minutes",
            "paper": f"CIFAR-10 and CIFAR-100, 4 networks, 280 runs and their search, {_GPU}",
        },
        _RUNS | {"controls"},
        setups.cifar,
        accuracy_tables.cifar_panels,
        partial(accuracy_tables.show, claimed=claims.TABLE_CIFAR),
    ),
    Trained(
        "table-imagenet",
        "Table 2",
        "accuracy and % SAM of the seven methods on ImageNet, ResNet-50",
        {
            "small": "ResNet-8 on 400 digits, 21 runs, 5 minutes",
            "paper": f"ImageNet in ROOT/folder, 21 runs of 90 epochs and a search of α, {_GPU}",
        },
        _RUNS | {"controls"},
        setups.imagenet,
        accuracy_tables.imagenet_panels,
        partial(accuracy_tables.show, claimed=claims.TABLE_IMAGENET),
    ),
    Trained(
        "table-noise",
        "Table 3",
        "accuracy and % SAM under label noise, with controls",
        {
            "small": "digits, 156 runs, 15 minutes; --data cifar10: hours",
            "paper": f"CIFAR-10, ResNet-18 and ResNet-32, 520 runs and their search, {_GPU}",
        },
        _RUNS | {"noise", "controls"},
        setups.noisy,
        accuracy_tables.noise_panels,
        partial(accuracy_tables.show, claimed=claims.TABLE_NOISE),
    ),
    Trained(
        "table-looksam-k",
        "Table 4",
        "LookSAM's k of 2, 3, 4 and 5 under label noise",
        {
            "small": "digits, 48 runs, 4 minutes",
            "paper": f"CIFAR-10, ResNet-18, 80 runs and their search, {_GPU}",
        },
        _RUNS | {"noise", "controls"},
        partial(setups.noisy, models=("resnet18",)),
        accuracy_tables.looksam_k_panels,
        accuracy_tables.show_k,
    ),
    _sam_against_erm(
        "fig-variance",
        "Figure 1",
        "variance of the gradient",
        {
            "small": "3 networks on 400 digits, 18 runs, 4 minutes",
            "paper": f"CIFAR-100, 3 networks, {_GPU}",
        },
        "gradient_variance",
    ),
    _sam_against_erm(
        "fig-squared-norm",
        "Figure 2",
        "mean squared norm of the stochastic gradient",
        {"small": "the runs of fig-variance", "paper": "the runs of fig-variance"},
        "mean_squared_norm",
    ),
    Trained(
        "fig-normality",
        "Figures 3, A1 and A2",
        "squared gradient norms of 400 mini-batches: histogram, Q–Q plot and a test",
        {
            "small": "3 networks on digits, 3 runs, 2 minutes",
            "paper": f"CIFAR-10 and CIFAR-100, 3 networks, {_GPU}",
        },
        _RUNS,
        partial(setups.architectures, data_sets=("cifar10", "cifar100"), subset=None),
        normality.panels,
        normality.show,
    ),
    Trained(
        "fig-noise-curves",
        "Figures 4, A3 and A4",
        "train and test accuracy over epochs under label noise, all methods",
        {"small": "the runs of table-noise", "paper": "the runs of table-noise"},
        _RUNS | {"noise"},
        setups.noisy,
        noise_curves.panels,
        noise_curves.show,
    ),
    Trained(
        "fig-lambda",
        "Figures 5, 6, A5 and A6",
        "λ1 ≤ λ2 from −2 to 2: % SAM and accuracy of AE-SAM and AE-LookSAM",
        {
            "small": "digits, 90 runs, 8 minutes",
            "paper": f"CIFAR-10, CIFAR-100 and 80 % noise, {_GPU}",
        },
        _RUNS | {"noise"},
        lambdas.where,
        lambdas.panels,
        lambdas.show,
    ),
    Trained(
        "fig-convergence",
        "Figures 7, A7 and A8",
        "squared norm of the full gradient and training loss, AE-SAM against SS-SAM",
        {
            "small": "3 networks on 400 digits, 18 runs, 4 minutes",
            "paper": f"CIFAR-10 and CIFAR-100, 3 networks, {_GPU}",
        },
        _RUNS,
        partial(setups.architectures, data_sets=("cifar10", "cifar100")),
        convergence.ae_sam_against_ss_sam,
        convergence.show_convergence,
    ),
    Computed(
        "theorem",
        "Theorems 1 and 2, corollaries, lemmas",
        "both sides of each bound on smooth problems, and where a bound fails",
        {"small": "a minute", "paper": "more steps and repetitions"},
        frozenset(),
        theorem,
    ),
    Computed(
        "cost",
        "Sections 2 and 4",
        "time of each method as a multiple of ERM's, alone and with two processes",
        {
            "small": "ResNet-8 on digits, a minute on an idle machine; --data cifar10: 7 minutes",
            "paper": f"CIFAR-10, ResNet-18, {_GPU}",
        },
        frozenset({"seeds", "epochs", "data"}),
        cost,
    ),
]
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def entry_of(name: str) -> Entry:
    """The entry with this name; an unknown one is refused with the near ones."""
    if name not in ENTRIES:
        raise unknown("entry", name, list(ENTRIES))
    return ENTRIES[name]
