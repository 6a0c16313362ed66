"""Threads are borrowed, not kept."""

import pytest
import torch

from aesam.lab.threads import threads


def test_as_many_threads_as_before_after_the_block_even_if_it_fails():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before
