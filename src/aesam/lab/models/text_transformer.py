"""A small causal transformer over characters, as GPT has it (Radford et al. 2019)."""

import torch
from torch import Tensor, nn

from aesam.lab.models.model_records import ModelRecord, Task
from aesam.lab.models.vit import EncoderBlock, truncated_normal


class TextTransformer(nn.Module):
    """Characters and learned positions, causal pre-norm blocks, and a guess at every place.

    No dropout: what is drawn at random is the start and the order of the samples alone. The guesses
    are ``[N, classes, context]``, as torch's ``cross_entropy`` takes them.
    """

    def __init__(
        self, *, classes: int, context: int, dim: int = 64, depth: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, dim)
        self.positions = nn.Parameter(torch.empty(1, context, dim))
        self.blocks = nn.Sequential(*(EncoderBlock(dim, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)
        self._init()

    def forward(self, x: Tensor) -> Tensor:
        found = self.blocks(self.characters(x) + self.positions[:, : x.shape[1]])
        return self.head(self.norm(found)).transpose(1, 2)

    def _init(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                truncated_normal(layer.weight)
                nn.init.zeros_(layer.bias)
        truncated_normal(self.characters.weight)
        truncated_normal(self.positions)


def _small(task: Task) -> TextTransformer:
    return TextTransformer(classes=task.classes, context=task.size)


RECORD = ModelRecord(
    "text-transformer",
    "Text transformer",
    "causal transformer over characters, 0.11 M parameters",
    _small,
    reads="text",
)
