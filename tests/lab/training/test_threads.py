"""Threads are borrowed, not kept."""

import pytest
import torch

from aesam.lab.training.engine import threads


def fail_with(count):
    with threads(count):
        raise KeyError(torch.get_num_threads())


def test_as_many_threads_as_before_after_the_block_even_if_it_fails():
    before = torch.get_num_threads()
    with pytest.raises(KeyError, match=str(before + 1)):
        fail_with(before + 1)
    assert torch.get_num_threads() == before
