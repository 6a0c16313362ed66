import sys

import pytest

from aesam.lab import plugins
from aesam.lab.data import forget_data_set


@pytest.fixture
def small_cifar(monkeypatch):
    """The name of a CIFAR-10 of any size, known to this process and to workers during one test."""
    monkeypatch.setenv(plugins.VARIABLE, "support.small_cifar")
    plugins.load()
    yield "smallcifar10"
    forget_data_set("smallcifar10")
    del sys.modules["support.small_cifar"]
