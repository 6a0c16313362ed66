"""How each method is named and drawn: one label, colour and marker, the same everywhere.

The colours are Okabe and Ito's, which people with any of the common colour-blindnesses can tell
apart; their yellow is left out because it is too faint on white.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """What a reader recognises a method by."""

    label: str
    colour: str
    marker: str


LOOKS = {  # in the order of the paper's tables
    "erm": Look("ERM", "#000000", "o"),
    "sam": Look("SAM", "#0072B2", "s"),
    "esam": Look("ESAM", "#56B4E9", "D"),
    "ss-sam": Look("SS-SAM", "#E69F00", "^"),
    "ae-sam": Look("AE-SAM", "#D55E00", "v"),
    "looksam": Look("LookSAM", "#009E73", "P"),
    "ae-looksam": Look("AE-LookSAM", "#CC79A7", "X"),
}
CONTROLS = {  # not of the paper: greys, told apart by their markers
    "erm-long": Look("ERM, twice as long", "#767676", "<"),
    "late-sam": Look("SAM at the end", "#767676", ">"),
    "matched-sam": Look("matched coin", "#767676", "p"),
    "inverted-sam": Look("inverted", "#767676", "d"),
    "matched-looksam": Look("matched coin, reuse", "#a0a0a0", "p"),
    "inverted-looksam": Look("inverted, reuse", "#a0a0a0", "d"),
}
ALL = {**LOOKS, **CONTROLS}
OTHER_COLOUR = "#767676"
OTHER_MARKER = "h"


def label_of(method: str) -> str:
    """The method's name as readers write it; a name that is not of the paper stays as it is.

    >>> label_of("ae-looksam")
    'AE-LookSAM'
    """
    if method in ALL:
        return ALL[method].label
    # Names come from files: control characters would upset terminals, and matplotlib leaves labels
    # with a leading underscore out of its legends.
    shown = "".join(c if c.isprintable() else "?" for c in method).lstrip("_")
    return shown or "?"


def colour_of(method: str) -> str:
    """The method's colour as ``#rrggbb``; grey for a method that is not of the paper."""
    return ALL[method].colour if method in ALL else OTHER_COLOUR


def marker_of(method: str) -> str:
    """The method's matplotlib marker."""
    return ALL[method].marker if method in ALL else OTHER_MARKER


def order_of(method: str) -> tuple[int, str]:
    """A sort key: the paper's methods in the paper's order, the controls, then others by name."""
    return (list(ALL).index(method) if method in ALL else len(ALL), method)
