"""The command ``aesam``; ``python -m aesam`` is the same."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec

#: What the extra ``lab`` brings: the name to import, and the name to install.
PACKAGES = {
    "accelerate": "accelerate",
    "jinja2": "jinja2",
    "joblib": "joblib",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "PIL": "pillow",
    "rich": "rich",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "tyro": "tyro",
}


def main() -> int:
    """Run the command, or say what to install where its packages are missing."""
    missing = [package for module, package in PACKAGES.items() if not _is_there(module)]
    if missing:
        return _refuse(f"{', '.join(missing)} missing")
    try:
        with _interrupts_without_traceback():
            from aesam.evidence.command import Frontier
            from aesam.evidence.triggers import Triggers
            from aesam.lab.cli import run_command
            from aesam.paper.reproduce import Reproduce
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "aesam":
            raise
        return _refuse(str(error))
    return run_command({"reproduce": Reproduce, "frontier": Frontier, "triggers": Triggers})


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _refuse(why: str) -> int:
    print(f"aesam: the command needs its extra: pip install 'aesam[lab]' ({why})", file=sys.stderr)
    return 1


@contextmanager
def _interrupts_without_traceback() -> Generator[None]:
    """Importing takes seconds in which nothing is lost: Ctrl-C just ends the process."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # another's, or ignored
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
