"""One number from the curve of each run, so that curves can be tested by seed."""

from collections.abc import Callable

import numpy as np

from aesam.lab.show import FinishedRun, MethodRow
from aesam.lab.show.curves import over_epochs
from aesam.paper.claims import Quantity

SMALLEST = 1e-12  # a loss of zero has no logarithm
FEWEST = 8  # points of a curve for its best to mean something
LAST = 10  # the end of training is its last tenth: single epochs jump


def lost_points(split: str) -> Quantity:
    """From the best epoch's accuracy down to the last one's: what the paper calls overfitting."""
    return Quantity(
        _each(f"{split}_accuracy", lambda curve: curve.max() - curve[-1]),
        better="loses fewer points to overfitting than",
        same="loses as few points to overfitting as",
        unit="points",
        small_is_good=True,
        lacking=lambda row: _too_coarse(row, f"{split}_accuracy"),
    )


def at_the_end(quantity: str, name: str) -> Quantity:
    """The mean over the last tenth of the epochs."""
    words = (f"with a smaller {name} than", f"with the same {name} as")
    return Quantity(_each(quantity, end_of), *words, digits=".3g", small_is_good=True)


def speed(quantity: str, name: str) -> Quantity:
    """The mean of the decimal logarithm over all epochs: lower is sooner down."""
    words = (f"down faster in {name} than", f"down as fast in {name} as")
    of = _each(quantity, _mean_logarithm)
    return Quantity(of, *words, unit="in the mean log10", digits=".3f", small_is_good=True)


def end_of(curve: np.ndarray) -> float:
    """The mean of the last tenth of a curve."""
    return float(curve[-max(1, len(curve) // LAST) :].mean())


def fall(row: MethodRow, quantity: str) -> dict[int, float]:
    """By seed: how many times smaller the end is than the first epoch."""
    return _each(quantity, lambda curve: curve[0] / np.maximum(end_of(curve), SMALLEST))(row)


def _too_coarse(row: MethodRow, quantity: str) -> str:
    points = min(len(_curve(run, quantity)) for run in row.runs)
    return f"measured at {points} epochs only" if points < FEWEST else ""


def _mean_logarithm(curve: np.ndarray) -> float:
    return float(np.log10(np.maximum(curve, SMALLEST)).mean())


def _each(
    quantity: str, number: Callable[[np.ndarray], float]
) -> Callable[[MethodRow], dict[int, float]]:
    """The number of the quantity's curve in each run of a row, by seed."""
    return lambda row: {run.seed: float(number(_curve(run, quantity))) for run in row.runs}


def _curve(run: FinishedRun, quantity: str) -> np.ndarray:
    return over_epochs([run], quantity)[1]
