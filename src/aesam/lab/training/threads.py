"""How many threads torch computes with: on small problems they mostly wait for each other."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int) -> Generator[None]:
    """So many threads within the block, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
