"""Who is told how a run goes: a terminal, a log, or nobody."""

import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from aesam.lab.config import Run
from aesam.lab.lab_methods import epochs_of


class Reporter(Protocol):
    """What training tells while it goes on."""

    def begin(self, run: Run, total_steps: int, done: int) -> None: ...
    def step(self, done: int, epoch: int, loss: float, percent_sam: float) -> None: ...
    def epoch(self, line: dict[str, Any]) -> None: ...
    def say(self, text: str) -> None: ...
    def end(self) -> None: ...

    #: Seconds between two calls of :meth:`step`; reading the loss makes the device wait.
    every: float


class Silent:
    """Tells nobody."""

    every = float("inf")

    def begin(self, run: Run, total_steps: int, done: int) -> None:
        pass

    def step(self, done: int, epoch: int, loss: float, percent_sam: float) -> None:
        pass

    def epoch(self, line: dict[str, Any]) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def end(self) -> None:
        pass


class Log(Silent):
    """Plain lines for files and pipes: a tenth of the epochs, and the last."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._epochs = 1

    def begin(self, run: Run, total_steps: int, done: int) -> None:
        self._epochs = epochs_of(run)
        where = f", going on at step {done}" if done else ""
        self.say(
            f"{run.method.name} · {run.model.name} on {run.data.name}, noise {run.data.noise:g}, "
            f"seed {run.seed}: {self._epochs} epochs, {total_steps} steps{where}"
        )

    def epoch(self, line: dict[str, Any]) -> None:
        number = line["epoch"]
        if number % max(1, self._epochs // 10) == 0 or number == self._epochs:
            self.say(f"epoch {number}/{self._epochs}  {describe(line)}")

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


class Live(Log):
    """A bar with loss, accuracy, share of SAM and time left."""

    every = 0.2

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self._task: TaskID | None = None
        self._accuracy = ""

    def begin(self, run: Run, total_steps: int, done: int) -> None:
        super().begin(run, total_steps, done)
        self._bar.start()
        self._task = self._bar.add_task("training", total=total_steps, completed=done, state="")

    def step(self, done: int, epoch: int, loss: float, percent_sam: float) -> None:
        if self._task is not None:
            state = f"epoch {epoch}/{self._epochs}  loss {loss:.3f}{self._accuracy}"
            self._bar.update(self._task, completed=done, state=f"{state}  SAM {percent_sam:.0f} %")

    def epoch(self, line: dict[str, Any]) -> None:
        if (accuracy := accuracy_of(line)) is not None:
            self._accuracy = f"  accuracy {accuracy:.1f} %"
        self.step(line["step"], line["epoch"], line["train_loss"], line["percent_sam"])

    def end(self) -> None:
        self._bar.stop()


def accuracy_of(line: dict[str, Any]) -> float | None:
    """Test accuracy, or validation accuracy where a part was held out; None if not evaluated."""
    return line.get("test_accuracy", line.get("validation_accuracy"))


def describe(line: dict[str, Any]) -> str:
    """One epoch in words."""
    kind, accuracy = "test" if "test_accuracy" in line else "validation", accuracy_of(line)
    held = "" if accuracy is None else f"{kind} {accuracy:.1f} %  "
    return (
        f"loss {line['train_loss']:.4f}  train {line['train_accuracy']:.1f} %  "
        f"{held}SAM {line['percent_sam']:.0f} %  "
        f"{line['seconds']:.1f} s"
    )


def for_console(console: Console, quiet: bool = False) -> Reporter:
    """The reporter that fits where the output goes."""
    if quiet:
        return Silent()
    return Live(console) if console.is_terminal else Log(console)


class Clock:
    """Tells when it is time to speak again."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._next = 0.0

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next or self._every == float("inf"):
            return False
        self._next = now + self._every
        return True
