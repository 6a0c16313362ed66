"""What was typed, and where the commands print to."""

import itertools
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from aesam.lab import lab_methods, summaries
from aesam.lab.errors import UsageError
from aesam.lab.show import wording


class Output(Console):
    """Rich's console; where nobody reads it any more is told to whoever runs the command."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704  # rich calls it while it handles the error


console = Output(stderr=False)


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    kind = "test" if summary["test_accuracy"] is not None else "validation"
    accuracy, loss = summary[f"{kind}_accuracy"], summary.get(f"{kind}_loss")
    loss = "" if loss is None else f", loss {loss:.3f}"
    more = "".join(f", {told}" for told in [summaries.remarks(summary)] if told)
    judged = f" of {summary['evaluated']}" if "evaluated" in summary else ""
    say(
        f"{kind} accuracy{judged} {accuracy:.2f} %{loss}, SAM on {summary['percent_sam']:.1f} % of "
        f"{summary['steps']} steps{more}, {summary['seconds']:.1f} s of training → {folder}"
    )
    if "left_undone" in summary:
        method, what = (wording.printable(summary[name]) for name in ("method", "left_undone"))
        say(f"{method}: {what}; train for longer, or change its settings")
    if summary.get("health"):
        say(f"second gradients: {wording.printable(summary['health'].get('verdict'))}")


def diverged(summary: dict[str, Any], folder: Path) -> str:
    """What to do about a run that diverged."""
    skipped = summaries.skipped_steps(summary)
    why = f"{skipped} of {summary['steps']} steps were skipped" if skipped else "its loss is lost"
    return (
        f"the run in {folder} diverged ({why}): its gradients or its loss are not finite, so its "
        f"numbers say nothing of the method. Lower {_what_to_lower(summary)}, or give --clip"
    )


def _what_to_lower(summary: dict[str, Any]) -> str:
    """The flags of what makes a run diverge, of those that its method has."""
    try:
        known = lab_methods.record_of(str(summary.get("method"))).defaults
    except UsageError:  # a method from outside that is not there any more
        known = {}
    flags = ["--lr", *(f"--{setting}" for setting in ("rho", "alpha") if setting in known)]
    return " or ".join((", ".join(flags[:-1]), flags[-1])) if flags[1:] else flags[0]


def say(text: str) -> None:
    """One line as it is: no wrapping, no colours, no markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def command_line() -> str:
    """The command as it was typed, for files that say how they were made."""
    return shlex.join(["aesam", *sys.argv[1:]])


def is_given(flag: str) -> bool:
    """Whether a flag was typed, also with the value that it has anyway."""
    return any(word.partition("=")[0] == flag for word in sys.argv[1:])


def typed_value(flag: str) -> str | None:
    """What was typed for a flag; the last counts."""
    words, value = sys.argv[1:], None
    for word, after in itertools.zip_longest(words, words[1:]):
        name, equals, attached = word.partition("=")
        if name == flag and (equals or not (after or "--").startswith("-")):
            value = attached if equals else after
    return value
