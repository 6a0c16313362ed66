"""The vision transformer of Dosovitskiy et al. (2021) in its small size, ViT-S."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from aesam.lab.errors import UsageError
from aesam.lab.models.model_records import ModelRecord, Task


def patch_size(size: int, patch: int | None) -> int:
    """The patch to cut images of ``size`` into: as asked, or 4 up to 64 pixels and 16 above."""
    chosen = patch if patch is not None else 4 if size <= 64 else 16
    if chosen < 1 or size % chosen:
        divisors = [p for p in range(1, min(size // 2, 32) + 1) if size % p == 0] or [size]
        raise UsageError(
            f"patch {chosen} does not divide images of size {size}; "
            f"choose among {', '.join(map(str, divisors))}"
        )
    return chosen


class Attention(nn.Module):
    """Multi-head self-attention with a bias on queries, keys and values.

    With ``causal`` a token sees itself and those before it.
    """

    def __init__(self, dim: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        split: Tensor = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class EncoderBlock(nn.Module):
    """Attention, then a GELU perceptron of four times the width, each after a LayerNorm."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = Attention(dim, heads, causal=causal)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches as tokens beside a class token, learned positions, and pre-norm blocks."""

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        size: int,
        patch: int,
        dim: int = 384,
        depth: int = 12,
        heads: int = 6,
    ) -> None:
        super().__init__()
        tokens = (size // patch) ** 2 + 1
        self.patches = nn.Conv2d(channels, dim, patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, tokens, dim))
        self.blocks = nn.Sequential(*(EncoderBlock(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)
        self._init()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(len(x), -1, -1), tokens), dim=1)
        return self.head(self.norm(self.blocks(tokens + self.positions))[:, 0])

    def _init(self) -> None:
        """A normal of deviation 0.02 cut at two deviations for weights, zeros for biases."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                truncated_normal(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        truncated_normal(self.class_token)
        truncated_normal(self.positions)


def truncated_normal(weight: Tensor, std: float = 0.02) -> None:
    """Draw a weight from a normal of this deviation, cut at two deviations."""
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def _small(task: Task) -> ViT:
    patch = patch_size(task.size, task.patch)
    return ViT(classes=task.classes, channels=task.channels, size=task.size, patch=patch)


#: The label is the paper's, which keeps the 16 also where patches have 4 pixels.
RECORD = ModelRecord(
    "vit-s", "ViT-S16", "vision transformer, 22 M parameters", _small, has_patches=True
)
