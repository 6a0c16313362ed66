"""A plugin: CIFAR-10 of any size, to train on files that a test has made up."""

from dataclasses import replace

from aesam.lab.data import data_record, register_data_set
from support.fixtures_data import SMALL_CIFAR10

NAME = "smallcifar10"
SMALL = replace(SMALL_CIFAR10, name=NAME)
register_data_set(
    replace(
        data_record("cifar10"), name=NAME, load=SMALL.load, fetch=SMALL.fetch, verify=SMALL.verify
    )
)
