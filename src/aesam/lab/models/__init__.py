"""The models of the lab, by name.

>>> sum(p.numel() for p in build("resnet20", classes=10).parameters())
269722
"""

from aesam.lab.models import resnet, small_networks, text_transformer, vit, wide_resnet
from aesam.lab.models.model_records import (
    ModelFamily,
    ModelRecord,
    Task,
    build,
    build_for,
    forget_model,
    list_models,
    model_help,
    model_record,
    models_reading,
    register_model,
)

__all__ = [
    "ModelFamily",
    "ModelRecord",
    "Task",
    "build",
    "build_for",
    "forget_model",
    "list_models",
    "model_help",
    "model_record",
    "models_reading",
    "register_model",
]

for _record in (
    *small_networks.RECORDS,
    *resnet.RECORDS,
    *wide_resnet.RECORDS,
    vit.RECORD,
    text_transformer.RECORD,
    wide_resnet.FAMILY,
):
    register_model(_record)
