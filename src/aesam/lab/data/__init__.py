"""Data sets, label noise, held-out parts, and batches that a killed run can enter anywhere."""

from aesam.lab.data import cifar, digits, image_folder, kjv_text, synthetic
from aesam.lab.data.batches import Batches, evaluation_chunks
from aesam.lab.data.data_records import (
    DataRecord,
    Description,
    TellProgress,
    data_record,
    describe,
    fetch,
    forget_data_set,
    list_data_sets,
    load,
    register_data_set,
)
from aesam.lab.data.official_files import Archive
from aesam.lab.data.run_samples import RunSamples, flip_labels, hold_out, samples_of, subset
from aesam.lab.data.sets import AnySplit, DataSet, FolderSplit, Split, TextSplit

__all__ = [
    "AnySplit",
    "Archive",
    "Batches",
    "DataRecord",
    "DataSet",
    "Description",
    "FolderSplit",
    "RunSamples",
    "Split",
    "TellProgress",
    "TextSplit",
    "data_record",
    "describe",
    "evaluation_chunks",
    "fetch",
    "flip_labels",
    "forget_data_set",
    "hold_out",
    "list_data_sets",
    "load",
    "register_data_set",
    "samples_of",
    "subset",
]

for _record in (
    digits.RECORD,
    *cifar.RECORDS,
    image_folder.RECORD,
    kjv_text.RECORD,
    synthetic.RECORD,
):
    register_data_set(_record)
