"""From encoded images to pixels."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from normbench.data.pixels import Pixels
from normbench.errors import UsageError

GREY = ("1", "L", "LA", "La")  # Pillow's modes of 8 bits without colour
WIDE = ("I", "F")  # and what those of more bits begin with
UNDECODABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)


def decode_images(encoded: Sequence[bytes | None], where: str) -> Pixels:
    """Decodes PNG, JPEG or whatever else Pillow reads; one thread, as Pillow gains nothing from two on small images.

    Args:
        encoded: the images' bytes.
        where: what to call them in an error.

    Raises:
        UsageError: an image is damaged, or differs from the first in size or colour.
    """
    first = decode_image(encoded[0], f"row 0 of {where}")
    pixels = np.empty((len(encoded), *first.shape), dtype=np.uint8)
    for row, data in enumerate(encoded):
        image = decode_image(data, f"row {row} of {where}")
        if image.shape != first.shape:
            raise UsageError(
                f"row {row} of {where} has (channels, height, width) = {image.shape}, where row 0 has {first.shape}: "
                "all images must have the same"
            )
        pixels[row] = image
    return pixels


def decode_image(data: bytes | None, where: str) -> UInt8[np.ndarray, "channels height width"]:
    """The pixels of one grey (1 channel) or colour (3 channels) image."""
    try:
        with Image.open(BytesIO(data or b"")) as image:
            mode, pixels = image.mode, np.asarray(image)
    except UNDECODABLE as fault:
        reason = "no image format that Pillow knows" if isinstance(fault, UnidentifiedImageError) else fault
        raise UsageError(f"{where} cannot be decoded ({reason}): fetch the data set again, or mend that row") from fault
    if mode not in ("L", "RGB"):
        raise UsageError(f"{where} has Pillow's mode {mode}: use L (8-bit grey) or RGB (8-bit colour)")
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


class Decoded(NamedTuple):
    """Images of one size, and which of those given they are.

    pixels: of the readable ones. kept: their indices. faults: name and reason of each unreadable one.
    """

    pixels: Pixels
    kept: list[int]
    faults: list[tuple[str, str]]


def decode_readable(images: Sequence[tuple[str, Path | bytes | None]], size: int | None, where: str) -> Decoded:
    """Decodes what can be decoded, each image by itself, as grey where all are grey and as colour elsewhere.

    Args:
        images: the name of each image, and its file or its encoded bytes.
        size: see `decode_one`.
        where: what to call all of them in an error.

    Raises:
        UsageError: images differ in size.
    """
    pixels, colour = np.empty((0, 3, 0, 0), dtype=np.uint8), False
    kept: list[int] = []
    faults: list[tuple[str, str]] = []
    for index, (name, encoded) in enumerate(images):
        try:
            image = decode_one(encoded, size)
        except MemoryError:
            raise
        except Exception as fault:  # on damaged files Pillow's readers raise nearly anything
            faults.append((name, reason(fault)))
            continue
        if not kept:
            pixels = np.empty((len(images), 3, *image.shape[:2]), dtype=np.uint8)
        if image.shape[:2] != pixels.shape[2:]:
            raise UsageError(
                f"{name} of {where} has {image.shape[1]} × {image.shape[0]} pixels, where {images[kept[0]][0]} has "
                f"{pixels.shape[3]} × {pixels.shape[2]}: set data.size, to which all are brought, such as data.size=64"
            )
        colour = colour or image.ndim == 3
        pixels[len(kept)] = image.transpose(2, 0, 1) if image.ndim == 3 else image
        kept.append(index)
    return Decoded(pixels[: len(kept), : 3 if colour else 1], kept, faults)


def decode_one(encoded: Path | bytes | None, size: int | None) -> UInt8[np.ndarray, "height width *three"]:
    """The pixels of an image, upright; (height, width) where it is grey, and (height, width, 3) where it has colour.

    Args:
        encoded: its file, or its bytes.
        size: side of the square that is made of it in pixels, by its shorter side and a cut around its middle; None:
            as it is.
    """
    if encoded is None:
        raise ValueError("nothing is there")
    file = BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    with warnings.catch_warnings(action="ignore"), Image.open(file) as image:  # damage that leaves an image is no fault
        if image.mode.startswith(WIDE):
            raise ValueError(f"Pillow's mode {image.mode}, where 8 bits a channel are needed")
        if size:
            image.draft(None, (2 * size, 2 * size))  # JPEG can be decoded to fewer pixels, which is faster
        upright = ImageOps.exif_transpose(image).convert("L" if image.mode in GREY else "RGB")
        if size:
            upright = ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR)
        return np.asarray(upright)


def reason(fault: Exception) -> str:
    """Why an image cannot be read, in a few words."""
    if isinstance(fault, UnidentifiedImageError):
        return "no image format that Pillow knows"
    words = (fault.strerror if isinstance(fault, OSError) else None) or str(fault) or type(fault).__name__
    return words.splitlines()[0].rstrip(".:")[:80]
