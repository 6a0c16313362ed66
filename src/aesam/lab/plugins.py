"""Methods, data sets and models from outside: modules that register them when they are imported.

A package names its module under the entry point group ``aesam``; a module that is no package is
named in the environment variable ``AESAM_PLUGINS``, several with commas in between, and looked for
in the current folder first. Every command imports them first, and so does every worker of a grid.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from aesam.lab.errors import UsageError

GROUP = "aesam"
VARIABLE = "AESAM_PLUGINS"


def names() -> list[str]:
    """The modules that are to be imported, each once."""
    installed = [point.module for point in entry_points(group=GROUP)]
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    return list(dict.fromkeys(name for name in (*installed, *named) if name))


def load(modules: Iterable[str] | None = None) -> None:
    """Import the modules (those of :func:`names` unless given); one that fails is named."""
    wanted = names() if modules is None else list(modules)
    here = str(Path.cwd())
    if wanted and here not in sys.path:  # a console script does not look there by itself
        sys.path.insert(0, here)
    for name in wanted:
        if not all(word.isidentifier() for word in name.split(".")):
            raise UsageError(
                f"{VARIABLE} names {name!r}, which is no module: give the name that `import` takes"
            )
        try:
            importlib.import_module(name)
        except Exception as error:
            raise UsageError(
                f"the plugin {name!r} cannot be imported ({type(error).__name__}: {error}): mend "
                f"it, name its folder in PYTHONPATH, or take it out of {VARIABLE} or uninstall its "
                "package"
            ) from error
