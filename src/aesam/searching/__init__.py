"""Finding good settings: the search itself, and the same around a training of the user's own."""

from aesam.searching.ranges import Range
from aesam.searching.widening import Curve, Round, Trial, Try, WideningSearch

__all__ = ["Curve", "Range", "Round", "Trial", "Try", "WideningSearch"]
