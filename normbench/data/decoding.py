"""From encoded images to pixels."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from normbench.data.pixels import Pixels
from normbench.errors import UsageError

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
