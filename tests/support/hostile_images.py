"""Files that have an image's name: of other formats, bombs, cut and with bits flipped."""

import io
import random
import struct
import warnings
import zlib

from PIL import Image

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
PROGRAMS = {
    "eps": EPS,
    "eps as dos has it": b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 30, len(EPS)) + b"\0" * 18 + EPS,
    "postscript": b"%!PS-Adobe-3.0\n(canary) (w) file closefile\nshowpage\n",
    "pdf": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n%%EOF\n",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>',
    "shell": b"#!/bin/sh\ntouch canary\n",
    "imagemagick": b"push graphic-context\nfill 'url(https://x/\"|touch canary\")'\n",
    "wmf": b"\xd7\xcd\xc6\x9a" + b"\0" * 60,
    "hdf5": b"\x89HDF\r\n\x1a\n" + b"\0" * 60,
    "grib": b"GRIB" + b"\0" * 3 + b"\1" + b"\0" * 60,
    "zip": b"PK\x03\x04" + b"\0" * 60,
    "html": b"<!doctype html><title>404</title>",
    "nothing": b"",
    "zeros": bytes(5000),
}
#: JPEG and PNG inside, so that these are decoded.
TAKEN = {"JPEG", "MPO", "PNG"}


def picture(size=(24, 20), seed=0):
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))


def written(image, form, **more):
    buffer = io.BytesIO()
    image.save(buffer, form, **more)
    return buffer.getvalue()


def formats():
    """The picture in every format that Pillow writes here, by the format's name."""
    Image.init()
    for form in sorted(Image.SAVE):
        raw = next(filter(None, (in_mode(mode, form) for mode in ("RGB", "L", "1", "P"))), None)
        if raw is not None:
            yield form, raw


def in_mode(mode, form):
    """The picture, or None if the format does not have that mode, or no library for it is here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of formats that Pillow will no longer know
            return written(picture().convert(mode), form)
    except (OSError, ValueError, KeyError, AttributeError, RuntimeError):
        return None


def chunk(kind, content):
    raw = kind + content
    return struct.pack(">I", len(content)) + raw + struct.pack(">I", zlib.crc32(raw))


def png(width, height, *chunks, depth=8, colour=0):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")


def bombs():
    """Few bytes that stand for very many."""
    zeros = zlib.compress(bytes(100 << 20), 9)
    data = chunk(b"IDAT", zlib.compress(bytes(9 * 8)))
    for width, height in ((65500, 65500), (2**31 - 1, 1), (1, 2**31 - 1), (2**31 - 1, 2**31 - 1)):
        yield f"png of {width} × {height}", png(width, height, data)
    yield "png of 16 bits, 60000 × 60000", png(60000, 60000, data, depth=16, colour=6)
    yield "png without an end", png(8, 8, chunk(b"IDAT", zeros))
    yield "text in png", png(8, 8, chunk(b"zTXt", b"k\0\0" + zeros), data)
    yield "much text in png", png(8, 8, *[chunk(b"zTXt", b"k\0\0" + zeros)] * 50, data)
    yield "other text in png", png(8, 8, chunk(b"iTXt", b"k\0\1\0\0\0" + zeros), data)
    yield "profile in png", png(8, 8, chunk(b"iCCP", b"p\0\0" + zeros), data)
    frames = chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))
    yield "frames in png", png(8, 8, frames, data)
    yield "a chunk of 2 GB in png", png(8, 8)[:33] + struct.pack(">I", 2**31 - 1) + b"IDATx"
    small = written(picture(), "JPEG")
    at = small.index(b"\xff\xc0") + 5
    for height, width in ((65500, 65500), (65535, 65535), (0, 24), (20, 0), (0, 0)):
        size = struct.pack(">HH", height, width)
        yield f"jpeg of {width} × {height}", small[:at] + size + small[at + 4 :]


def wholes():
    """What is decoded, in the forms in which it comes."""
    image = picture()
    yield "jpeg", written(image, "JPEG")
    yield "progressive jpeg", written(image, "JPEG", progressive=True)
    yield "cmyk jpeg", written(image.convert("CMYK"), "JPEG")
    yield "png", written(image, "PNG")
    yield "palette png", written(image.quantize(16), "PNG")
    yield "1-bit png", written(image.convert("1"), "PNG")
    yield "16-bit png", written(Image.new("I;16", (24, 20), 40000), "PNG")
    yield "animated png", written(image, "PNG", save_all=True, append_images=[picture(seed=1)])


def damaged(count, seed=0):
    """Cut somewhere, or with some bits flipped."""
    source = random.Random(seed)
    for label, raw in wholes():
        for i in range(count):
            at = source.randrange(len(raw))
            yield f"{label} cut at {at}, {i}", raw[:at]
            changed = bytearray(raw)
            for _ in range(source.randrange(1, 5)):
                ends = source.choice((120, len(raw)))
                changed[source.randrange(min(ends, len(raw)))] ^= 1 << source.randrange(8)
            yield f"{label} flipped {i}", bytes(changed)
