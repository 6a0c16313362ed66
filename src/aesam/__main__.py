"""The command ``aesam``; ``python -m aesam`` is the same."""

import sys


def main() -> int:
    """Run the command, or say what to install where its packages are missing."""
    try:
        import tyro  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        print("aesam: the command needs its extra: pip install 'aesam[lab]'", file=sys.stderr)
        return 1
    from aesam.lab.cli import run_command
    from aesam.paper.command import Reproduce

    return run_command({"reproduce": Reproduce})


if __name__ == "__main__":
    sys.exit(main())
