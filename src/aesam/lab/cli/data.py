"""``aesam data``: fetch, verify and describe a data set."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.progress import Progress, TaskID

from aesam.lab import data
from aesam.lab.cli.console import console, say


@dataclass(frozen=True)
class FetchData:
    """Fetch a data set from its official address, verify its checksum and describe it."""

    name: tyro.conf.Positional[str]
    """digits, cifar10, cifar100, folder or synthetic."""
    root: Path = Path("data")
    """Where data sets lie."""

    def __call__(self) -> int:
        data.check(self.name)
        if self.name in ("cifar10", "cifar100"):
            say(f"{self.name} is in {self._fetch()}")
        for key, value in data.describe(self.name, self.root).items():
            say(f"{key}: {value}")
        return 0

    def _fetch(self) -> Path:
        """Fetch with a bar for whatever is under way."""
        with Progress(console=console, disable=not console.is_terminal) as bar:
            tasks: dict[str, TaskID] = {}

            def told(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what, total=total or None)
                bar.update(tasks[what], completed=done)

            return data.fetch(self.name, self.root, told)
