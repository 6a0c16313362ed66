"""Turns what docstrings are written in into what the site is written in, for mkdocstrings.

Docstrings are read in terminals and run as doctests, so they keep Python's own conventions: roles
such as ``:class:`~aesam.SAM```, ``>>>`` examples and ``::`` before a formula.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr):`(~?)([\w.]+)`")
EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


def markdown(text: str, inside: griffe.Object) -> str:
    """The docstring of ``inside`` in the site's language.

    A role becomes a link, examples become a block of code, and ``::`` becomes a colon.
    """
    text = ROLE.sub(lambda found: _link(found, inside), text)
    text = EXAMPLE.sub(_block, text)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _link(role: re.Match[str], inside: griffe.Object) -> str:
    short, path = role.groups()
    shown = path.rpartition(".")[2] if short else path
    return f"[`{shown}`][{_found(path, inside)}]"


def _found(path: str, inside: griffe.Object) -> str:
    """The whole path of a name as it is meant where it stands."""
    if path.startswith("aesam."):
        return path
    place: griffe.Object | None = inside
    name, _, rest = path.partition(".")
    while place is not None:
        if name in place.all_members:
            member = place.all_members[name]
            whole = member.final_target.path if member.is_alias else member.path
            return f"{whole}.{rest}".rstrip(".")
        place = place.parent
    return path


def _block(example: re.Match[str]) -> str:
    indent = example[1]
    return f"{indent}```pycon\n{example[0]}\n{indent}```"


class Markdown(griffe.Extension):
    """Rewrites every docstring when the package is collected, and writes out what many share.

    Methods hand the keywords of ``Common`` on to ``SharpnessAware``: in the site they stand in each
    signature, with the defaults that they have there. Measures of sharpness hand what all of them
    take on to ``measuring``, which explains it.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called when the package is complete, so that names can be looked up."""
        handed_on = pkg["methods.Common"].all_members
        self._common = [
            p for p in pkg["optimizer.SharpnessAware"].parameters if p.name in handed_on
        ]
        self._rewrite(pkg)
        shared = _explained(pkg["sharpness.objective.measuring"])
        for measure in pkg["sharpness"].members.values():
            if measure.is_function and "batches" in measure.parameters:
                _explain(measure.final_target, shared)

    def _rewrite(self, inside: griffe.Object) -> None:
        if inside.is_function and "common" in inside.parameters:
            del inside.parameters["common"]
            for parameter in self._common:
                if parameter.name not in inside.parameters:  # one with a default of its own
                    inside.parameters.add(parameter)
        if inside.docstring is not None:
            inside.docstring.value = markdown(inside.docstring.value, inside)
        for member in inside.members.values():
            if not member.is_alias:
                self._rewrite(member)


def _explained(function: griffe.Function) -> dict[str, str]:
    """The lines of its arguments, by their names."""
    text = function.docstring.value.partition("Args:\n")[2]
    return {line.strip().partition(":")[0]: line for line in text.splitlines()}


def _explain(measure: griffe.Function, shared: dict[str, str]) -> None:
    """Put the shared arguments first, in a section that may be there already."""
    before, _, own = measure.docstring.value.partition("Args:\n")
    if not own:
        before, fence, rest = measure.docstring.value.partition("```pycon")
        own = f"\n{fence}{rest}"
    lines = [shared[p.name] for p in measure.parameters if p.name in shared]
    measure.docstring.value = f"{before}Args:\n" + "\n".join(lines) + f"\n{own}"
