"""Random crop, mirror and cutout of a whole batch at once, and the scaling of its pixels.

The random choices are drawn for the global batch from (seed, epoch, batch index) alone. So each
rank can apply its own rows of them, and an epoch can be entered anywhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from aesam.lab import draws


@dataclass(frozen=True, eq=False)
class Choices:
    """For each image: where its crop starts, whether it is mirrored, where its hole is."""

    top: Tensor
    left: Tensor
    mirrored: Tensor
    hole_y: Tensor
    hole_x: Tensor

    @classmethod
    def draw(
        cls, count: int, seed: int, epoch: int, batch: int, *, pad: int, flips: bool, size: int
    ) -> "Choices":
        """The choices for all ``count`` images of the global batch."""
        source = draws.generator("augment", seed, epoch, batch)
        top, left = torch.randint(0, 2 * pad + 1, (2, count), generator=source)
        coin = torch.randint(0, 2, (count,), generator=source)
        hole_y, hole_x = torch.randint(0, size, (2, count), generator=source)
        mirrored = coin.bool() if flips else torch.zeros_like(coin, dtype=torch.bool)
        return cls(top, left, mirrored, hole_y, hole_x)

    def take(self, rows: slice, device: torch.device) -> "Choices":
        """Those of some rows, on a device."""
        return Choices(
            self.top[rows].to(device),
            self.left[rows].to(device),
            self.mirrored[rows].to(device),
            self.hole_y[rows].to(device),
            self.hole_x[rows].to(device),
        )


def crop_and_mirror(images: Tensor, choices: Choices, pad: int) -> Tensor:
    """Each image shifted by up to ``pad`` pixels over black, then mirrored or not.

    ``images`` are raw pixels: what comes in at the border is black, not the mean colour.
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (pad, pad, pad, pad))
    step = padded.shape[-1]
    down = torch.arange(height, device=images.device)
    across = torch.arange(width, device=images.device)
    rows = choices.top[:, None] + down
    columns = choices.left[:, None] + torch.where(choices.mirrored[:, None], across.flip(0), across)
    # One gather from flattened images: several times faster on a CPU than indexing four axes.
    places = (rows[:, :, None] * step + columns[:, None, :]).view(count, 1, height * width)
    flat = padded.view(count, channels, -1)
    return flat.gather(2, places.expand(-1, channels, -1)).view(images.shape)


def cut_out(images: Tensor, choices: Choices, hole: int) -> Tensor:
    """A square of ``hole`` pixels set to zero in each normalised image, that is to the mean colour.

    Its centre is any pixel, so it may reach over the border. Changes ``images`` in place.
    """
    down = torch.arange(images.shape[2], device=images.device) + hole // 2
    across = torch.arange(images.shape[3], device=images.device) + hole // 2
    y, x = down - choices.hole_y[:, None], across - choices.hole_x[:, None]
    inside = ((y >= 0) & (y < hole))[:, :, None] & ((x >= 0) & (x < hole))[:, None, :]
    return images.masked_fill_(inside[:, None], 0.0)


class Normalizer:
    """Raw pixels to float32 of mean 0 and standard deviation 1 per channel."""

    def __init__(
        self,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device,
        channels_last: bool,
    ) -> None:
        self._mean = torch.tensor(mean, device=device).view(-1, 1, 1) * 255
        self._scale = 1 / (torch.tensor(std, device=device).view(-1, 1, 1) * 255)
        self._format = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, images: Tensor) -> Tensor:
        """A new tensor, in the memory format asked for."""
        pixels = images.to(torch.float32).sub_(self._mean).mul_(self._scale)
        return pixels.contiguous(memory_format=self._format)
