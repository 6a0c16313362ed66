"""``aesam data``: fetch, verify and describe a data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import tyro
from rich.progress import Progress, TaskID

from aesam.lab import data
from aesam.lab.cli.console import console, say


def _known_sets() -> str:
    """What ``--help`` says of the name: all sets that are known by then, with their half lines."""
    records = [data.data_record(name) for name in data.list_data_sets()]
    return "\n".join(["One of", *(f"{record.name}: {record.help}" for record in records)])


#: tyro calls it when help is asked for, which its type leaves unsaid.
_NAME = tyro.conf.arg(help=cast(Any, _known_sets), metavar="NAME")


@dataclass(frozen=True)
class FetchData:
    """Fetch a data set from its official address, verify its checksum and describe it."""

    name: tyro.conf.Positional[Annotated[str, _NAME]]
    """Which data set."""
    root: Path = Path("data")
    """Where data sets lie."""

    def __call__(self) -> int:
        if data.data_record(self.name).fetch is not None:
            say(f"{self.name} is in {self._fetch()}")
        for key, value in data.describe(self.name, self.root).items():
            if value != []:  # class names that nobody gave
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
