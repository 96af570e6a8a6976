"""Labelled images: from encoded files to pixels, and from pixels to scaled and augmented batches."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from normbench.data.batches import SPLITS, Labelled, LabelledData
from normbench.data.cache import Content, Source
from normbench.data.hub import reason
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import Batch, ImageClassification, Split, stable_seed

Scaling = Annotated[Literal["none", "unit", "standard"], Setting("of pixels")]
Crop = Annotated[
    int,
    Setting("training images are cut at random from a frame so many pixels wider; 0: off", "pixels", low=0, high=10**4),
]
Flip = Annotated[bool, Setting("mirror training images at random, left to right")]
Cutout = Annotated[
    int, Setting("side of a random square of zeros in training images; 0: off", "pixels", low=0, high=10**4)
]

Pixels = UInt8[np.ndarray, "images channels height width"]
PixelBatch = UInt8[Tensor, "batch channels height width"]
Inputs = Float[Tensor, "batch channels height width"]


class Images(LabelledData):
    """A classifier's images. Training batches are augmented, those of an evaluation are not, whichever the split.

    Args:
        source: where the images come from.
        scaling: `none` (0 to 255), `unit` (0 to 1) or `standard` (mean 0 and deviation 1 over the training images that
            are used, by channel).
        crop, flip, cutout: see Augmentation.
        options: of SourceData.
    """

    kind = "image_classification"
    unit = "images"
    task: ImageClassification

    def __init__(
        self,
        source: Source,
        *,
        scaling: Scaling = "standard",
        crop: Crop = 0,
        flip: Flip = False,
        cutout: Cutout = 0,
        **options: Any,
    ) -> None:
        super().__init__(source, **options)
        self.scaling, self.classes = scaling, tuple(self.content.facts["classes"])
        train = self.splits["train"].examples
        channels, height, width = shape = train.shape[1:]
        self.task = ImageClassification(num_classes=len(self.classes), image_shape=(channels, height, width))
        self.augmentation = Augmentation(self.seed, shape, crop, flip, cutout)
        moments = self.content.arrays["train_moments"][: len(train)]
        self._shift, self._divisor = scales(scaling, moments, height * width)
        self.arrange(len(train), "images of")

    def parts(self, content: Content) -> dict[Split, Labelled]:
        """Return the images and labels of each split."""
        found = {split: [content.arrays.get(f"{split}_{of}") for of in ("images", "labels")] for split in SPLITS}
        return {split: Labelled(*map(torch.from_numpy, of)) for split, of in found.items() if of[0] is not None}

    def batch(self, split: Split, indices: Int64[Tensor, " batch"], step: int | None = None) -> Batch:
        """Return images of a split, those of a training step augmented."""
        images, labels = self.splits[split].examples[indices], self.splits[split].labels[indices]
        if step is None:
            return Batch(self._scaled(images), labels)
        return Batch(self.augmentation.cut(self._scaled(self.augmentation.moved(images, step)), step), labels)

    def _scaled(self, pixels: PixelBatch) -> Inputs:
        return pixels.float().sub_(self._shift).div_(self._divisor)

    def pixels(self, inputs: Inputs) -> PixelBatch:
        """Return the pixels, from 0 to 255, that a batch's inputs were made of."""
        return (inputs * self._divisor + self._shift).round().clamp(0, 255).to(torch.uint8)

    def facts(self) -> dict[str, Any]:
        """Return what is said about images; mean and deviation are those of pixels from 0 to 1."""
        scaling = {"shift": self._shift, "divisor": self._divisor}
        return {
            **{f"{split}_images": len(self.splits.get(split, ())) for split in SPLITS},
            "left_out": self.content.facts.get("left_out", 0),
            "image_shape": list(self.task.image_shape),
            "classes": list(self.classes),
            "scaling": self.scaling,
            **{name: [round(value / 255, 6) for value in of.flatten().tolist()] for name, of in scaling.items()},
            "augmentation": {name: getattr(self.augmentation, name) for name in ("crop", "flip", "cutout")},
        }


def scales(scaling: str, moments: Int64[np.ndarray, "images channels 2"], pixels: int) -> list[Tensor]:
    """Return shift and divisor by channel, (channels, 1, 1); a model sees (pixel − shift) / divisor.

    moments: each image's sum and sum of squares over its `pixels` pixels.
    """
    total, squares = moments.sum(axis=0).T.astype(np.float64) / (len(moments) * pixels)
    deviation = np.sqrt(np.maximum(squares - total**2, 0))
    shift = total if scaling == "standard" else np.zeros_like(total)
    divisor = np.where(deviation > 0, deviation, 1)  # a channel without variation stays 0
    if scaling != "standard":
        divisor = np.full_like(total, 255 if scaling == "unit" else 1)
    return [torch.from_numpy(values).float()[:, None, None] for values in (shift, divisor)]


# ---- augmentation


@dataclass(frozen=True)
class Augmentation:
    """Random crops, flips and holes, each image by itself; a pure function of (seed, step).

    Each kind draws random numbers of its own, so that one more kind changes nothing about the others.

    seed: of the random numbers. shape: channels, height, width.
    crop: black pixels put around an image before a random window of its own size is cut out (He et al. 2016a, §4.2).
    flip: mirror every second image, chosen at random, left to right.
    cutout: side of a square of zeros around a random pixel, in scaled images (DeVries & Taylor 2017); it may
    reach over the edge.

    Raises:
        UsageError: a crop or a hole could take all of an image.
    """

    seed: int
    shape: tuple[int, int, int]
    crop: int = 0
    flip: bool = False
    cutout: int = 0

    def __post_init__(self) -> None:
        _, height, width = self.shape
        least = min(height, width)
        for name, value in (("crop", self.crop), ("cutout", self.cutout)):
            if value >= least:
                raise UsageError(
                    f"data.{name}={value} leaves nothing of images of {height} × {width} pixels: use 0 to {least - 1}"
                )

    def generator(self, step: int, kind: str) -> torch.Generator:
        """Return what a kind's random numbers of a step come from."""
        return torch.Generator().manual_seed(stable_seed(self.seed, "data", kind, step))

    def moved(self, pixels: PixelBatch, step: int) -> PixelBatch:
        """Return the images of training step `step`, cropped and flipped."""
        if not (self.crop or self.flip):
            return pixels
        (batch, channels, height, width), p = pixels.shape, self.crop
        top, left = (
            torch.randint(2 * p + 1, (batch, 1), generator=self.generator(step, kind))
            for kind in ("crop rows", "crop columns")
        )
        order = torch.arange(width)
        if self.flip:
            flipped = torch.rand(batch, 1, generator=self.generator(step, "flip")) < 0.5
            order = torch.where(flipped, order.flip(0), order)
        rows, columns = top + torch.arange(height), left + order
        places = rows[:, :, None] * (width + 2 * p) + columns[:, None, :]
        taken = places.view(batch, 1, height * width).expand(batch, channels, -1)
        return F.pad(pixels, (p, p, p, p)).view(batch, channels, -1).gather(2, taken).view(pixels.shape)

    def cut(self, inputs: Inputs, step: int) -> Inputs:
        """Return the scaled images of training step `step` with their holes, in place."""
        if not self.cutout:
            return inputs
        batch, _, height, width = inputs.shape
        rows, columns = self.hole(batch, height, step, "cutout rows"), self.hole(batch, width, step, "cutout columns")
        return inputs.mul_(1 - rows[:, None, :, None] * columns[:, None, None, :])  # a tenth of masked_fill_'s time

    def hole(self, batch: int, size: int, step: int, kind: str) -> Float[Tensor, "batch size"]:
        """Return 1 in the rows, or columns, of the holes, else 0."""
        centres = torch.randint(size, (batch, 1), generator=self.generator(step, kind))
        distance = torch.arange(size) - centres + self.cutout // 2
        return ((distance >= 0) & (distance < self.cutout)).float()


# ---- decoding


def image_content(parts: Mapping[Split, Sequence[np.ndarray]], classes: Sequence[str]) -> Content:
    """Return what an image source decodes to, from the pixels and classes of each split.

    The moments are sum and sum of squares of each training image's pixels, so that the mean and deviation of any part
    of them are exact and immediate.
    """
    arrays: dict[str, np.ndarray] = {}
    for split, (images, labels) in parts.items():
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    train = parts["train"][0]
    squares = np.einsum("nchw,nchw->nc", train, train, dtype=np.int64)
    arrays["train_moments"] = np.stack([train.sum(axis=(2, 3), dtype=np.int64), squares], axis=2)
    return Content(arrays, {"classes": list(classes)})


def decode(images: Sequence[tuple[str, Any]], where: str, size: int | None = None) -> Pixels:
    """Return the pixels of images: grey where all are grey, else three channels.

    One thread, as Pillow gains nothing from two on small images; Pillow is imported here, as a cache hit needs it not.

    Args:
        images: the name of each image, and its file, its encoded bytes, or as the hub stores them.
        where: what to call all of them in an error.
        size: side in pixels that each is brought to, by its shorter side and a cut around its middle; None: as it is.

    Raises:
        UsageError: images cannot be read, or differ in size.
    """
    from PIL import Image, UnidentifiedImageError

    unreadable = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)
    pixels = np.empty((0, 0, 0, 0), dtype=np.uint8)
    faults: list[str] = []
    with warnings.catch_warnings(action="ignore"):  # damage that leaves an image is no fault
        for row, (name, encoded) in enumerate(images):
            try:
                image = decode_one(encoded, size)
            except unreadable as fault:
                why = "no image" if isinstance(fault, UnidentifiedImageError) else reason(fault)
                faults.append(f"{name}: {why:.120}")
                continue
            if not pixels.size:
                pixels = np.empty((len(images), *image.shape), dtype=np.uint8)
            if image.shape[1:] != pixels.shape[2:]:
                raise UsageError(
                    f"{name} of {where} differs in size from images before it: all images must have the same size, so "
                    "set data.size=64 or the like for images of your own"
                )
            if len(image) > pixels.shape[1]:
                pixels = np.repeat(pixels, 3, axis=1)
            pixels[row] = image
    if faults:
        raise UsageError(
            f"{len(faults):,} of the {len(images):,} images of {where} cannot be read ({', '.join(faults[:3])}): mend "
            "or remove them, or set data.image_column to the column of the images"
        )
    return pixels


def decode_one(encoded: Any, size: int | None) -> UInt8[np.ndarray, "channels height width"]:
    """Return the pixels of an image, upright: one channel where it is grey, and three where it has colour.

    Raises:
        ValueError: it is no image of 8 bits a channel; Pillow raises others, too.
    """
    from PIL import Image, ImageOps

    if isinstance(encoded, Mapping):
        encoded = encoded.get("bytes") or encoded.get("path")
    if not isinstance(encoded, bytes | Path):
        raise ValueError("no image is there")
    file = BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    with Image.open(file) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"Pillow's mode {image.mode}, where 8 bits a channel are needed")
        if size:
            image.draft(None, (2 * size, 2 * size))  # JPEG can be decoded to fewer pixels, which is faster
        image.load()
        if image.info:  # else it cannot say how it is turned, and each needless call is a fifth of MNIST's time
            ImageOps.exif_transpose(image, in_place=True)
        mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
        upright = image if image.mode == mode else image.convert(mode)
        if size:
            upright = ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(upright)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
