"""What image sources decode to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, UInt8

from normbench.data.cache import Content

Pixels = UInt8[np.ndarray, "images channels height width"]
Labels = Int64[np.ndarray, " images"]

CHUNK = 4096  # images whose pixels are summed at once: enough to be fast, little beside the images


def pixel_moments(pixels: Pixels) -> Int64[np.ndarray, "images channels 2"]:
    """Sum and sum of squares of each image's pixels, so that any part's mean and deviation are exact and immediate."""
    moments = np.empty((*pixels.shape[:2], 2), dtype=np.int64)
    for start in range(0, len(pixels), CHUNK):
        chunk = pixels[start : start + CHUNK].reshape(-1, pixels.shape[1], pixels[0, 0].size).astype(np.int32)
        moments[start : start + CHUNK, :, 0] = chunk.sum(axis=2)
        moments[start : start + CHUNK, :, 1] = (chunk * chunk).sum(axis=2)
    return moments


def image_content(
    train: tuple[Pixels, Labels],
    val: tuple[Pixels, Labels],
    classes: Sequence[str],
    test: tuple[Pixels, Labels] | None = None,
    left_out: int = 0,
) -> Content:
    """What an image source decodes to.

    test: what judges once, at the end, if anything. left_out: how many images could not be read.
    """
    arrays = {
        "train_images": train[0],
        "train_labels": train[1],
        "train_moments": pixel_moments(train[0]),
        "val_images": val[0],
        "val_labels": val[1],
    }
    if test is not None:
        arrays |= {"test_images": test[0], "test_labels": test[1]}
    return Content(arrays, {"classes": list(classes), "left_out": left_out})
