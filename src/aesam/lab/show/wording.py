"""Numbers and settings as readers see them, the same in tables, figures and pages."""

from collections.abc import Mapping
from typing import Any

from aesam.lab.lab_methods import phrase_of, symbol_of
from aesam.lab.show.stats import PairedTest, Spread

NOTHING = "–"


def plus_minus(spread: Spread, digits: int) -> str:
    """Mean ± sample deviation; the mean alone where one run has no deviation.

    >>> plus_minus(Spread(84.1, 1.25, None), 2), plus_minus(Spread(84.1, None, None), 2)
    ('84.10 ± 1.25', '84.10')
    """
    deviation = "" if spread.std is None else f" ± {spread.std:.{digits}f}"
    return f"{spread.mean:.{digits}f}{deviation}"


def times(spread: Spread | None) -> str:
    """A multiple: ``1.96×``."""
    return NOTHING if spread is None else f"{spread.mean:.2f}×"


def p_value(test: PairedTest | None) -> str:
    """A p-value to three digits.

    >>> p_value(PairedTest(3, 1.0, 0.0213)), p_value(PairedTest(3, 9.0, 1e-7)), p_value(None)
    ('0.021', '<0.001', '–')
    """
    if test is None:
        return NOTHING
    return "<0.001" if test.p_value < 0.001 else f"{test.p_value:.3f}"


def p_statement(test: PairedTest) -> str:
    """A p-value inside a sentence: ``p = 0.021`` or ``p < 0.001``."""
    shown = p_value(test)
    return f"p < {shown[1:]}" if shown.startswith("<") else f"p = {shown}"


def setting(name: str, value: object) -> str:
    """One setting by its symbol, or in the words of its record.

    >>> setting("lambda1", -1.0), setting("normalize", True), setting("k", None)
    ('λ1 = −1', 'normalize = yes', 'k unset')
    >>> setting("compensate", 4.0)
    'compensated ≤ 4'
    """
    shown = symbol_of(name) or printable(name).replace("_", " ")
    if value is None:
        return f"{shown} unset"
    phrase = phrase_of(name)
    return phrase.replace("{}", _value(value)) if phrase else f"{shown} = {_value(value)}"


def settings(values: Mapping[str, Any]) -> str:
    """All settings that are set, in one line; a dash for none."""
    return ", ".join(setting(k, v) for k, v in values.items() if v is not None) or NOTHING


def noise(share: object) -> str:
    """A share of flipped training labels in words.

    >>> noise(0.6), noise(0)
    ('60 % label noise', 'clean labels')
    """
    percent = 100 * share if isinstance(share, int | float) else 0
    return f"{percent:g} % label noise" if percent else "clean labels"


def whole_numbers(values: list[int]) -> str:
    """A list for a sentence: ``0, 1, 2``."""
    return ", ".join(str(v) for v in values)


def printable(text: object) -> str:
    """Text from a file without control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        shown = str(value) if isinstance(value, int) else f"{value:g}"
        return shown.replace("-", "−").replace("inf", "∞")
    return printable(value)
