"""Where the commands print to."""

from pathlib import Path
from typing import Any

from rich.console import Console

console = Console(stderr=False)


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    kind = "test" if summary["test_accuracy"] is not None else "validation"
    accuracy = summary[f"{kind}_accuracy"]
    say(
        f"{kind} accuracy {accuracy:.2f} %, SAM on {summary['percent_sam']:.1f} % of "
        f"{summary['steps']} steps, {summary['seconds']:.1f} s of training → {folder}"
    )


def say(text: str) -> None:
    """One line as it is: no wrapping, no colours, no markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
