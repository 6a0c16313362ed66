"""Data sets, label noise, held-out parts, and batches that a killed run can enter anywhere."""

from aesam.lab.data.archives import Archive
from aesam.lab.data.batches import Batches, evaluation_chunks
from aesam.lab.data.catalog import check, load, names
from aesam.lab.data.description import Description, describe
from aesam.lab.data.download import Progress, fetch
from aesam.lab.data.run_samples import RunSamples, flip_labels, hold_out, samples_of, subset
from aesam.lab.data.sets import AnySplit, DataSet, FolderSplit, Split

__all__ = [
    "AnySplit",
    "Archive",
    "Batches",
    "DataSet",
    "Description",
    "FolderSplit",
    "Progress",
    "RunSamples",
    "Split",
    "check",
    "describe",
    "evaluation_chunks",
    "fetch",
    "flip_labels",
    "hold_out",
    "load",
    "names",
    "samples_of",
    "subset",
]
