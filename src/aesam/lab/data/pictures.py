"""One image file as pixels: which files are taken, and which part of each."""

import math
import random
import warnings
from typing import IO

import torch
from PIL import Image
from torch import Tensor

from aesam.lab.errors import UsageError
from aesam.lab.regular_files import open_regular

#: By content, whatever the name says: Pillow knows others, and starts programs to read some.
FORMATS = ("JPEG", "PNG")

#: Half a gigabyte as RGB, which is where Pillow refuses too: 178,956,970.
MOST_PIXELS = 2**29 // 3

#: The share of the area that a training crop covers, and how oblong it may be.
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10

#: Of the shorter side, what evaluation looks at: 224 of 256.
CENTRE = 224 / 256

Box = tuple[float, float, float, float]


def decode(path: str, size: int, source: random.Random | None, flips: bool) -> Tensor:
    """The file as uint8 ``[3, size, size]``: a random part with ``source``, else the centre.

    Cutting and resizing are one operation, so no pixel is resampled twice.
    """
    with open_regular(path) as file, warnings.catch_warnings():
        # Of odd remarks beside the pixels, once per file and in every epoch.
        warnings.simplefilter("ignore")
        image = _rgb(_opened(path, file))
    box = centre_box(*image.size) if source is None else random_box(*image.size, source)
    square = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    if source is not None and flips and source.random() < 0.5:
        square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, 3).permute(2, 0, 1)


def _opened(path: str, file: IO[bytes]) -> Image.Image:
    """The image before any of its pixels is decoded."""
    too_large = UsageError(
        f"{path} has more than {MOST_PIXELS:,} pixels: make it smaller or remove the file"
    )
    try:
        image = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError:
        raise too_large from None
    except Image.UnidentifiedImageError:
        raise ValueError(f"it is no {' or '.join(FORMATS)} inside") from None
    if image.width * image.height > MOST_PIXELS:
        raise too_large
    return image


def _rgb(image: Image.Image) -> Image.Image:
    image.load()
    image.info.pop("transparency", None)  # dropped with the alpha channel, of which RGB has none
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow cuts off at 255
        image = image.convert("I").point(lambda shade: shade * (1 / 256)).convert("L")
    return image.convert("RGB")


def random_box(width: int, height: int, source: random.Random) -> Box:
    """A part of random area, shape and place; all of the image that fits if none is found."""
    for _ in range(TRIES):
        area = width * height * source.uniform(*AREA)
        aspect = math.exp(source.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = source.randint(0, width - w), source.randint(0, height - h)
            return left, top, left + w, top + h
    # An extremely oblong image: its middle, as oblong as a crop may be.
    return _middle(width, height, min(width, height * ASPECT[1]), min(height, width / ASPECT[0]))


def centre_box(width: int, height: int) -> Box:
    """The middle square, with 7/8 of the shorter side: a resize to 256 and a crop to 224."""
    side = CENTRE * min(width, height)
    return _middle(width, height, side, side)


def _middle(width: int, height: int, w: float, h: float) -> Box:
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h
