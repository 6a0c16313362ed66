"""Every argument of every public class and function is explained where it is looked for."""

import inspect
import re
from types import ModuleType

import pytest

import aesam
from aesam import methods, parts, sharpness

ASCENTS = (
    parts.ascents,
    parts.scaled_ascents,
    parts.averaged_ascents,
    parts.chosen_ascents,
    parts.radii,
    parts.single_pass,
)
QUESTIONS = (parts.policies, *ASCENTS, parts.samples, parts.between, parts.combine)
ROOMS = (aesam, parts, sharpness, *QUESTIONS, parts.budget, parts.composed, parts.controls)


def public_names():
    """What a user can call, once each: names in `__all__`, and the classes of each question."""
    found = {}
    for room in ROOMS:
        own = [n for n, v in vars(room).items() if getattr(v, "__module__", "") == room.__name__]
        for name in getattr(room, "__all__", own):
            thing = vars(room)[name]
            if is_ours(thing) and not name.startswith("_"):
                found[f"{thing.__module__}.{name}"] = thing
    return found


def is_ours(thing):
    if isinstance(thing, ModuleType) or not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return False
    return thing.__module__.startswith("aesam.")


def parameters_of(thing):
    """What the caller may give by name; the keywords of all methods are spelled out."""
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return []
    names = []
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name == "common":
            kind = re.fullmatch(r"Unpack\[(\w+)\]", parameter.annotation)[1]
            names += vars(methods)[kind].__annotations__
        elif not parameter.name.startswith("_"):  # what is there to be refused
            names.append(parameter.name)
    return names


def explained_in(docstring):
    """The names in the section `Args:`, each with at least a few words."""
    _, _, rest = inspect.cleandoc(docstring).partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", rest)[0]
    return re.findall(r"^    (\w+): \S.*", section, flags=re.MULTILINE)


@pytest.mark.parametrize("name", public_names())
def test_every_argument_is_explained(name):
    thing = public_names()[name]
    assert thing.__doc__, name
    assert sorted(explained_in(thing.__doc__)) == sorted(parameters_of(thing))


def test_the_public_names_are_found():
    names = {name.rpartition(".")[2] for name in public_names()}
    assert names >= {"SharpnessAware", "AESAM", "Adaptive", "MatchedRate", "Reuse", "slice_2d"}


def test_an_argument_that_is_not_explained_is_found():
    text = """A class.

    Args:
        first: is explained,
            on two lines.
        third: too.

    >>> second: int = 1
    """
    assert explained_in(text) == ["first", "third"]
