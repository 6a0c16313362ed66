"""``aesam data``: fetch, verify and describe a data set."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from aesam.lab import data
from aesam.lab.cli.console import console


@dataclass(frozen=True)
class Data:
    """Fetch a data set from its official address, verify its checksum and describe it."""

    name: tyro.conf.Positional[str]
    """digits, cifar10, cifar100, folder or synthetic."""
    root: Path = Path("data")

    def __call__(self) -> int:
        data.check(self.name)
        if self.name in ("cifar10", "cifar100"):
            console.print(f"{self.name} is in {data.fetch(self.name, self.root)}", soft_wrap=True)
        for key, value in data.describe(self.name, self.root).items():
            console.print(f"{key}: {value}", soft_wrap=True, highlight=False)
        return 0
